"""Rescale readings whose squared norms leave the range of single precision."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.rows import rows
from bench.trip import (
    Candidates,
    Clients,
    Description,
    Given,
    Noise,
    Outcomes,
    Reading,
    Simulator,
    StepDefense,
    Tensors,
)

_USUAL = (1e-6, 1e6)  # norms left unchanged: products of two squares stay finite


@dataclass(frozen=True, slots=True)
class _RescaledDescription:
    """The description `inner`, for a reading multiplied by `factor`. Candidates' gradients keep their scale."""

    inner: Description
    factor: float

    @property
    def noise(self) -> Noise:
        return self.inner.noise.times(self.factor)

    @property
    def additive(self) -> bool:
        return self.inner.additive

    @property
    def changes(self) -> bool:
        return self.inner.changes

    @property
    def inside_steps(self) -> bool:
        return self.inner.inside_steps

    @property
    def notes(self) -> tuple[str, ...]:
        return self.inner.notes

    @property
    def ordered(self) -> bool:
        return self.inner.ordered

    @property
    def senders(self) -> int:
        return self.inner.senders

    @property
    def mixed(self) -> bool:
        return self.inner.mixed

    def mixing(self, size: int, count: int, seed: int) -> Tensor:
        return self.inner.mixing(size, count, seed)

    @property
    def hard(self) -> bool:
        return self.inner.hard

    @property
    def clients(self) -> Clients | None:
        inner = self.inner.clients
        return inner and replace(inner, alone=_RescaledDescription(inner.alone, self.factor))

    @property
    def single(self) -> "_RescaledDescription | None":
        single = self.inner.single
        return None if single is None else _RescaledDescription(single, self.factor)

    def message(self, others: Tensors, observed: Tensors) -> dict[str, Tensor]:
        return _times(self.factor, self.inner.message(others, self._as_read(observed)))

    def softened(self, width: float) -> "_RescaledDescription":
        return replace(self, inner=self.inner.softened(width))

    def simulate(
        self, per_example: Tensors, observed: Tensors, candidates: Candidates | None = None
    ) -> dict[str, Tensor]:
        return _times(self.factor, self.inner.simulate(per_example, self._as_read(observed), candidates))

    def with_mates(self, mates: Tensors, observed: Tensors, behind: Candidates) -> Given:
        given = self.inner.with_mates(mates, self._as_read(observed), behind)
        return lambda gradients, candidates: _times(self.factor, given(gradients, candidates))

    def local_steps(self, observed: Tensors) -> StepDefense:
        return self.inner.local_steps(self._as_read(observed))

    def sent(self, updates: Tensors, observed: Tensors) -> dict[str, Tensor]:
        return _times(self.factor, self.inner.sent(updates, self._as_read(observed)))

    def with_clients(self, others: Tensors, observed: Tensors) -> Callable[[Tensors], dict[str, Tensor]]:
        sent = self.inner.with_clients(others, self._as_read(observed))
        return lambda first: _times(self.factor, sent(first))

    def outcomes(self, updates: Tensors) -> Outcomes | None:
        inner = self.inner.outcomes(updates)
        return inner and replace(inner, values=_times(self.factor, inner.values))

    def log_likelihood(self, simulated: Tensors, observed: Tensors) -> Tensor | None:
        return self.inner.log_likelihood(self._as_read(simulated), self._as_read(observed))

    def log_density(self, simulated: Tensors, observed: Tensors) -> Tensor | None:
        return self.inner.log_density(self._as_read(simulated), self._as_read(observed))

    def _as_read(self, observed: Tensors) -> dict[str, Tensor]:
        return _times(1 / self.factor, observed)


@dataclass(frozen=True, slots=True)
class _RescaledSimulator:
    inner: Simulator
    factor: float

    @property
    def budget(self) -> int:
        return self.inner.budget

    @property
    def used(self) -> int:
        return self.inner.used

    @property
    def seconds(self) -> float:
        return self.inner.seconds

    def __call__(self, inputs: Tensor, labels: Tensor, draw: int) -> dict[str, Tensor]:
        return _times(self.factor, self.inner(inputs, labels, draw))


def rescaled(reading: Reading) -> Reading:
    """Multiply the observed updates in `reading`, the description and the simulator by the same power of two, so that
    the updates' median norm is about 1. Readings with a median norm in 1e-6 … 1e6 are returned unchanged. Without the
    factor, 1e-21 squared is 0 in single precision, and every candidate would seem exact."""
    squares = torch.stack([rows(value.double(), 1).square().sum(1) for value in reading.values.values()])
    norms = squares.sum(0).sqrt()
    norms = norms[norms.isfinite() & (norms > 0)]
    norm = float(norms.median()) if len(norms) else 1.0
    if _USUAL[0] <= norm <= _USUAL[1]:
        return reading
    factor = 2.0 ** -round(math.log2(norm))
    description, simulator = reading.description, reading.simulator
    return replace(
        reading,
        values=_times(factor, reading.values),
        description=None if description is None else _RescaledDescription(description, factor),
        descriptions=tuple(_RescaledDescription(each, factor) for each in reading.descriptions),
        simulator=None if simulator is None else _RescaledSimulator(simulator, factor),
    )


def _times(factor: float, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: factor * value for name, value in tensors.items()}
