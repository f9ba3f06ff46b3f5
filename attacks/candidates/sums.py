"""Scores of candidates behind a mean of clients. Each client sends a random choice of a few values per coordinate; with
all other clients' updates known, the mean shows the choices."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from bench.attacks.objective.choices import all_sums, few_sums, flat, rounding
from bench.trip import Description

Tensors = Mapping[str, Tensor]
_COORDINATES = 256  # compared; a single coordinate with the candidate's own value nearly decides
_NEAREST = 8  # sums compared with a mean; others are too far
_LEAST = 1e-6  # probability assumed for a mean that the candidate cannot cause


def by_sums(description: Description, others: Tensors, observed: Tensors) -> Callable[[Tensors], Tensor] | None:
    """Name the first client (the victim) behind a mean over clients that each send a random choice of a few values per
    coordinate: return a function that scores guesses at the victim's update, if the other updates are known. The
    function maps guesses, name → (row, *shape), to log likelihoods of the observed mean, (row,). The likelihood covers
    256 coordinates: nonzero coordinates of the mean first, then coordinates with the largest expected messages.

    - `description`: the defense's description; it gives the possible values and their probabilities.
    - `others`: known updates of the other clients, name → (client, *shape).
    - `observed`: the mean, name → (1, *shape).

    Return None if a message may take more than a few values per coordinate, or if the other clients' messages have more
    than 4096 possible sums."""
    known = few_sums(description, others)
    if known is None:
        return None
    chances, values = flat(known.chances), flat(known.values)
    mean = torch.cat([value.flatten() for value in observed.values()]).double()
    typical = (chances * values.abs()).sum((0, 1))
    at = (typical + (mean != 0) * typical.sum()).topk(min(_COORDINATES, len(mean))).indices
    chances, values = chances[..., at], values[..., at]
    sums, weights = all_sums(values, chances)
    total = (values.shape[1] + 1) * mean[at]
    precision = rounding(values, total)
    order = sums.argsort(0)
    ordered, weights = (each.gather(0, order).T.contiguous() for each in (sums, weights))
    window = torch.arange(min(_NEAREST, len(sums)))

    def scores(updates: Tensors) -> Tensor:
        own = description.outcomes(updates)
        assert own is not None
        own_values, own_chances = (flat(each)[..., at] for each in (own.values, own.chances))
        left = (total - own_values).flatten(0, 1).T.contiguous()  # (coordinate, outcome · row)
        first = (torch.searchsorted(ordered, left) - _NEAREST // 2).clamp(0, len(sums) - len(window))
        near = (first[..., None] + window).flatten(1)
        at_sums, mass = (
            each.gather(1, near).unflatten(1, first.shape[1:] + window.shape) for each in (ordered, weights)
        )
        apart = (left[..., None] - at_sums) / precision[:, None, None]
        likelihood = (mass * torch.exp(-0.5 * apart.square())).sum(-1)
        possible = likelihood.T.unflatten(0, own_values.shape[:2])
        each: Tensor = (own_chances * possible).sum(0)
        return each.clamp_min(_LEAST).log().sum(-1)

    return scores
