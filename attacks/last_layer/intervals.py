"""Intervals between the thresholds for a class score in several rounds, and the gradients from the examples inside.

An example's score is f, a round's threshold τ. Below the last layer, the batch's gradient G(τ) is the sum of ∇f over
other classes' examples with f > τ, minus the sum over the class's examples with f < τ. So for thresholds τ < υ, G(τ) -
G(υ) is the sum of ∇f over all examples with a score between both, in any class; the gradients at the class's bias give
their number."""

from dataclasses import dataclass
from itertools import pairwise
from math import log10

import torch
from scipy.stats import binom
from torch import Tensor

from bench.attacks.objective.mismatch import by_weights, mean_observation, observations
from bench.trip import Reading, Tensors

_SHARES = 64  # tried shares of an interval's examples above a new threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Examples separated by a class score over several rounds of the attack `fishing`. In each round the server sends
    another threshold; the difference between the gradients of two rounds belongs to the examples with a score between
    both thresholds, an interval. Intervals are ordered from the highest scores to the lowest."""

    thresholds: Tensor
    """The rounds' thresholds, from high to low, (round,)."""
    gradients: tuple[Tensors, ...]
    """Gradient from the examples with a score between two neighbouring thresholds, name → (reading, *shape), divided by
    the number of examples in a batch; an item for each interval."""
    counts: Tensor
    """Number of examples in each interval, (reading, interval)."""

    @classmethod
    def of(cls, reading: Reading, bias: str, chosen: int) -> "Intervals":
        """Compute each interval's gradient and number of examples from the readings of several rounds.

        - `reading`: readings whose rounds differ only in the bias of the last layer, which holds the threshold.
        - `bias`: name of the last layer's bias.
        - `chosen`: number of the class to whose logit the threshold belongs."""
        rounds = [mean_observation(observations(part)) for part in by_weights(reading)]
        thresholds = -reading.weights[bias][:, chosen].double().cpu()
        order = thresholds.argsort(descending=True).tolist()
        gradients = tuple(
            {name: rounds[low][name] - value for name, value in rounds[high].items()} for high, low in pairwise(order)
        )
        counts = [(each[bias][:, chosen] * reading.examples).nan_to_num(0.0).round().cpu() for each in gradients]
        return cls(
            thresholds=thresholds[order],
            gradients=gradients,
            counts=torch.stack(counts, 1).clamp(0, reading.examples) if counts else torch.zeros(len(reading), 0),
        )

    def next_threshold(self, scores: Tensor, examples: int, most: int) -> float:
        """Choose the threshold for the server's next round: it maximises the expected number of examples in intervals
        small enough for a search.

        - `scores` (example,): public examples' class scores, in the thresholds' unit.
        - `examples`: number of examples behind a reading.
        - `most`: largest number of examples in an interval that a search can invert."""
        edges = [*self.thresholds.double().tolist(), -torch.inf]
        counts = torch.cat([self.counts, examples - self.counts.sum(1, keepdim=True)], 1).clamp_min(0).round().double()
        every_share = torch.logspace(-log10(2 * examples), 0, _SHARES, dtype=torch.float64)
        best, chosen = -1.0, float(edges[0])
        for number, (high, low) in enumerate(pairwise(edges)):
            inside = scores[(scores > low) & (scores <= high)]
            if not len(inside):
                continue
            last = number == len(edges) - 2  # below all thresholds: no round has its gradient
            shares = every_share if last else every_share[:-1]
            levels = inside.quantile(1 - shares)
            if last:
                levels[-1] = scores.min() - 10 * (scores.max() - scores.min())
            gains = _gain(counts[:, number], shares, most, known=not last).mean(0)
            if float(gains.max()) > best:
                best, chosen = float(gains.max()), float(levels[gains.argmax()])
        return chosen


def _gain(counts: Tensor, shares: Tensor, most: int, *, known: bool) -> Tensor:
    """Return the expected number of further examples (reading, share) in intervals with at most `most` examples, if a
    threshold splits `counts` (reading,) examples, with the `shares` above. `known`: the whole interval's gradient is
    known, so both parts are known after the split."""
    above = torch.arange(int(counts.max()) + 1, dtype=torch.float64)
    weight = torch.from_numpy(binom.pmf(above.numpy(), counts[:, None, None].numpy(), shares[:, None].numpy()))
    below = counts[:, None, None] - above
    solved = above * (above <= most)
    if known:
        solved = solved + below * (below <= most) - counts[:, None, None] * (counts[:, None, None] <= most)
    expected: Tensor = (weight * solved).sum(2)
    return expected
