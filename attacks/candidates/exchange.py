"""Search for the most likely set of candidates behind a reading of several examples, given the defense's description.

The search exchanges a candidate in the set for a candidate outside while the likelihood grows."""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bench.attacks.candidates import combination
from bench.attacks.candidates.listed import alone, by_label, candidates
from bench.attacks.inverter.sketch import Sketch
from bench.attacks.objective.mismatch import Mismatch
from bench.gradients import group_gradients
from bench.rows import flattened
from bench.trip import Candidates, repeated

_SWEEPS = 4  # at most; each exchanges every example once
_OPTIONS = 256  # candidates per example, at most
_KICKS = 24  # at most
_KICKED = 0.6  # of a set's members
_POOL = 1 << 27  # numbers in memory for candidates' gradients
_AT_ONCE = 1 << 22  # numbers in memory for compared sets
_TINY = 1e-30
_SAME = 1e-4  # relative distance within rounding

Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Candidates among which `most_likely` searches the set of examples behind a reading (the observed update), with
    their gradients and simulated readings. A *member* is a candidate in this pool. An *observation* is a single report
    among repeated reports on the same examples."""

    mismatch: Mismatch
    """Distance between simulated readings and the reading."""
    observed: Sequence[Tensors]
    """Observations of the reading, each name → (1, *shape)."""
    members: Tensor
    """Position of each member in the gallery, the list of candidates granted to the attacker: (member,)."""
    inputs: Tensor
    """Members' inputs (member, *shape)."""
    targets: Tensor
    """Members' label probabilities (member, class)."""
    gradients: Tensors
    """Members' gradients, name → (member, *shape)."""
    messages: Sequence[Tensors]
    """For each observation, a simulated reading per member: name → (member, *shape). In the simulation, each client of
    the round holds only this member."""
    separable: bool = False
    """True if the simulated reading of a set is the mean of its members' `messages`."""

    @property
    def size(self) -> int:
        """Number of coordinates of a gradient, which determines the memory for each compared set."""
        return sum(value[0].numel() for value in self.gradients.values())

    @property
    def _together(self) -> bool:
        """True if a set's simulated reading depends only on the mean of its members' gradients."""
        description = self.mismatch.reading.description
        return description is None or (description.senders == 1 and not description.inside_steps)

    def losses(self, chosen: Tensor, place: int, others: Tensor) -> Tensor:
        """Rate exchanges of a single example in the present set: return the loss of the set after each exchange,
        (other,). The search takes the exchange with the least loss.

        - `chosen` (example,): pool positions of the present set.
        - `place`: position in `chosen` at which the example is replaced.
        - `others` (other,): pool positions of the replacements.

        The loss is minus the log likelihood of the reading (the observed update), up to a constant; without the
        defense's description, a squared distance."""
        distance = apart if self.mismatch.reading.description is None else self.mismatch.of_shown
        numbers = self.size * (1 if self.separable or self._together else len(chosen))
        parts = others.split(max(1, _AT_ONCE // numbers))
        total = torch.zeros(len(others), dtype=torch.float64)
        for number, observed in enumerate(self.observed):
            distances = [
                distance(self._with(number, chosen, place, part), repeated(observed, len(part))) for part in parts
            ]
            total += torch.cat(distances).double().cpu()
        return total.nan_to_num(nan=torch.inf)

    def _with(self, number: int, chosen: Tensor, place: int, others: Tensor) -> Tensors:
        rest = torch.cat([chosen[:place], chosen[place + 1 :]])
        if self.separable:
            return _means(self.messages[number], rest, others)
        observed = self.observed[number]
        if self._together:
            means = _means(self.gradients, rest, others)
            single = {name: value[:, None] for name, value in means.items()}
            return self.mismatch.shown(repeated(observed, len(others)), single)
        sets = chosen.repeat(len(others), 1)
        sets[:, place] = others
        return self.shown(observed, sets)

    def adds_up(self, chosen: Tensor) -> bool:
        """Test on a set whether the defense treats examples separately: return whether the mean of its members'
        simulated readings (the field `messages`) equals the simulated reading (observed update) of the whole set.
        `chosen` (example,) are the set's positions in the pool. If True, other sets need no simulation of their own
        (`separate`)."""
        for observed, messages in zip(self.observed, self.messages, strict=True):
            whole, means = self.shown(observed, chosen[None]), _means(messages, chosen[1:], chosen[:1])
            if any(
                float((whole[name] - value).norm()) > _SAME * float(whole[name].norm()) for name, value in means.items()
            ):
                return False
        return True

    def separate(self) -> "Pool":
        """Return this pool in the faster mode `separable`: the simulated reading of a set is the mean of its members'
        `messages`, and no new simulation is run. Valid if `adds_up` holds."""
        return replace(self, separable=True)

    def shown(self, observed: Tensors, sets: Tensor) -> Tensors:
        """Simulate the reading (observed update) for each set of members: name → (set, *shape).

        - `observed`: the actual reading, a single observation, name → (1, *shape); the simulation may take the
          defense's random draws from it.
        - `sets` (set, example): positions in the pool."""
        weights = {name: value[0] for name, value in self.mismatch.reading.weights.items()}
        behind = Candidates(inputs=self.inputs[sets], targets=self.targets[sets], weights=weights)
        gradients = {name: value[sets] for name, value in self.gradients.items()}
        return self.mismatch.shown(repeated(observed, len(sets)), gradients, behind)


def most_likely(
    mismatch: Mismatch,
    observed: Sequence[Tensors],
    scores: Tensor,
    labels: Tensor | None,
    sketch: Sketch,
    generator: np.random.Generator,
    *,
    until: float = math.inf,
) -> Tensor:
    """Search for the most likely set of examples behind a reading (the observed update); return its positions in the
    gallery, the list of candidates granted to the attacker: (example,).

    - `mismatch`: distance between simulated readings and the reading; it holds the reading with the gallery.
    - `observed`: the reading's observations (repeated reports), each name → (1, *shape).
    - `scores` (candidate,): a first score for each candidate; candidates with the highest scores enter the search.
    - `labels` (example,): the examples' labels, or None if unknown.
    - `sketch`: turns a gradient into a shorter vector, by which a start of the search is computed.
    - `generator`: draws the random exchanges.
    - `until`: time of `time.monotonic` at which the search ends with its best set."""
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
    return pool.members[_search(pool, starts, options, generator, until)]


def pool_of(mismatch: Mismatch, observed: Sequence[Tensors], members: Tensor) -> Pool:
    """Build a `Pool` (candidates with gradients and simulated readings) from some candidates of the gallery, the list
    of candidates granted to the attacker.

    - `mismatch`: distance between simulated readings (updates) and the observed reading; it holds the gallery, too.
    - `observed`: repeated reports of the same client on the same examples, each name → (1, *shape).
    - `members` (member,): positions of the candidates in the gallery."""
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
    description = mismatch.reading.description
    copies = 1 if description is None else description.senders
    count = len(behind.inputs)
    return mismatch.shown(
        repeated(observed, count),
        {name: value[:, None].expand(-1, copies, *value.shape[1:]) for name, value in gradients.items()},
        replace(
            behind,
            inputs=behind.inputs.expand(-1, copies, *behind.inputs.shape[2:]),
            targets=behind.targets.expand(-1, copies, -1),
        ),
    )


def _search(
    pool: Pool, starts: Sequence[Tensor], options: Sequence[Tensor], generator: np.random.Generator, until: float
) -> Tensor:
    """Search for the set (example,) with the least loss, by iterated local search (Lourenço, Martin, Stützle 2003).
    `options` are the members that each example may take. The search descends from the `starts`, then from the best set
    after random exchanges, until a second descent ends at the best set."""
    met = Counter[tuple[int, ...]]()
    best, least = starts[0], math.inf
    for turn in range(len(starts) + _KICKS):
        start = starts[turn] if turn < len(starts) else _kicked(best, options, generator)
        loss, found = _descend(pool, start, options, until)
        met[_key(found)] += 1
        if loss < least:
            best, least = found, loss
        if met[_key(best)] > 1 or time.monotonic() > until:
            break
    return best


def _key(members: Tensor) -> tuple[int, ...]:
    return tuple(sorted(members.tolist()))


def _kicked(members: Tensor, options: Sequence[Tensor], generator: np.random.Generator) -> Tensor:
    kicked = members.clone()
    for place in generator.permutation(len(members))[: math.ceil(_KICKED * len(members))].tolist():
        others = options[place][~torch.isin(options[place], kicked)]
        if len(others):
            kicked[place] = others[generator.integers(len(others))]
    return kicked


def _descend(pool: Pool, start: Tensor, options: Sequence[Tensor], until: float) -> tuple[float, Tensor]:
    """Exchange members of `start` while the set's loss falls; return the loss and the set. `options` are the members
    that each example may take. The first descent uses the distance to the mean over the defense's random draws. The
    second descent uses the exact minus log likelihood. Without the first descent, the exact value may rate a set with a
    single wrong member no better than a set with only wrong members."""
    smooth = replace(pool, mismatch=replace(pool.mismatch, exact=False))
    if not torch.equal(pool.losses(start, 0, start[:1]), smooth.losses(start, 0, start[:1])):
        _, start = _exchange(smooth, start, options, until)
    return _exchange(pool, start, options, until)


def _exchange(pool: Pool, start: Tensor, options: Sequence[Tensor], until: float) -> tuple[float, Tensor]:
    chosen, loss = start.clone(), float(pool.losses(start, 0, start[:1])[0])
    for _ in range(_SWEEPS):
        before = loss
        for place, each in enumerate(options):
            others = each[~torch.isin(each, chosen)]
            if not len(others) or time.monotonic() > until:
                continue
            losses = pool.losses(chosen, place, others)
            least = int(losses.argmin())
            if float(losses[least]) < loss:
                chosen[place], loss = others[least], float(losses[least])
        if loss == before:
            break
    return loss, chosen


def _means(each: Tensors, rest: Tensor, others: Tensor) -> Tensors:
    count = len(rest) + 1
    return {name: (value[rest].sum(0) + value[others]) / count for name, value in each.items()}


def apart(simulated: Mapping[str, Tensor], observed: Mapping[str, Tensor]) -> Tensor:
    """Return the squared distance (row,) between `observed` and the nearest multiple of the simulated reading. Both are
    name → (row, *shape). Only nonzero coordinates of the observation count, since a defense may drop coordinates."""
    seen = flattened(observed, 1)
    made = flattened({name: simulated[name] for name in observed}, 1) * (seen != 0)
    factor = (made * seen).sum(1) / made.square().sum(1).clamp_min(_TINY)
    return (seen - factor[:, None] * made).square().sum(1)


def _joined(parts: Sequence[Tensors]) -> Tensors:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
