"""Sparse factors of a batch's gradient, by sampling (SPEAR, Dimitrov et al. 2024, §4).

A linear layer's gradient is dW = Σ_i δ_i h_iᵀ, with the input h_i and the output derivative δ_i of example i. A ReLU
after the layer makes δ_i sparse, and each δ_i lies in the column space of dW. Rows (neurons) in which example i is
zero, rank - 1 of them, determine δ_i up to a factor. The search draws sets of rows, computes the vector of each set,
and counts the vector's zeros."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Marks = NDArray[np.bool_]

_DRAWN, _PASSES = 10_000, 60  # sets of rows in a pass, and passes
_HOPELESS = 8  # passes without any sparse vector, after which the search ends
_LEAST = 2  # zeros of a vector, per unit of rank, at least
_REFINED = 3  # times that a vector is computed from all its zeros
_KEPT = 50  # different vectors of a pass that are refined, those with the most zeros
_SAME = 1e-5  # 1 - |cosine| of two results for the same vector
_INDEPENDENT = 1e-3  # of a vector's length: part outside the span of the others
_USUAL = 0.5  # of the median number of zeros: fewer mark a combination of two examples' vectors


def sparse_directions(
    basis: Floats, singular: Floats, random: np.random.Generator, *, rounding: float
) -> Floats | None:
    """Return independent directions w (direction, rank), as many as the rank, for which the vectors `basis` @ w have
    the most zeros: the examples' sparse vectors, up to sign and length. Return None if sampling finds fewer.

    - `basis` (row, rank): orthonormal basis of the space of these vectors, from the gradient's singular vectors.
    - `singular` (rank,): the gradient's singular values; they give the error of a row of `basis`.
    - `random`: draws the sets of rows.
    - `rounding`: largest error of a row of the gradient, as a share of the row's length."""
    rank = len(singular)
    if rank == 1:
        return np.ones((1, 1))
    lengths = np.linalg.norm(basis * singular, axis=1)
    live = lengths > rounding * lengths.max()
    lines = _Lines(rows=basis[live], lengths=lengths[live], singular=singular, rounding=rounding)
    if len(lines.rows) < rank:
        return None
    found = _Found(rank=rank)
    for number in range(_PASSES):
        drawn = lines.rows[random.integers(len(lines.rows), size=(_DRAWN, rank - 1))]
        directions = np.linalg.qr(drawn.transpose(0, 2, 1), mode="complete").Q[:, :, -1]
        zero = lines.zeros(directions)
        counts = zero.sum(0)
        left = np.argsort(-counts, kind="stable")[: int((counts >= _LEAST * rank).sum())]
        for _ in range(_KEPT):
            if not len(left):
                break
            found.add(*lines.refined(directions[left[0]], zero[:, left[0]]))
            left = left[np.abs(directions[left] @ directions[left[0]]) <= 1 - _SAME]
        best = found.best()
        if best is not None or (number >= _HOPELESS and not found.counts):
            return best
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    rows: Floats  # (row, rank), of the basis
    lengths: Floats  # (row,), of the gradient's rows
    singular: Floats  # (rank,)
    rounding: float

    def zeros(self, directions: Floats) -> Marks:
        """Return the zeros (row, direction) of the vectors `rows` @ direction, within rounding. `directions` is
        (direction, rank)."""
        errors = self.rounding * np.linalg.norm(directions / self.singular, axis=1)
        zero: Marks = np.abs(self.rows @ directions.T) <= self.lengths[:, None] * errors
        return zero

    def refined(self, direction: Floats, zero: Marks) -> tuple[Floats, int]:
        """Compute a direction (rank,) again from all rows that are zero, until no row joins these; return the direction
        and its number of zeros."""
        for _ in range(_REFINED):
            # in these units all coordinates have the same error
            scaled = self.rows[zero] * self.singular / self.lengths[zero, None]
            better = np.linalg.svd(scaled)[2][-1] * self.singular
            better /= np.linalg.norm(better)
            now = self.zeros(better[None])[:, 0]
            if now.sum() < zero.sum():
                break
            done = now.sum() == zero.sum()
            direction, zero = better, now
            if done:
                break
        return direction, int(zero.sum())


@dataclass(slots=True, kw_only=True)
class _Found:
    rank: int
    directions: list[Floats] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, direction: Floats, count: int) -> None:
        for place, other in enumerate(self.directions):
            if abs(direction @ other) > 1 - _SAME:
                if count > self.counts[place]:
                    self.directions[place], self.counts[place] = direction, count
                return
        self.directions.append(direction)
        self.counts.append(count)

    def best(self) -> Floats | None:
        """Return independent directions (rank, rank) with the most zeros; None if they are too few."""
        span, chosen, zeros = np.zeros((0, self.rank)), list[Floats](), list[int]()
        for place in sorted(range(len(self.counts)), key=lambda place: -self.counts[place]):
            direction = self.directions[place]
            outside = direction - span.T @ (span @ direction)
            if np.linalg.norm(outside) > _INDEPENDENT:
                span = np.concatenate([span, outside[None] / np.linalg.norm(outside)])
                chosen.append(direction)
                zeros.append(self.counts[place])
        if len(chosen) < self.rank or min(zeros) < _USUAL * np.median(zeros):
            return None
        return np.stack(chosen)
