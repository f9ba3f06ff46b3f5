"""Clients' messages behind a mean of quantised messages.

A client's message is τ·n at each coordinate of a tensor, with n = ±1 (signs) or n = -1, 0, 1 (ternary). The step τ is
the client's, equal at all coordinates. A mean over K clients then has few distinct values, Σ τ_i n_i / K. If a single
client's n changes by 1, the mean changes by τ_i / K: the most frequent differences between distinct values are the
steps. Single precision is finer than most distances between such sums, so each value shows each client's n (a hidden
subset sum problem, Nguyen & Stern 1999, with few summands). A wrong set of steps explains almost no value."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_PRECISION = 1.5e-7  # of the largest magnitude: values nearer than this are equal
_DIFFERENCES = 40  # most frequent differences, tried as steps
_LEAST_PAIRS = 2  # pairs of values with the same difference
_COORDINATES = 100  # at least: fewer prove no set of steps
_FREQUENT = 200  # distinct values on which sets of steps are compared
_EXPLAINED = 0.98  # of the coordinates: least share for messages that count as known
_SENDERS = 16  # at most: 3^8 sums over half of the clients
_VALUES = 6000  # distinct values, at most: more are no quantised messages
_ROWS = 64  # distinct values decoded at once
_SIGNS, UNITS = np.array([-1, 1]), np.array([-1, 0, 1])


def separate(mean: Floats, senders: int, *, signs: bool) -> Floats | None:
    """Recover the messages of `senders` clients from their mean: (sender, coordinate), in any order; None if the
    messages do not explain 98 % of the coordinates. `mean` (coordinate,) is a tensor of the aggregate. Each client
    quantises its message with a step size τ: values ±τ if `signs` is True, otherwise -τ, 0 or τ.

    At a coordinate without an explanation, each message gets the mean. If a client's τ is below single precision, the
    mean does not show its message; the result is then 0."""
    precision = _PRECISION * float(np.abs(mean).max(initial=0.0))
    if not 0 < precision < np.inf or senders > _SENDERS or len(mean) < _COORDINATES:
        return None
    values, counts, places = distinct(mean, precision)
    if len(values) > _VALUES:
        return None
    allowed = _SIGNS if signs else UNITS
    steps = _steps(values, counts, senders, precision, allowed)
    if steps is None:
        return None
    for _ in range(2):
        integers, known = _decoded(values, steps, precision, allowed)
        if np.linalg.matrix_rank(integers[known]) < len(steps):
            return None
        weights = np.sqrt(counts[known])[:, None]
        solved = np.linalg.lstsq(weights * integers[known], weights[:, 0] * values[known], rcond=None)[0]
        steps = solved.astype(np.float64)
    if counts[known].sum() < _EXPLAINED * len(mean):
        return None
    messages = np.zeros((len(values), senders))
    messages[:, : len(steps)] = np.where(known[:, None], senders * steps * integers, values[:, None])
    return np.ascontiguousarray(messages[places].T)


def distinct(mean: Floats, precision: float) -> tuple[Floats, Integers, Integers]:
    """Return the distinct values of the `mean` (coordinate,), their counts (value,), and each coordinate's value number
    (coordinate,). Values at most `precision` apart are equal."""
    order = np.argsort(mean, kind="stable")
    groups = np.concatenate([[0], np.cumsum(np.diff(mean[order]) > precision)])
    counts = np.bincount(groups)
    places = np.empty(len(mean), np.int64)
    places[order] = groups
    return np.bincount(groups, mean[order]) / counts, counts, places


def _steps(values: Floats, counts: Integers, senders: int, precision: float, allowed: Integers) -> Floats | None:
    """Return at most `senders` steps that explain most frequent values by integers in `allowed`; None if there are no
    such steps. Frequent differences between `values` are tried. Two greedy sets start a local search: a difference's
    pairs of values count once, or by the product of their `counts`."""
    sizes, ranks = differences(values, counts, precision)
    sizes = sizes / (allowed[1] - allowed[0])
    most = np.argsort(-counts, kind="stable")[:_FREQUENT]
    enough = _EXPLAINED * counts[most].sum()

    def explained(steps: Floats) -> int:
        return int(counts[most][_decoded(values[most], steps, precision, allowed)[1]].sum())

    for rank in ranks:
        trials = sizes[np.argsort(-rank, kind="stable")[:_DIFFERENCES]]
        steps = independent(trials, senders, precision)
        found, rising = explained(steps), True
        while found < enough and rising:
            moves = [(explained(other), other) for other in _moves(steps, trials, senders)]
            score, better = max(moves, key=lambda move: move[0], default=(0, steps))
            rising = score > found
            if rising:
                steps, found = better, score
        if found >= enough:
            return steps
    return None


def differences(values: Floats, counts: Integers, precision: float) -> tuple[Floats, tuple[Floats, Floats]]:
    """Return the repeated positive differences between distinct `values` (value,), and two ranks of each difference:
    the number of its pairs of values, and the same number with a pair counted by the product of its `counts` (value,).
    Differences at most `precision` apart are equal."""
    first, second = np.triu_indices(len(values), 1)
    apart, weights = values[second] - values[first], counts[first].astype(float) * counts[second]
    order = np.argsort(apart, kind="stable")
    order = order[apart[order] > 4 * precision]
    if not len(order):
        return np.zeros(0), (np.zeros(0), np.zeros(0))
    apart = apart[order]
    starts = np.concatenate([[0], np.flatnonzero(np.diff(apart) > precision) + 1])
    pairs = np.diff(np.append(starts, len(apart))).astype(float)
    frequent = pairs >= _LEAST_PAIRS
    sizes = np.add.reduceat(apart, starts) / pairs
    return sizes[frequent], (pairs[frequent], np.add.reduceat(weights[order], starts)[frequent])


def independent(trials: Floats, senders: int, precision: float) -> Floats:
    """Return the first `trials` (step,) that are no integer combinations of trials before, to `precision`. `senders` is
    the largest number of returned steps."""
    steps = np.zeros(0)
    for trial in trials:
        if len(steps) == senders:
            break
        reached, _ = sums(steps, np.arange(-2, 3) if len(steps) < 7 else UNITS)
        if np.abs(reached - trial).min() > 3 * precision:
            steps = np.append(steps, trial)
    return steps


def _moves(steps: Floats, trials: Floats, senders: int) -> Iterator[Floats]:
    """Yield sets of steps near `steps`: without a step, with a further step, or with a step replaced by a trial or by a
    sum or difference of two steps."""
    for at in range(len(steps)):
        rest = np.delete(steps, at)
        yield rest
        for trial in (*trials, *np.abs(steps[at] - rest), *(steps[at] + rest)):
            yield np.append(rest, trial)
    if len(steps) < senders:
        for trial in trials:
            yield np.append(steps, trial)


def _decoded(values: Floats, steps: Floats, precision: float, allowed: Integers) -> tuple[Integers, NDArray[np.bool_]]:
    """Return integers n in `allowed` with Σ n·step = value, (value, step), and a mask (value,) of the values with such
    integers. The first solution counts. A sum is split in two: a half of the steps, and the other half."""
    half = len(steps) // 2
    (one, of_one), (two, of_two) = sums(steps[:half], allowed), sums(steps[half:], allowed)
    order = np.argsort(two, kind="stable")
    two, of_two = two[order], of_two[order]
    integers, known = np.zeros((len(values), len(steps)), np.int64), np.zeros(len(values), bool)
    for start in range(0, len(values), _ROWS):
        rest = values[start : start + _ROWS, None] - one
        low, high = np.searchsorted(two, rest - precision), np.searchsorted(two, rest + precision)
        rows, at = np.unique(np.nonzero(high > low)[0], return_index=True)
        first = np.nonzero(high > low)[1][at]
        integers[start + rows] = np.concatenate([of_one[first], of_two[low[rows, first]]], 1)
        known[start + rows] = True
    return integers, known


def sums(steps: Floats, allowed: Integers) -> tuple[Floats, Integers]:
    """Return all sums Σ n·step over the `steps` (step,) with integers n in `allowed`, (sum,), and the integers (sum,
    step)."""
    grids = np.meshgrid(*[allowed] * len(steps), indexing="ij")
    integers = np.stack([grid.ravel() for grid in grids], 1) if len(steps) else np.zeros((1, 0), np.int64)
    return integers @ steps, integers
