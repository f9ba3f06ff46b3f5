"""Label hypotheses: the most plausible labels behind each reading, best first.

A hypothesis is scored by the last-layer update that its labels would cause, simulated on features of public examples
(`sequence_scores`). The same rule covers single examples, batches, masks, clipping and several local steps. An attack's
loss then chooses among the first few hypotheses."""

import torch
from torch import Tensor

from bench.attacks.labels.infer import labels_from
from bench.attacks.labels.last_layer import LastLayer, last_layers
from bench.attacks.labels.sequence_scores import fitted_scores, marginal_scores, mean_residuals
from bench.attacks.labels.sequences import all_sequences, any_sequence, count_sequences, descend, neighbours
from bench.rng import Key
from bench.trip import Reading, Tensors

EXHAUSTIVE = 120_000  # hypotheses simulated exhaustively; above, coordinate descent
FITTED = 80  # best hypotheses judged again with fitted features, after several steps
_CERTAIN = 2000  # sequences among which the truth was always in the `FITTED` best
_ROUNDS, _EXPANDED = 3, 3  # search around the best fits: rounds, and fits per round
_DESCENTS = 6
_MOST = 64  # examples behind a reading; above, labels are only counted
_EXACT = 1e-9  # share of a coordinate's mean energy; lower noise is rounding
_RESCALED_BELOW = 0.5  # of the plain residual; a fit up to a factor counts if its residual is lower


def label_hypotheses(
    reading: Reading, observed: Tensors, count: int, key: Key | None = None, described: Tensors | None = None
) -> Tensor:
    """Return the `count` most plausible label lists of each reading in the batch `reading`, best first: (reading,
    hypothesis, example) int64.

    - `observed`: the readings as mean gradients over all local steps, name → (reading, *shape).
    - `key`: draws the starts of a search if there are too many hypotheses to score all; None takes seed 0.
    - `described`: simulated readings of public batches with known labels, from `described_classes`, compared with the
      readings; None infers labels from the last layer's gradient.

    Examples are in the order of local steps, with labels ascending within a step. Granted labels are kept: hypotheses
    then differ only in the order of labels over steps. If fewer than `count` hypotheses exist, they are repeated from
    the first. All labels are -1 if the model's last layer is not linear with an output per class. If a client repeats
    its examples, `tied_examples` (`objective/repeats.py`) gives the positions with the same example."""
    counted = labels_from(reading, observed, described)
    if described is not None:  # what turns the rule's signal also breaks the scores of hypotheses
        return _all_from(counted, reading.classes, count)
    layers = last_layers(reading, observed) if reading.examples <= _MOST else None
    if layers is None:
        return counted[:, None].expand(-1, count, -1).clone()
    drawn = [_of_layer(layer, reading, row, counted[row], key or Key(seed=0)) for row, layer in enumerate(layers)]
    return torch.stack([each[torch.arange(count) % len(each)] for each in drawn])


def _all_from(counted: Tensor, classes: int, count: int) -> Tensor:
    if counted.shape[1] > 1:
        return counted[:, None].expand(-1, count, -1).clone()
    others = (counted + torch.arange(classes)) % classes
    return others[:, torch.arange(count) % classes, None]


def _of_layer(layer: LastLayer, reading: Reading, row: int, counted: Tensor, key: Key) -> Tensor:
    known = None if reading.labels is None else reading.labels[row]
    if not torch.isfinite(layer.d_weight).all():
        return counted[None]
    many = count_sequences(layer, known)
    if many <= EXHAUSTIVE:
        sequences = all_sequences(layer, known)
        scores = _scores(layer, sequences)
    else:
        draws = [key.generator("label-sequence", reading.indices[row], n) for n in range(_DESCENTS)]
        starts = [any_sequence(layer, known, draw) for draw in draws]
        if layer.distinct == layer.examples:
            starts[0] = counted
        sequences, scores = descend(layer, lambda rows: _scores(layer, rows), torch.stack(starts), known is not None)
    best = sequences[scores.argsort(stable=True)]
    if layer.steps > 1:
        return _fitted(layer, best[:FITTED], search=many > _CERTAIN, labels_known=known is not None)
    if layer.examples == 1 and layer.whole and layer.noise <= _EXACT * layer.d_weight.square().mean():
        return counted[None]  # certain for every start
    return best


def _scores(layer: LastLayer, sequences: Tensor) -> Tensor:
    """Score label sequences (sequence, example) by the fit to `layer`; lower is more plausible."""
    if layer.steps > 1 and layer.whole:
        return marginal_scores(layer, sequences)
    scores = mean_residuals(layer, sequences)
    if layer.steps == 1:
        rescaled = mean_residuals(layer, sequences, rescaled=True)
        if rescaled.min() < _RESCALED_BELOW * scores.min():
            return rescaled
    return scores


def _fitted(layer: LastLayer, sequences: Tensor, *, search: bool, labels_known: bool) -> Tensor:
    scores, expanded = fitted_scores(layer, sequences), set[tuple[int, ...]]()
    for _ in range(_ROUNDS if search else 0):
        fresh = [
            row for row in sequences[scores.argsort(stable=True)[:_EXPANDED]] if tuple(row.tolist()) not in expanded
        ]
        if not fresh:
            break
        expanded.update(tuple(row.tolist()) for row in fresh)
        near = torch.cat([neighbours(layer, row, labels_known) for row in fresh])
        met = {tuple(row) for row in sequences.tolist()}
        new = sorted({tuple(row) for row in near.tolist()} - met)
        if not new:
            break
        near = torch.tensor(new)
        near = near[_scores(layer, near).argsort(stable=True)[:FITTED]]
        sequences = torch.cat([sequences, near])
        scores = torch.cat([scores, fitted_scores(layer, near)])
    return sequences[scores.argsort(stable=True)]
