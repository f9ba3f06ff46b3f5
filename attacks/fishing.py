"""Fishing: a server chooses the last layer so that a batch's gradient below is that of few examples."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.attacks.base import Attack, closed_form
from bench.attacks.candidates.naming import most_likely
from bench.attacks.labels.head import Head
from bench.attacks.last_layer.fished import fished
from bench.attacks.last_layer.intervals import Intervals
from bench.attacks.last_layer.score import NO_HEAD, PUBLIC, above_all, class_score, features, last_layer
from bench.attacks.objective.mismatch import mean_observation, observations, same_weights
from bench.attacks.objective.rescale import rescaled
from bench.attacks.search.probable import most_probable
from bench.parameters import parameter
from bench.rng import Key
from bench.rows import flattened
from bench.trip import Budget, Reading, Reconstruction, Server, Tensors

_STARTS, _TOLERANCE = 3, 1e-9  # as in `map`


@dataclass(frozen=True, kw_only=True)
class Fishing(Attack):
    """Attack by a server that chooses the weights of the last layer only, in any model with a linear last layer. The
    weights leave a gradient in the layers below to few examples of a batch, the *active* examples; at best a single
    example is active. A search for the most probable examples, as in `map`, then inverts this gradient.

    The last layer's weights are zero except for those of a class c. The logit for c is a class score f(x), times a
    large gain, minus a threshold τ. The loss's derivative by this logit is p - y, with the probability p for c, and y =
    1 for examples of class c, otherwise 0. With a large gain p is 0 or 1, so p - y differs from 0 only if the model
    misclassifies the example: for examples of class c with f < τ, and for other examples with f > τ. The gradient by
    the bias for c is the difference between the two numbers, divided by the batch size.

    The server chooses c and τ on public examples, so that the probability of a single active example among B is
    greatest. If the share a of examples is active, this probability is B a (1 - a)^(B - 1), at most about 1/e for the
    chosen weights. For τ above all scores, the active examples are those of class c.

    In several rounds with other weights (`server = "rounds"`), each round has another threshold. The difference between
    two rounds' gradients is the gradient of the examples with a score between both thresholds (an interval). The first
    threshold lies above all scores. The server chooses each further threshold after the earlier rounds, whose bias
    gradients show the number of examples in each interval. Most examples should lie in intervals with at most `most`
    examples.

    With the grant `gallery` (a list of candidates), the attack also names the candidates that are most likely behind
    each gradient from few examples.

    Departure: the paper's score is a single feature; here a ridge regression predicts the class from all features."""

    reference = "Wen et al. 2022, ICML (Fishing for User Data)"
    most_examples = 1024
    servers = ("weights", "rounds")

    gain: float = parameter(
        1e4, "factor on the class score", unit="logits per standard deviation of the score", source="ours", above=0
    )
    most: int = parameter(
        4, "largest number of active examples that are inverted together", source="ours", low=1, high=16
    )

    def craft(self, server: Server, key: Key) -> dict[str, Tensor]:
        last, known = features(server)
        labels = server.public_labels[:PUBLIC]
        score, threshold, chosen = class_score(known, labels, server.classes, server.examples, key)
        if server.rounds > 1:
            scores = known @ score
            threshold = above_all(scores)
            if server.seen is not None:
                intervals = Intervals.of(server.seen, last.name("bias"), chosen)
                threshold = intervals.next_threshold(self.gain * scores, server.examples, self.most) / self.gain
        weight, bias = (torch.zeros_like(server.weights[last.name(name)]) for name in ("weight", "bias"))
        weight[chosen] = (self.gain * score).to(weight)
        bias[chosen] = -self.gain * threshold
        return {**server.weights, last.name("weight"): weight, last.name("bias"): bias}

    def refuses(self, reading: Reading) -> str | None:
        if reading.steps > 1:
            return "the weights of a later local step are not those of the server"
        if reading.linked != "vector":
            return "it matches whole vectors, and this reading's coordinates are not linked"
        last = last_layer(reading)
        if last is None:
            return NO_HEAD
        if int((reading.weights[last.name("weight")] != 0).any(2).any(0).sum()) != 1:
            return "the last layer has more rows than one; fishing needs the weights of its own craft"
        return None

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        last = last_layer(reading)
        assert last is not None
        chosen = int((reading.weights[last.name("weight")][0] != 0).any(1).nonzero()[0])
        mean = reading.public_mean.repeat(len(reading), reading.examples, *[1] * len(reading.shape))
        gradients = _gradients(reading, last, chosen)
        finite = torch.stack([flattened(each, 1).isfinite().all(1) for each in gradients]).all(0)
        whole = closed_form(reading, mean, status=tuple("ok" if each else "nan" for each in finite.tolist()))
        filled, named = [0] * len(reading), torch.full((len(reading), reading.examples), -1)
        for count in range(1, min(self.most, reading.examples) + 1):
            rows, gradient = _with_active(reading, gradients, finite, last.name("bias"), chosen, count)
            if not rows:
                continue
            part = rescaled(fished(reading.of(rows), gradient, last, chosen, count))
            if reading.gallery_inputs is not None:
                _name(named, rows, part, budget, key)
            result = most_probable(part, budget, key, starts=_STARTS, tolerance=_TOLERANCE)
            of_class = (gradient[last.name("bias")][:, chosen] < 0) if same_weights(reading) else None
            whole = _with(whole, rows, filled, result, chosen, of_class)
        return whole if reading.gallery_inputs is None else replace(whole, named=named)


def _gradients(reading: Reading, last: Head, chosen: int) -> tuple[Tensors, ...]:
    """Return gradients from few active examples, name → (reading, *shape): the reading itself, or for each interval
    between the thresholds in several rounds."""
    if same_weights(reading):
        return (mean_observation(observations(reading)),)
    return Intervals.of(reading, last.name("bias"), chosen).gradients


def _with_active(
    reading: Reading, gradients: tuple[Tensors, ...], finite: Tensor, bias: str, chosen: int, count: int
) -> tuple[list[int], Tensors]:
    """Return the readings' rows with `count` active examples in any item of `gradients`, a row for each such gradient,
    and these gradients, name → (row, *shape)."""
    found = [
        (row, each)
        for each in gradients
        for row, active in enumerate((each[bias][:, chosen] * reading.examples).abs().round().tolist())
        if finite[row] and active == count
    ]
    rows = [row for row, _ in found]
    return rows, {name: torch.stack([each[name][row] for row, each in found]) for name in gradients[0] if found}


def _name(named: Tensor, rows: list[int], part: Reading, budget: Budget, key: Key) -> None:
    """Write the candidates most likely behind `part` into `named` (reading, example) at the `rows`, behind the examples
    already named in each reading."""
    assert part.gallery_labels is not None
    every = replace(part, gallery_labels=torch.zeros_like(part.gallery_labels))  # the model has two classes
    for row, found in zip(rows, most_likely(every, budget, key)[0][:, : part.batch], strict=True):
        start = int((named[row] >= 0).sum())
        free = slice(start, min(start + len(found), named.shape[1]))
        named[row, free] = found[: free.stop - free.start].to(named)


def _with(
    whole: Reconstruction,
    rows: list[int],
    filled: list[int],
    part: Reconstruction,
    chosen: int,
    of_class: Tensor | None,
) -> Reconstruction:
    """Add the examples and costs in `part` to `whole` at the `rows`, behind the examples already `filled` in each
    reading, which are counted. Examples get the label `chosen` if `of_class` (row,) is true."""
    inputs, labels, status = whole.inputs.clone(), whole.labels.clone(), list(whole.status)
    count, examples = part.inputs.shape[1], whole.inputs.shape[1]
    part = replace(part, evaluations=-(-part.evaluations * count // examples))  # an evaluation is one of all examples
    costs = {name: getattr(whole, name).clone() for name in ("loss", "evaluations", "outer", "restarts")}
    for number, row in enumerate(rows):
        free = slice(filled[row], min(filled[row] + count, examples))
        inputs[row, free] = part.inputs[number, : free.stop - free.start].to(inputs)
        if of_class is not None and of_class[number]:
            labels[row, free] = chosen
        filled[row] = free.stop
        for name, value in costs.items():
            value[row] += getattr(part, name)[number].to(value)
        if part.status[number] != "ok":
            status[row] = part.status[number]
    return replace(whole, inputs=inputs, labels=labels, status=tuple(status), **costs)
