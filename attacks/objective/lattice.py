"""Clients' messages with several levels, such as QSGD's, behind their mean.

A client's message is τ·n at each coordinate of a tensor, with small integers n. The step τ is the client's. As with
signs (`separate.py`), frequent differences between the mean's values show steps. Frequent differences alone leave
several sets: with the steps a and b, the set a and a + b gives the same sums, with other integers. The clients'
integers N (coordinate, client) are then known up to integer combinations: N = M U, with M from any such set and an
integer matrix U with determinant ±1. A client's column points along the client's gradient.
Gradients of public examples with the client's label choose the columns of U, or later the gradient of a candidate."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bench.attacks.objective.separate import UNITS, Floats, Integers, differences, distinct, independent, sums

_PRECISION = 1.5e-7  # of the largest magnitude: values nearer than this are equal
_COARSE = 20  # times this precision, if a client's step is near single precision
_COARSE_PAYS = 1.2  # least ratio of scores for the coarse precision
_COORDINATES = 100  # at least
_SENDERS = 10  # at most: 7^5 sums over half of the clients
_REPEATED = 0.8  # of the coordinates: most distinct values; integers of many levels repeat no value
_DISTINCT = 6000  # values, at most
_DIFFERENCES = 14  # most frequent differences, tried as steps
_FREQUENT = 200  # distinct values on which sets of steps are compared
_WORTH = 8  # squares of integers below which an explanation of a value counts
_EXPLAINED = 0.6  # of the frequent values: least share with integers -1, 0, 1.  By chance: below .02
_NEEDED = 0.01  # of the score: a step whose removal costs less is none
_COMBINED = 5  # columns in a combination, at most
_LIKELY = 4  # combinations tried for each client
_AT_ONCE = 4096  # sets of combinations
_LEVELS, _RARE = 3, 5  # largest magnitude of integers; the same if no smaller integers explain a value
_NEAR, _LESS_NEAR = 1, 2  # the same for distances from an expected integer
_ROOM = 1 << 19  # sums at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Lattice:
    """Integers behind a mean over clients, up to integer combinations between the clients' columns."""

    mean: Floats
    """The mean (coordinate,)."""
    senders: int
    """Number of clients."""
    precision: float
    """Distance below which two values of the mean are equal."""
    steps: Floats
    """A set of steps (step,), each divided by the number of clients."""
    integers: Integers
    """Integers (coordinate, step) with the mean as the sum over steps; 0 at a coordinate without such integers."""

    def combinations(self) -> Integers:
        """Return combinations with coefficients -1, 0, 1 for at most five columns: (combination, step)."""
        every = np.array(list(itertools.product((-1, 0, 1), repeat=len(self.steps))))
        size = np.abs(every).sum(1)
        few: Integers = every[(size > 0) & (size <= _COMBINED)]
        return few

    def along(self, combinations: Integers, axes: Floats) -> tuple[Floats, Floats]:
        """Return each combined column's scalar product with each axis, (combination, axis), and the squared norm
        (combination,).

        - `combinations` (combination, step): from the method of this name.
        - `axes` (axis, coordinate)."""
        gram, products = self.integers.T @ self.integers, self.integers.T @ axes.T
        return combinations @ products, np.einsum("cs,st,ct->c", combinations, gram, combinations)

    def chosen(
        self, combinations: Integers, scores: Floats, expected: Floats | None = None
    ) -> tuple["Lattice", Integers] | None:
        """Return the lattice with the most probable columns, and these columns' clients (column,). None if no likely
        columns have determinant ±1. If the mean shows fewer steps than clients, the clients with
        the least scores have no column.

        - `combinations` (combination, step): possible columns for U.
        - `scores` (client, combination): log-likelihoods.
        - `expected`: probable values of the clients' integers (client, coordinate), by which integers are chosen among
          several explanations; None takes the smallest integers."""
        shown = np.sort(np.argsort(-scores.max(1), kind="stable")[: len(self.steps)])
        likely = np.argsort(-scores[shown], axis=1, kind="stable")[:, :_LIKELY]
        ranks = np.array(list(itertools.product(range(likely.shape[1]), repeat=len(shown))))
        total = np.zeros(len(ranks))
        for n, client in enumerate(shown):
            total += scores[client, likely[n]][ranks[:, n]]
        order = np.argsort(-total, kind="stable")
        for part in np.array_split(order, max(1, len(order) // _AT_ONCE)):
            bases = np.stack([combinations[likely[n]][ranks[part, n]] for n in range(len(shown))], 2)
            whole = np.flatnonzero(np.abs(np.abs(np.linalg.det(bases)) - 1) < 1e-6)
            if len(whole):
                return self._in_basis(bases[whole[0]], None if expected is None else expected[shown].T), shown
        return None

    def messages(self, shown: Integers) -> Floats:
        """Return all clients' messages (client, coordinate), 0 for a client without a column. `shown` (column,): the
        columns' clients."""
        messages = np.zeros((self.senders, len(self.mean)))
        messages[shown] = self.senders * (self.integers * self.steps).T
        return messages

    def _in_basis(self, basis: Integers, expected: Floats | None) -> "Lattice":
        steps = np.linalg.solve(basis, self.steps).astype(np.float64)
        signs = np.where(steps < 0, -1, 1)
        steps, integers = steps * signs, self.integers @ basis * signs
        if expected is None:
            values, _, places = distinct(self.mean, self.precision)
            found, known = (each[places] for each in _explained(values, steps, self.precision, None))
        else:
            found, known = _explained(self.mean, steps, self.precision, expected)
        integers = np.where(known[:, None], found, integers)
        if known.any():
            steps = np.linalg.lstsq(integers[known], self.mean[known], rcond=None)[0].astype(np.float64)
        return replace(self, steps=steps, integers=integers)


def lattice(mean: Floats, senders: int) -> Lattice | None:
    """Find steps and integers behind a mean over messages with several levels. None if the mean repeats too few values,
    or if no steps explain the frequent values.

    - `mean` (coordinate,): a tensor of the aggregate.
    - `senders`: number of clients."""
    largest = float(np.abs(mean).max(initial=0.0))
    if not 0 < largest < np.inf or senders > _SENDERS or len(mean) < _COORDINATES:
        return None
    if len(distinct(mean, _PRECISION * largest)[0]) > min(_REPEATED * len(mean), _DISTINCT):
        return None
    fine, coarse = (_steps(mean, senders, factor * _PRECISION * largest) for factor in (1, _COARSE))
    best = coarse if coarse.score > _COARSE_PAYS * fine.score else fine
    if best.share < _EXPLAINED:
        return None
    precision = (_COARSE if best is coarse else 1) * _PRECISION * largest
    values, _, places = distinct(mean, precision)
    integers, known = _explained(values, best.steps, precision, None)
    integers = np.where(known[:, None], integers, 0)
    if np.linalg.matrix_rank(integers) < len(best.steps):
        return None
    return Lattice(mean=mean, senders=senders, precision=precision, steps=best.steps, integers=integers[places])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    steps: Floats
    score: float
    share: float  # of the frequent values' coordinates, with integers -1, 0, 1


def _steps(mean: Floats, senders: int, precision: float) -> _Steps:
    """Return the set of steps which explains the most frequent values with the smallest integers."""
    values, counts, _ = distinct(mean, precision)
    most = np.argsort(-counts, kind="stable")[:_FREQUENT]

    def judged(steps: Floats) -> _Steps:
        _, cost = _decoded(values[most], steps, precision, UNITS, None)
        score = float((counts[most] * (_WORTH - cost).clip(min=0)).sum())
        return _Steps(steps=steps, score=score, share=float(counts[most][cost < np.inf].sum() / counts[most].sum()))

    sizes, ranks = differences(values, counts, precision)
    best = _Steps(steps=np.zeros(0), score=0.0, share=0.0)
    for rank in ranks:
        trials = sizes[np.argsort(-rank, kind="stable")[:_DIFFERENCES]]
        current, rising = judged(independent(trials, senders, precision)), True
        while rising:
            after = max(
                map(judged, _moves(current.steps, trials, senders)), key=lambda each: each.score, default=current
            )
            rising = after.score > current.score
            current = after if rising else current
        best = max(best, current, key=lambda each: each.score)
    for at in reversed(range(len(best.steps))):
        without = judged(np.delete(best.steps, at))
        best = without if without.score >= (1 - _NEEDED) * best.score else best
    return best


def _moves(steps: Floats, trials: Floats, senders: int) -> list[Floats]:
    moved = []
    for at in range(len(steps)):
        rest = np.delete(steps, at)
        others = np.concatenate([trials, np.abs(steps[at] - rest), steps[at] + rest])
        moved += [np.append(rest, other) for other in others]
    if len(steps) < senders:
        moved += [np.append(steps, trial) for trial in trials]
    return moved


def _explained(
    values: Floats, steps: Floats, precision: float, expected: Floats | None
) -> tuple[Integers, NDArray[np.bool_]]:
    """Return the integers (value, step) nearest to the `expected` (value, step) with Σ n·step = value, and whether such
    integers exist (value,)."""
    near, less_near = (_LEVELS, _RARE) if expected is None else (_NEAR, _LESS_NEAR)
    integers, cost = _decoded(values, steps, precision, np.arange(-near, near + 1), expected)
    left = np.flatnonzero(np.isinf(cost))
    if len(left):
        part = None if expected is None else expected[left]
        allowed = np.arange(-less_near, less_near + 1)
        integers[left], cost[left] = _decoded(values[left], steps, precision, allowed, part)
    return integers, cost < np.inf


def _decoded(
    values: Floats, steps: Floats, precision: float, allowed: Integers, expected: Floats | None
) -> tuple[Integers, Floats]:
    """Return integers (value, step) with Σ n·step = value and the least sum of squared distances to the `expected`
    (value, step), and this sum (value,), infinite without such integers. The integers differ from the rounded
    `expected` by integers in `allowed`. A sum is split in two: a half of the steps, and the other half."""
    centre = np.zeros((len(values), len(steps))) if expected is None else expected
    base = np.round(centre).astype(np.int64)
    half = len(steps) // 2
    (one, of_one), (two, of_two) = sums(steps[:half], allowed), sums(steps[half:], allowed)
    order = np.argsort(two, kind="stable")
    two, of_two = two[order], of_two[order]
    integers, cost = base.copy(), np.full(len(values), np.inf)
    at_once = max(1, _ROOM // len(one))
    for start in range(0, len(values), at_once):
        part = slice(start, start + at_once)
        rest = (values[part] - base[part] @ steps)[:, None] - one
        low, high = np.searchsorted(two, rest - precision), np.searchsorted(two, rest + precision)
        row, left = np.nonzero(high > low)
        if not len(row):
            continue
        width = high[row, left] - low[row, left]
        right = np.repeat(low[row, left], width) + np.arange(width.sum()) - np.repeat(np.cumsum(width) - width, width)
        row, left = np.repeat(row, width) + start, np.repeat(left, width)
        found = base[row] + np.concatenate([of_one[left], of_two[right]], 1)
        apart = np.square(found - centre[row]).sum(1)
        order = np.lexsort((apart, row))
        rows, first = np.unique(row[order], return_index=True)
        integers[rows], cost[rows] = found[order[first]], apart[order[first]]
    return integers, cost
