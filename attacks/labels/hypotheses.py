"""Label hypotheses: the most plausible labels behind each reading, best first, for an attack to try in turn.

One rule for one example and batches, masks, clipping and several local steps: labels are as plausible as the update
of the last layer that they would give, trained on features of public examples (`sequence_scores`).  An attack's own
loss chooses among the first few.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from bench.attacks.labels.infer import described_classes, labels_from
from bench.attacks.labels.last_layer import LastLayer, last_layers
from bench.attacks.labels.sequence_scores import fitted_scores, marginal_scores, mean_residuals
from bench.attacks.labels.sequences import all_sequences, any_sequence, count_sequences, descend, neighbours
from bench.rng import Key
from bench.trip import Reading

Tensors = Mapping[str, Tensor]
EXHAUSTIVE = 120_000  # hypotheses that are all simulated; beyond, coordinate descent
FITTED = 80  # of several steps, the best so many are judged again with fitted features
_CERTAIN = 2000  # of so many sequences the true one was always among the `FITTED` best
_ROUNDS, _EXPANDED = 3, 3  # of a search around the best fits: how often, and around how many
_DESCENTS = 6
_MOST = 64  # examples behind a reading; beyond, labels are counted alone
_EXACT = 1e-9  # noise, as a share of the mean energy of a coordinate, that is rounding
_RESCALED_BELOW = 0.5  # of the plain residual: where a fit up to a factor is below, its residuals count


def label_hypotheses(reading: Reading, observed: Tensors, count: int, key: Key | None = None) -> Tensor:
    """The `count` most plausible labels of each reading, (reading, hypothesis, example) int64, best first.

    `observed` name → (reading, *shape): the mean gradient of all steps, in gradient units.  Examples are in the order
    of the local steps, and in ascending order of labels within a step.  Granted labels are kept: what differs
    is their order over several steps.  Where there are fewer hypotheses than `count` they begin again.  -1 where
    the model has no last linear layer with an output for each class.  `key` draws starts of the search where
    there are too many hypotheses to try all.

    A single example of an update that was sent whole and without noise has its label for certain (Zhao et al.
    2020), and no other; all else is an estimate.  Where a client goes through its examples more than once,
    `tied_examples` says of each hypothesis which of its positions hold the same one.
    """
    described = described_classes(reading, observed)
    counted = labels_from(reading, observed, described)
    layers = last_layers(reading, observed) if reading.examples <= _MOST else None
    if layers is None:
        return counted[:, None].expand(-1, count, -1).clone()
    if described is not None:  # nor does the last layer show what hypotheses are scored by
        return _all_from(counted, reading.classes, count)
    return torch.stack(
        [
            _padded(_of_layer(layer, reading, row, counted[row], key or Key(seed=0)), count)
            for row, layer in enumerate(layers)
        ]
    )


def _all_from(counted: Tensor, classes: int, count: int) -> Tensor:
    """The labels themselves first; of single examples then the other classes, of batches the same again."""
    if counted.shape[1] > 1:
        return counted[:, None].expand(-1, count, -1).clone()
    others = (counted + torch.arange(classes)) % classes
    return others[:, torch.arange(count) % classes, None]


def _of_layer(layer: LastLayer, reading: Reading, row: int, counted: Tensor, key: Key) -> Tensor:
    """The hypotheses of one reading, (hypothesis, example), best first."""
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
        return counted[None]  # certain: every start has it
    return best


def _scores(layer: LastLayer, sequences: Tensor) -> Tensor:
    """How plausible; residuals on class-mean features after one step, up to a factor where that explains much more."""
    if layer.steps > 1 and layer.whole:
        return marginal_scores(layer, sequences)
    scores = mean_residuals(layer, sequences)
    if layer.steps == 1:
        rescaled = mean_residuals(layer, sequences, rescaled=True)
        if rescaled.min() < _RESCALED_BELOW * scores.min():
            return rescaled
    return scores


def _fitted(layer: LastLayer, sequences: Tensor, *, search: bool, labels_known: bool) -> Tensor:
    """Sequences (sequence, example) in the order of their fitted scores; with `search` their neighbours, too."""
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


def _padded(hypotheses: Tensor, count: int) -> Tensor:
    """The first `count` rows; from the best on again where there are fewer."""
    return hypotheses[torch.arange(count) % len(hypotheses)]
