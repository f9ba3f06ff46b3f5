"""The most likely set of candidates behind a reading of several examples: one is exchanged for another as long as the
reading gets more likely, which takes no more of the defense than its description."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bench.attacks.candidates import combination
from bench.attacks.candidates.listed import alone, by_label, candidates
from bench.attacks.inverter.sketch import Sketch
from bench.attacks.objective.mismatch import Mismatch
from bench.gradients import group_gradients
from bench.trip import Candidates

_SWEEPS = 4  # at most; in each every example is exchanged once
_OPTIONS = 256  # candidates tried for an example, at most
_KICKS = 24  # at most
_KICKED = 0.6  # of a set's members
_POOL = 1 << 27  # numbers in memory, of candidates' gradients
_AT_ONCE = 1 << 22  # numbers in memory, of the sets that are compared
_TINY = 1e-30
_SAME = 1e-4  # relative distance of what differs by rounding

Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The candidates that are considered for one reading: their numbers `members` (member,) in the gallery, what the
    gradients were computed on, and `gradients`, name → (member, *shape).

    `messages`, by observation: what is shown of each member if every sender has it alone, name → (member, *shape).
    `separable`: what is shown of a set is the mean of its members' messages.
    """

    mismatch: Mismatch
    observed: Sequence[Tensors]  # each name → (1, *shape)
    members: Tensor
    inputs: Tensor
    targets: Tensor
    gradients: Tensors
    messages: Sequence[Tensors]
    separable: bool = False

    @property
    def size(self) -> int:
        """Numbers of a gradient."""
        return sum(value[0].numel() for value in self.gradients.values())

    @property
    def _together(self) -> bool:
        """Whether all that is shown follows from the mean gradient of a set."""
        description = self.mismatch.reading.description
        return description is None or (description.senders == 1 and not description.inside_steps)

    def losses(self, chosen: Tensor, place: int, others: Tensor) -> Tensor:
        """Minus the log likelihood of the reading, up to a constant, for the set `chosen` (example,) of members with
        each of the `others` (other,) in this place, (other,)."""
        distance = _apart if self.mismatch.reading.description is None else self.mismatch.of_shown
        numbers = self.size * (1 if self.separable or self._together else len(chosen))
        parts = others.split(max(1, _AT_ONCE // numbers))
        total = torch.zeros(len(others), dtype=torch.float64)
        for number, observed in enumerate(self.observed):
            distances = [
                distance(self._with(number, chosen, place, part), _rows(observed, len(part))) for part in parts
            ]
            total += torch.cat(distances).double().cpu()
        return total.nan_to_num(nan=torch.inf)

    def _with(self, number: int, chosen: Tensor, place: int, others: Tensor) -> Tensors:
        """What an observation would show of these sets, name → (other, *shape)."""
        rest = torch.cat([chosen[:place], chosen[place + 1 :]])
        if self.separable:
            return _means(self.messages[number], rest, others)
        observed = self.observed[number]
        if self._together:
            means = _means(self.gradients, rest, others)
            single = {name: value[:, None] for name, value in means.items()}
            return self.mismatch.shown(_rows(observed, len(others)), single)
        sets = chosen.repeat(len(others), 1)
        sets[:, place] = others
        return self.shown(observed, sets)

    def adds_up(self, chosen: Tensor) -> bool:
        """Whether what is shown of this set (example,) is the mean of its messages, but for rounding."""
        for observed, messages in zip(self.observed, self.messages, strict=True):
            whole, means = self.shown(observed, chosen[None]), _means(messages, chosen[1:], chosen[:1])
            if any(
                float((whole[name] - value).norm()) > _SAME * float(whole[name].norm()) for name, value in means.items()
            ):
                return False
        return True

    def separate(self) -> "Pool":
        """The same, of which sets are known to be the means of their messages."""
        return replace(self, separable=True)

    def shown(self, observed: Tensors, sets: Tensor) -> Tensors:
        """What an observation would show of sets (set, example), name → (set, *shape)."""
        weights = {name: value[0] for name, value in self.mismatch.reading.weights.items()}
        behind = Candidates(inputs=self.inputs[sets], targets=self.targets[sets], weights=weights)
        gradients = {name: value[sets] for name, value in self.gradients.items()}
        return self.mismatch.shown(_rows(observed, len(sets)), gradients, behind)


def most_likely(
    mismatch: Mismatch,
    observed: Sequence[Tensors],
    scores: Tensor,
    labels: Tensor | None,
    sketch: Sketch,
    generator: np.random.Generator,
) -> Tensor:
    """The numbers of the candidates (example,) of the most likely set that was met.

    `observed`: of one reading, name → (1, *shape) for each observation; `scores` (candidate,) of all candidates, which
    say who is considered; `labels` (example,), if they are known; `sketch`: of a gradient.
    """
    reading = mismatch.reading
    ranked, counts = by_label(reading, scores, labels)
    numbers = sum(value[0].numel() for value in observed[0].values())
    most = min(_OPTIONS, _POOL // numbers // len(counts))
    short = [each[: max(most, count)] for each, count in zip(ranked, counts, strict=True)]
    pool = pool_of(mismatch, observed, torch.cat(short))
    own = torch.arange(len(pool.members)).split([len(each) for each in short])  # by label, best first
    options = [members for members, count in zip(own, counts, strict=True) for _ in range(count)]
    first, second = (sketch(each[0]).float().cpu() for each in (pool.messages, observed))
    again = combination.scores(combination.Basis.of(first), second[0], reading.examples)
    starts = [
        torch.cat([members[:count] for members, count in zip(own, counts, strict=True)]),
        torch.cat([members[again[members].topk(count).indices] for members, count in zip(own, counts, strict=True)]),
    ]
    if all(pool.adds_up(start) for start in starts):
        pool = pool.separate()
    return pool.members[_search(pool, starts, options, generator)]


def pool_of(mismatch: Mismatch, observed: Sequence[Tensors], members: Tensor) -> Pool:
    """Of these candidates, by number (member,), for one reading."""
    reading = mismatch.reading
    inputs, targets = candidates(reading, members)
    weights = {name: value[0] for name, value in reading.weights.items()}
    parts = []
    for x, y in alone(inputs, targets):
        gradients = group_gradients(reading.model, weights, x, y)
        behind = Candidates(inputs=x, targets=y, weights=weights)
        parts.append((gradients, *(_message(mismatch, each, gradients, behind) for each in observed)))
    gradients, *messages = (_joined(each) for each in zip(*parts, strict=True))
    return Pool(
        mismatch=mismatch,
        observed=observed,
        members=members,
        inputs=inputs,
        targets=targets,
        gradients=gradients,
        messages=messages,
    )


def _message(mismatch: Mismatch, observed: Tensors, gradients: Tensors, behind: Candidates) -> Tensors:
    """What is shown of candidates (candidate, 1, *shape) if every sender has one alone, name → (candidate, *shape)."""
    description = mismatch.reading.description
    copies = 1 if description is None else description.senders
    count = len(behind.inputs)
    return mismatch.shown(
        _rows(observed, count),
        {name: value[:, None].expand(-1, copies, *value.shape[1:]) for name, value in gradients.items()},
        replace(
            behind,
            inputs=behind.inputs.expand(-1, copies, *behind.inputs.shape[2:]),
            targets=behind.targets.expand(-1, copies, -1),
        ),
    )


def _search(pool: Pool, starts: Sequence[Tensor], options: Sequence[Tensor], generator: np.random.Generator) -> Tensor:
    """The best set (example,) from these starts, and from it with some members exchanged at random, until it was met
    twice (an iterated local search: Lourenço, Martin, Stützle 2003)."""
    met = Counter[tuple[int, ...]]()
    best, least = starts[0], math.inf
    for turn in range(len(starts) + _KICKS):
        start = starts[turn] if turn < len(starts) else _kicked(best, options, generator)
        loss, found = _descend(pool, start, options)
        met[_key(found)] += 1
        if loss < least:
            best, least = found, loss
        if met[_key(best)] > 1:
            break
    return best


def _key(members: Tensor) -> tuple[int, ...]:
    return tuple(sorted(members.tolist()))


def _kicked(members: Tensor, options: Sequence[Tensor], generator: np.random.Generator) -> Tensor:
    """The set with a part of its members exchanged at random."""
    kicked = members.clone()
    for place in generator.permutation(len(members))[: math.ceil(_KICKED * len(members))].tolist():
        others = options[place][~torch.isin(options[place], kicked)]
        if len(others):
            kicked[place] = others[generator.integers(len(others))]
    return kicked


def _descend(pool: Pool, start: Tensor, options: Sequence[Tensor]) -> tuple[float, Tensor]:
    """By the distance to the mean of what is drawn, and from there by the law of the draws, under which a set with one
    wrong member may be no likelier than one with all wrong."""
    smooth = replace(pool, mismatch=replace(pool.mismatch, exact=False))
    if not torch.equal(pool.losses(start, 0, start[:1]), smooth.losses(start, 0, start[:1])):
        _, start = _exchange(smooth, start, options)
    return _exchange(pool, start, options)


def _exchange(pool: Pool, start: Tensor, options: Sequence[Tensor]) -> tuple[float, Tensor]:
    """From a set of members (example,) to one that no exchange makes more likely, and its loss."""
    chosen, loss = start.clone(), float(pool.losses(start, 0, start[:1])[0])
    for _ in range(_SWEEPS):
        before = loss
        for place, each in enumerate(options):
            others = each[~torch.isin(each, chosen)]
            if not len(others):
                continue
            losses = pool.losses(chosen, place, others)
            least = int(losses.argmin())
            if float(losses[least]) < loss:
                chosen[place], loss = others[least], float(losses[least])
        if loss == before:
            break
    return loss, chosen


def _means(each: Tensors, rest: Tensor, others: Tensor) -> Tensors:
    """The means of the rest and each of the others, name → (other, *shape)."""
    count = len(rest) + 1
    return {name: (value[rest].sum(0) + value[others]) / count for name, value in each.items()}


def _apart(simulated: Tensors, observed: Tensors) -> Tensor:
    """How far readings, name → (row, *shape), are from the nearest multiple of what is simulated, on the coordinates
    that are not zero in them, (row,): for who does not know what a defense leaves out, or by how much it clips."""
    seen = torch.cat([value.flatten(1) for value in observed.values()], 1)
    made = torch.cat([simulated[name].flatten(1) for name in observed], 1) * (seen != 0)
    factor = (made * seen).sum(1) / made.square().sum(1).clamp_min(_TINY)
    return (seen - factor[:, None] * made).square().sum(1)


def _rows(observed: Tensors, count: int) -> Tensors:
    return {name: value.expand(count, *value.shape[1:]) for name, value in observed.items()}


def _joined(parts: Sequence[Tensors]) -> Tensors:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
