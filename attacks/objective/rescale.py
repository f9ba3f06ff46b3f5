"""Readings whose gradients are so small or so large that their squares leave single precision, in units of about 1."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.trip import Candidates, Description, Noise, Reading, Simulator, StepDefense, Tensors

_USUAL = (1e-6, 1e6)  # norms that are left alone: a product of two squares is still a number


@dataclass(frozen=True, slots=True)
class _RescaledDescription:
    """A `Description` of `factor` times what `inner` describes.  Candidates' gradients stay as they are."""

    inner: Description
    factor: float

    @property
    def noise(self) -> Noise:
        noise, square = self.inner.noise, self.factor**2
        each = noise.variances and {name: square * value for name, value in noise.variances.items()}
        return replace(noise, variance=square * noise.variance, variances=each)

    @property
    def additive(self) -> bool:
        return self.inner.additive

    @property
    def inside_steps(self) -> bool:
        return self.inner.inside_steps

    @property
    def ordered(self) -> bool:
        return self.inner.ordered

    @property
    def senders(self) -> int:
        return self.inner.senders

    @property
    def mixed(self) -> bool:
        return self.inner.mixed

    def simulate(
        self, per_example: Tensors, observed: Tensors, candidates: Candidates | None = None
    ) -> dict[str, Tensor]:
        return _times(self.factor, self.inner.simulate(per_example, self._as_read(observed), candidates))

    def local_steps(self, observed: Tensors) -> StepDefense:
        return self.inner.local_steps(self._as_read(observed))

    def sent(self, updates: Tensors, observed: Tensors) -> dict[str, Tensor]:
        return _times(self.factor, self.inner.sent(updates, self._as_read(observed)))

    def log_likelihood(self, simulated: Tensors, observed: Tensors) -> Tensor | None:
        return self.inner.log_likelihood(self._as_read(simulated), self._as_read(observed))

    def log_density(self, simulated: Tensors, observed: Tensors) -> Tensor | None:
        return self.inner.log_density(self._as_read(simulated), self._as_read(observed))

    def _as_read(self, observed: Tensors) -> dict[str, Tensor]:
        return _times(1 / self.factor, observed)


@dataclass(frozen=True, slots=True)
class _RescaledSimulator:
    """A `Simulator` of `factor` times what `inner` shows."""

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
    """The reading, times a power of two where its median norm is not between 1e-6 and 1e6, so that it is about 1; its
    description and its simulator follow.

    A factor hides nothing: who squares 1e-21 in single precision has 0, and takes any candidate for the truth.
    """
    squares = torch.stack([value.double().flatten(1).square().sum(1) for value in reading.values.values()])
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
        simulator=None if simulator is None else _RescaledSimulator(simulator, factor),
    )


def _times(factor: float, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: factor * value for name, value in tensors.items()}
