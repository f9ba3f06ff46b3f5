"""Gradient matching as a problem for the solvers' loop: variables, starts and losses."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.attacks.objective.mismatch import Mismatch
from bench.attacks.objective.repeats import tied_examples
from bench.attacks.search import mixtures
from bench.attacks.search.preconditioner import PUBLIC, public_batches
from bench.attacks.search.prior import NoiseModel, Prior
from bench.attacks.search.space import Space
from bench.attacks.search.start import Start, start
from bench.attacks.solvers.base import Evaluate
from bench.gradients import group_gradients, one_hot
from bench.rng import Key
from bench.rows import flattened
from bench.trip import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingProblem:
    """Gradient matching as a problem for a solver; a row is a reading (observed update) of the batch. A row's variables
    are the inputs of its examples, followed by label logits if `labels` is None. With `space`, the variables of this
    search space replace the inputs. The *zero-gradient loss* is the loss of a candidate with a zero gradient."""

    mismatch: Mismatch
    """Distance between candidates and the readings."""
    observed: list[dict[str, Tensor]]
    """Observations (repeated reports on the same examples), each name → (reading, *shape)."""
    labels: Tensor | None
    """Labels (reading, example), or None for label logits as variables."""
    start_kind: Start
    """Distribution of the first candidates, such as "gaussian"."""
    prior: Prior
    """Weights of the published priors on inputs, such as total variation."""
    noise: NoiseModel
    """Noise in the defense's description, and the weight of the prior that it requires."""
    key: Key
    """Key for the random starts."""
    shuffled: bool = False
    """True if restarts try other orders of the labels."""
    space: Space | None = None
    """Search space for inputs; None searches the inputs themselves."""
    initial: Tensor | None = None
    """Starts (reading, variable) in place of `start_kind`; None takes `start_kind`."""
    energy_weight: Tensor | None = None
    """Weight (reading,) in the loss of the prior term -log p, which `space` defines; None leaves this term out."""
    tolerance: float | None = None
    """Share of the zero-gradient loss at which the solver may stop. The solver sees the loss divided by this share,
    because its tolerances are absolute. None: the method `loss_scale` gives the factor on the loss."""
    distinct: int | None = None
    """Number of distinct examples behind a reading; repeated examples share their variables. None: all are distinct."""
    mixed: bool = False
    """True if variables describe the original examples behind mixtures (mixup), in the search space `Mixed`."""

    @property
    def reading(self) -> Reading:
        """The attacked batch of readings."""
        return self.mismatch.reading

    @property
    def examples(self) -> int:
        """Number of examples per reading (observed update) that the solver searches. If a client repeats examples, only
        distinct examples count."""
        return self.reading.examples if self.distinct is None else self.distinct

    @property
    def values(self) -> int:
        """Number of the solver's variables per example, without label logits."""
        return self.reading.public_mean.numel() + (self.examples if self.mixed else 0)

    @property
    def like(self) -> Tensor:
        """Template for new tensors: a tensor with the dtype and device of the solver's variables; its values have no
        meaning."""
        return next(iter(self.reading.values.values()))

    def start(self, row: int, restart: int) -> Tensor:
        if self.initial is not None:
            return self.initial[row]
        reading = self.reading
        x = start(self.start_kind, reading, row, restart, self.key)[: self.examples].flatten(1)
        x = (x if self.space is None else self.space.variables(x)).flatten()
        if self.labels is None:
            random = self.key.generator("label", reading.indices[row], restart)
            logits = torch.from_numpy(random.standard_normal((reading.examples, reading.classes)))
            x = torch.cat([x, logits.flatten().to(x.dtype)])
        return x.to(self.like)

    def subset(self, rows: Tensor, restarts: Tensor) -> Evaluate:
        observed = [_rows(target, rows) for target in self.observed]
        labels = self.ordered_labels(rows, restarts)
        known = None
        if labels is not None:
            known = one_hot(labels, self.reading.classes, self.like.dtype).to(self.like.device)
        weight = None if self.energy_weight is None else _at(self.energy_weight, rows)

        share = self._share(rows)
        mismatch = self.mismatch
        if self.reading.statistics is not None:  # a value per reading, beside the observations
            mismatch = replace(mismatch, reading=self.reading.of(rows.tolist()))

        def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
            x = x.detach().requires_grad_()
            inputs, energy, logits, shares = self._split(x)
            targets = known if logits is None else logits.softmax(-1)
            assert targets is not None
            at_positions = self._at_positions(inputs, labels)
            if shares is not None:
                at_positions, targets = _mixed(shares, at_positions), _mixed(shares, targets)
            loss = mismatch(observed, at_positions, targets, differentiable=True) + self.prior(inputs)
            loss = loss + self.noise.prior(inputs, self.reading.value_range, share)
            if weight is not None:
                loss = loss + weight * energy
            (gradient,) = torch.autograd.grad(loss.sum(), x)
            return loss.detach(), gradient

        return evaluate

    def zero_gradient_loss(self, rows: Tensor) -> Tensor:
        losses = [self.mismatch.distance.of_zero(_rows(target, rows)) for target in self.observed]
        return torch.stack(losses).mean(0)

    def noise_floor(self, rows: Tensor) -> Tensor:
        """Return the loss (row,) that the defense's noise causes at the true examples, for the readings (observed
        updates) at the positions `rows`. The value is the noise variance times the number of nonzero coordinates. For
        the L1 distance, the mean magnitude replaces the variance; for the cosine distance, the value is 0."""
        kind = self.mismatch.distance.kind
        if self.noise.variance == 0 or kind == "cosine":
            return torch.zeros_like(self.zero_gradient_loss(rows))
        counts = [(flattened(_rows(target, rows), 1) != 0).sum(1) for target in self.observed]
        variance = self.variances(rows)
        return (variance / 2 if kind == "l1" else variance.square()).sqrt() * torch.stack(counts).to(self.like).mean(0)

    def variances(self, rows: Tensor) -> Tensor:
        """Return the variance of the defense's noise per gradient coordinate, (row,), for the readings (observed
        updates) at the positions `rows`. The value comes from the defense's description; if the description gives only
        a bound, the value is estimated from the reading (`NoiseModel.of_rows`)."""
        return torch.stack([self.noise.of_rows(_rows(target, rows)) for target in self.observed]).mean(0)

    def _share(self, rows: Tensor) -> Tensor | float:
        """Return the factor on the prior's weight: (row,), or 1 or 0. For bounded noise, the factor is the estimated
        variance divided by the bound. For the cosine distance, the factor is divided by 2‖o‖² with the reading's
        gradient o: near the truth, the cosine distance is the squared distance divided by 2‖o‖²."""
        share: Tensor | float = 1.0
        # in our test (digits, Gaussian 1e-4, GradInv, 24 victims), total variation gave .79, the prior or both .71
        if self.mismatch.distance.kind == "cosine" and self.prior.total_variation > 0:
            return 0.0
        if self.noise.bound and self.noise.variance > 0:
            share = self.variances(rows) / self.noise.variance
        if self.mismatch.distance.kind == "cosine" and self.noise.weight > 0:
            norms = [self.mismatch.distance.squared_norm(_rows(target, rows)) for target in self.observed]
            squared = torch.stack(norms).mean(0)
            share = share / (2 * squared.clamp_min(torch.finfo(squared.dtype).tiny))
        return share

    def in_range(self, x: Tensor) -> Tensor:
        low, high = self.reading.value_range
        return self.split(x)[0].flatten(1) / (high - low)

    def loss_scale(self, rows: Tensor) -> Tensor:
        """Return the factor (row,) from the loss to the normalised loss that the solver gets, for the readings
        (observed updates) at the positions `rows`. The solver's stopping tolerances are absolute: without the factor, a
        faint reading (clipped, or of an example predicted with confidence) would meet them immediately.

        - With the field `tolerance`: this share of a zero gradient's loss becomes 1.
        - Without the field `space`, or without public labels: 1.
        - Otherwise: the squared norm of public gradients divided by the reading's squared norm, at least 1."""
        zero_loss, reading, like = self.zero_gradient_loss(rows), self.reading, self.like
        if self.tolerance is not None:
            return 1 / (self.tolerance * zero_loss).clamp_min(torch.finfo(zero_loss.dtype).tiny)
        labelled = len(reading.public_labels) > 0 and not bool((reading.public_labels < 0).any())
        if self.space is None or not labelled:
            return torch.ones_like(zero_loss)
        count = min(PUBLIC, len(reading.public_inputs))
        at = public_batches(reading, range(count))
        inputs = reading.public_inputs[at].to(like)
        targets = one_hot(reading.public_labels[at], reading.classes, like.dtype)
        weights = {name: value[0] for name, value in reading.weights.items()}
        public = group_gradients(reading.model, weights, inputs, targets.to(like.device))
        usual = self.mismatch.distance.of_zero(public).mean() / reading.examples
        return (usual / zero_loss.clamp_min(torch.finfo(zero_loss.dtype).tiny)).clamp_min(1)

    def ordered_labels(self, rows: Tensor, restarts: Tensor) -> Tensor | None:
        """Return labels (row, example) in the order of local steps, for the readings (observed updates) at the
        positions `rows`; None if labels are variables of the solver. `restarts` (row,) are the readings' restart
        numbers. With the field `shuffled`, restart 0 takes ascending labels and other restarts take a random order,
        because an update hides the order over local steps."""
        if self.labels is None or not self.shuffled:
            return None if self.labels is None else self.labels[rows.cpu()]
        orders = []
        for row, restart in zip(rows.tolist(), restarts.tolist(), strict=True):
            random = self.key.generator("label-order", self.reading.indices[row], restart)
            count = self.reading.examples
            orders.append(self.labels[row][random.permutation(count) if restart else torch.arange(count)])
        return torch.stack(orders)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Split the variables `x` (row, variable) into inputs (row, example, *shape) and label logits (row, example,
        class); logits are None if labels are known."""
        inputs, _, logits, _ = self._split(x)
        return inputs, logits

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Split a solver's variables `x` (row, variable) into four parts. The search space, the field `space`, first
        maps variables to inputs; without a space, variables are inputs.

        - inputs (row, example, *shape)
        - -log p (row,), summed over examples, with the space's prior density p; 0 without a prior
        - label logits (row, example, class); None if labels are known
        - mixing matrix (row, mixture, original) if the field `mixed` is True (mixup); else None"""
        reading, examples, size = self.reading, self.examples, self.values
        variables = x[:, : examples * size].reshape(len(x), examples, size)
        inputs, energy = variables, x.new_zeros(len(x), examples)
        if self.space is not None:
            inputs, energy = self.space.with_energy(variables)
        inputs, shares = mixtures.split(inputs, examples) if self.mixed else (inputs, None)
        inputs, logits = inputs.reshape(len(x), examples, *reading.shape), None
        if self.labels is None:
            logits = x[:, examples * size :].reshape(len(x), reading.examples, reading.classes)
        return inputs, energy.sum(1), logits, shares

    def _at_positions(self, inputs: Tensor, labels: Tensor | None) -> Tensor:
        if labels is None or self.examples == self.reading.examples:
            return inputs
        ties = tied_examples(labels, self.examples)
        ties = ties.where(ties >= 0, torch.arange(labels.shape[1]) % self.examples)
        return inputs[torch.arange(len(inputs))[:, None], ties]


def _mixed(shares: Tensor, of: Tensor) -> Tensor:
    return torch.einsum("rmo,ro...->rm...", shares, of)


def _rows(tensors: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    return {name: _at(value, rows) for name, value in tensors.items()}


def _at(values: Tensor, rows: Tensor) -> Tensor:
    return values[rows.to(values.device)]
