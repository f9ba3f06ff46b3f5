"""Search for the candidates behind an update of several local steps, whose order in the steps is unknown."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bench.attacks.candidates.exchange import apart
from bench.attacks.candidates.listed import by_label, candidates
from bench.attacks.objective.known import known_examples
from bench.attacks.objective.mismatch import Mismatch
from bench.trip import Reading, Tensors, repeated

_OPTIONS = 64  # candidates per label, at most
_SWEEPS = 6  # at most; each changes every place once
_KICKS = 4  # at most
_KICKED = 0.6  # of a set's members
_AT_ONCE = 1 << 22  # numbers in memory for compared sets
_EXACT = 1e-13  # of a zero update's distance: rounding


def refused(reading: Reading) -> str | None:
    """Return the reason, in a few words, why local steps of `reading` cannot be simulated on candidates, or None."""
    if reading.stepwise and reading.senders > 1:
        return "behind a mean over clients, it does not handle several local steps"
    return None


def likelihoods(mismatch: Mismatch, observed: Sequence[Tensors], row: int) -> Tensor:
    """Rate each candidate in the gallery (the granted list) as the first example of an update, whose other examples are
    known (the grant `mates`): minus the distance after simulated local steps, (candidate,). Candidates with another
    label than granted get -inf.

    - `mismatch`: distance between simulated and actual updates; it holds the readings.
    - `observed`: repeated reports of the update, each name → (1, *shape).
    - `row`: the update's position in the batch of readings."""
    reading = mismatch.reading
    assert reading.gallery_labels is not None
    weights = {name: value[0] for name, value in reading.weights.items()}
    known = known_examples(reading, row, weights)
    members = torch.arange(len(reading.gallery_labels))
    if reading.labels is not None:
        members = members[reading.gallery_labels.cpu() == reading.labels[row, 0].cpu()]
    inputs, targets = candidates(reading, members)
    whole = [
        torch.cat([own[:, None], others.expand(len(own), *others.shape[1:])], 1)
        for own, others in ((inputs, known.inputs), (targets, known.targets))
    ]
    scores = torch.full((len(reading.gallery_labels),), -torch.inf)
    scores[members] = -_distances(mismatch, observed, *whole).float()
    return scores


def most_likely(
    mismatch: Mismatch,
    observed: Sequence[Tensors],
    scores: Tensor,
    labels: Tensor | None,
    generator: np.random.Generator,
    *,
    until: float = math.inf,
) -> Tensor:
    """Search for the most likely examples behind an update of several local steps. Each set of candidates is trained on
    step by step, and its update is compared. The search exchanges candidates, and the places of two candidates in
    different steps, while the distance falls; it starts again after random exchanges. Return positions in the gallery,
    the granted list of candidates, in the order of the steps: (example,).

    - `mismatch`: distance between simulated and actual updates; it holds the readings with the gallery.
    - `observed`: repeated reports of the update, each name → (1, *shape).
    - `scores` (candidate,): a first score for each candidate; candidates with the highest scores enter the search.
    - `labels` (example,): the examples' labels in any order, or None if unknown.
    - `generator`: draws the random exchanges.
    - `until`: time of `time.monotonic` at which the search ends with its best set."""
    ranked, counts = by_label(mismatch.reading, scores, labels)
    search = _Steps(
        mismatch=mismatch,
        observed=observed,
        lists=[each[: max(_OPTIONS, count)] for each, count in zip(ranked, counts, strict=True)],
        exact=_EXACT * _zero(mismatch, observed[0]),
        until=until,
    )
    start = torch.cat([each[:count] for each, count in zip(ranked, counts, strict=True)])
    least, best = search.descend(start)
    for _ in range(_KICKS):
        if least <= search.exact or time.monotonic() > until:
            break
        loss, members = search.descend(search.kicked(best, generator))
        if loss <= least:
            again, least, best = set(best.tolist()) == set(members.tolist()), loss, members
            if again:
                break
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    mismatch: Mismatch
    observed: Sequence[Tensors]
    lists: Sequence[Tensor]  # candidates by label, (candidate,) each
    exact: float
    until: float

    def losses(self, sets: Tensor) -> Tensor:
        """Return the distance of each set's update, for positions in the gallery `sets` (set, example): (set,)."""
        inputs, targets = candidates(self.mismatch.reading, sets.flatten())
        return _distances(
            self.mismatch, self.observed, *(value.unflatten(0, sets.shape) for value in (inputs, targets))
        )

    def descend(self, start: Tensor) -> tuple[float, Tensor]:
        """Exchange members of `start` (example,) while the distance falls; return the distance and the set."""
        chosen, loss = start, float(self.losses(start[None])[0])
        for _ in range(_SWEEPS):
            before = loss
            for place in range(len(chosen)):
                moves = torch.stack([chosen, *self._moves(chosen, place)])[1:]
                if loss <= self.exact or not len(moves) or time.monotonic() > self.until:
                    continue
                losses = self.losses(moves)
                least = int(losses.argmin())
                if float(losses[least]) < loss:
                    chosen, loss = moves[least], float(losses[least])
            if loss == before:
                break
        return loss, chosen

    def _moves(self, chosen: Tensor, place: int) -> Iterator[Tensor]:
        for other in self._others(chosen, place):
            moved = chosen.clone()
            moved[place] = other
            yield moved
        steps = torch.repeat_interleave(torch.tensor(self.mismatch.reading.batches))
        for other in range(len(chosen)):
            if steps[other] != steps[place]:
                moved = chosen.clone()
                moved[place], moved[other] = chosen[other], chosen[place]
                yield moved

    def _others(self, chosen: Tensor, place: int) -> Tensor:
        own = next(each for each in self.lists if bool((each == chosen[place]).any()))
        return own[~torch.isin(own, chosen)]

    def kicked(self, chosen: Tensor, generator: np.random.Generator) -> Tensor:
        """Replace most members of `chosen` (example,) at random, and mix their order."""
        kicked = chosen.clone()
        for place in generator.permutation(len(chosen))[: math.ceil(_KICKED * len(chosen))].tolist():
            others = self._others(kicked, place)
            if len(others):
                kicked[place] = others[generator.integers(len(others))]
        return kicked[torch.from_numpy(generator.permutation(len(kicked)))]


def _zero(mismatch: Mismatch, observed: Tensors) -> float:
    if mismatch.reading.description is None:
        return float(apart({name: torch.zeros_like(value) for name, value in observed.items()}, observed))
    return float(mismatch.distance.of_zero(observed))


def _distances(mismatch: Mismatch, observed: Sequence[Tensors], inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the distance of each candidate batch's update after simulated local steps: (batch,) float64, infinite if
    not finite. Without a description, the distance is squared, with a fitted scale: a cosine hides late steps, whose
    gradients may be a millionth of the update."""
    unrolled, plain = replace(mismatch, unrolled=True), mismatch.reading.description is None
    size = sum(value[0].numel() for value in observed[0].values())
    losses = []
    for x, y in zip(*(value.split(max(1, _AT_ONCE // size)) for value in (inputs, targets)), strict=True):
        several = [repeated(each, len(x)) for each in observed]
        if plain:
            own = torch.stack([apart(unrolled.simulated(seen, x, y), seen) for seen in several]).mean(0)
        else:
            own = unrolled(several, x, y, differentiable=False)
        losses.append(own.double().cpu())
    return torch.cat(losses).nan_to_num(nan=torch.inf)
