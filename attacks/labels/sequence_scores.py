"""Scores for label sequences, from simulated local training of the last layer.

At a high learning rate each local step changes the probabilities p so much that Σ (p - y) over the steps, with p at the
first weights and one-hot labels y, reveals neither the labels' counts nor their order. Given features h, the labels
determine the last layer's training: its weights at step s are W - η Σ (p_j - y_j) h_jᵀ over earlier examples j, so
logits need only products of features. Features are class means of public examples (`mean_residuals`), random around
these means (`marginal_scores`), or fitted to the update (`fitted_scores`)."""

import torch
from torch import Tensor

from bench.attacks.labels.last_layer import LastLayer
from bench.attacks.solvers.lbfgs import Lbfgs

_CHUNK = 4096
_PRECISION = 1000.0  # energy per feature over the least variance of its residual
_FLOOR = 0.01  # of a coordinate's mean energy: least residual after the class means
_TINY = 1e-300


def mean_residuals(layer: LastLayer, sequences: Tensor, *, rescaled: bool = False) -> Tensor:
    """Score label sequences by simulation; a lower score (sequence,) means a more plausible sequence. The score is the
    squared difference between the last layer's observed gradient [dW | db] and the gradient that the sequence would
    cause.

    - `layer`: the last layer with its observed gradient; an example's simulated features are the mean over public
      examples of its class.
    - `sequences` (sequence, example): labels in the order of local steps.
    - `rescaled`: True fits a positive factor on dW and another on db. The factors undo clipping, and adjust for an
      example predicted better or worse than mean features suggest.

    The bias residual is weighted by the mean squared norm of features."""
    steps = layer.step_of
    flat = layer.means.flatten(0, 1)
    gram, logits = flat @ flat.mT, flat @ layer.weight.mT + layer.bias
    kept, has_bias = layer.kept[:, :-1].to(flat), layer.kept[:, -1].to(flat) * layer.bias_unit
    sent = layer.d_weight * kept
    across = sent @ flat.mT  # (class, mean)
    masked = None if layer.whole else torch.stack([(flat * row) @ flat.mT for row in kept])
    total = sent.square().sum()
    scores = []
    for rows in sequences.split(_CHUNK):
        at = steps * layer.classes + rows
        k = gram[at[:, :, None], at[:, None, :]]
        delta = simulate(layer, k, logits[at], rows)
        linear = (delta * across.mT[at]).sum((1, 2))
        if masked is None:
            square = (k * (delta @ delta.mT)).sum((1, 2))
        else:
            square = torch.stack(
                [
                    ((delta[:, None, :, c] @ masked[c][at[:, :, None], at[:, None, :]])[:, 0] * delta[..., c]).sum(1)
                    for c in range(layer.classes)
                ]
            ).sum(0)
        shown = delta.sum(1)
        of_bias = _residual(
            layer.d_bias.square() @ has_bias, shown @ (layer.d_bias * has_bias), shown.square() @ has_bias, rescaled
        )
        scores.append(_residual(total, linear, square, rescaled) + of_bias)
    return torch.cat(scores)


def _residual(energy: Tensor, product: Tensor, square: Tensor, rescaled: bool) -> Tensor:
    """Return ‖o - s·c‖² for vectors o and c, from `energy` ‖o‖², `product` o·c and `square` ‖c‖². s is 1 or, if
    `rescaled`, the s ≥ 0 with the least value."""
    if not rescaled:
        return energy - 2 * product + square
    return energy - product.clamp_min(0).square() / square.clamp_min(_TINY)


def marginal_scores(layer: LastLayer, sequences: Tensor) -> Tensor:
    """Score label sequences by likelihood; a lower score (sequence,) means a more plausible sequence. The score is -2
    log density of the last layer's observed gradient, up to a constant.

    - `layer`: the last layer with its observed gradient, of which every coordinate must have been sent.
    - `sequences` (sequence, example): labels in the order of local steps.

    An example's features are random around their class mean, with variance `layer.spread`. p - y (probabilities minus
    one-hot labels) is computed on the class means. The residual in each column of the weight gradient then has the
    covariance Σ spread · (p - y)(p - y)ᵀ over examples. A floor on the covariance covers noise and the error of p - y.
    The bias is a further column, weighted by the mean squared norm of features."""
    steps = layer.step_of
    flat, sent = layer.means.flatten(0, 1), layer.d_weight
    gram, logits = flat @ flat.mT, flat @ layer.weight.mT + layer.bias
    across, energy = flat @ sent.mT, sent @ sent.mT
    floor = max(_FLOOR * float(energy.trace()) / sent.numel(), layer.noise, _TINY)
    has_bias = layer.kept[:, -1].to(sent) * layer.bias_unit
    scores = []
    for rows in sequences.split(_CHUNK):
        at = steps * layer.classes + rows
        k = gram[at[:, :, None], at[:, None, :]]
        delta = simulate(layer, k, logits[at], rows)
        linear = delta.mT @ across[at]
        gap = (layer.d_bias - delta.sum(1)) * has_bias.sqrt()
        residual = energy - linear - linear.mT + delta.mT @ (k @ delta) + gap[:, :, None] * gap[:, None, :]
        covariance = layer.spread * delta.mT @ delta + floor * torch.eye(layer.classes, dtype=sent.dtype)
        root = torch.linalg.cholesky(covariance)
        distance = torch.cholesky_solve(residual, root).diagonal(dim1=1, dim2=2).sum(1)
        volume = 2 * root.diagonal(dim1=1, dim2=2).log().sum(1)
        scores.append(distance + sent.shape[1] * volume)
    return torch.cat(scores)


def simulate(layer: LastLayer, gram: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """Simulate how a guess of all labels would change the last layer in a client's local SGD, on given features. Return
    (p - y)/B of each example at its local step, (sequence, example, class), with probabilities p, one-hot labels y and
    the step's batch size B; the last layer's gradient follows from these values.

    - `layer`: the last layer, with the batch sizes and the learning rate of the local steps.
    - `gram` (sequence, example, example): scalar products of the examples' features.
    - `logits` (sequence, example, class): logits under the first weights.
    - `labels` (sequence, example): guessed labels, in the order of local steps.

    With momentum or a schedule (`layer.reach`), each value is multiplied by its step's share in the update."""
    targets = torch.nn.functional.one_hot(labels, logits.shape[-1]).to(logits)
    step_of, parts, first = layer.step_of, list[Tensor](), 0
    for step, batch in enumerate(layer.batches):
        at = slice(first, first + batch)
        z = logits[:, at]
        if parts:
            moved = torch.cat(parts, 1)
            if layer.reach is not None:
                moved = moved * layer.reach[step_of[:first], step].to(moved)[:, None]
            z = z - layer.rate * (gram[:, at, :first] + 1) @ moved
        parts.append((z.softmax(-1) - targets[:, at]) / batch)
        first += batch
    delta = torch.cat(parts, 1)
    if layer.reach is None:
        return delta
    last = layer.reach[:, -1].to(delta)
    return delta * (last / last.mean())[step_of, None]


def fitted_scores(layer: LastLayer, sequences: Tensor, *, evaluations: int = 40) -> Tensor:
    """Score label sequences by likelihood, with fitted features; a lower score (sequence,) means a more plausible
    sequence. The score is -2 log density of the last layer's observed gradient, up to a constant. For each sequence,
    the fit searches the most probable features.

    - `layer`: the last layer with its observed gradient.
    - `sequences` (sequence, example): labels in the order of local steps.
    - `evaluations`: limit on the fit's evaluations.

    An example's features vary around their class mean with the public variance. The noise variance comes from the
    column sums of the gradient, and is at least 1/1000 of the gradient's squared norm per example and feature: a fit
    down to rounding would not separate sequences. If all coordinates were sent, the search is limited to the span of
    the class means, the rows of dW and the rows of W; the best features lie in this span."""
    steps = layer.step_of
    kept = layer.kept[:, :-1].to(layer.weight)
    sent, means, weights = layer.d_weight * kept, layer.means, layer.weight
    if layer.whole:
        span = torch.cat([means.flatten(0, 1), sent, weights])
        basis = torch.linalg.svd(span, full_matrices=False).Vh.mT
        sent, means, weights = sent @ basis, means @ basis, weights @ basis
        kept = torch.ones_like(sent)
    has_bias = layer.kept[:, -1].to(sent) * layer.bias_unit
    energy = sent.square().sum() + layer.d_bias.square() @ has_bias
    least = float(energy) / (_PRECISION * layer.examples * layer.means.shape[-1])
    variance, deviation = max(layer.noise, least, _TINY), layer.spread**0.5
    centre = means[steps, sequences]

    def evaluate(u: Tensor) -> Tensor:
        h = centre + deviation * u.unflatten(1, centre.shape[1:])
        delta = simulate(layer, h @ h.mT, h @ weights.mT + layer.bias, sequences)
        gap = (sent - delta.mT @ h) * kept
        of_bias = (layer.d_bias - delta.sum(1)).square() @ has_bias
        objective: Tensor = (gap.square().sum((1, 2)) + of_bias) / variance + u.square().sum(1)
        return objective

    solver = Lbfgs(history=15, line_search="backtracking")
    u0 = centre.new_zeros(len(sequences), centre[0].numel())
    state = solver.init(u0)
    best = torch.full((len(sequences),), torch.inf, dtype=torch.float64)
    unit = 0.1 / (layer.examples * layer.means.shape[-1])  # the solver's tolerances are absolute
    for _ in range(evaluations):
        u = state.trial.detach().requires_grad_()
        loss = evaluate(u)
        (gradient,) = torch.autograd.grad(loss.sum(), u)
        best = torch.fmin(best, loss.detach())
        state = solver.step(state, unit * loss.detach(), unit * gradient)
    return best
