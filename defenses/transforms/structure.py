"""Structure: local gradients are restricted to a space drawn at random for each round, known to all."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bench import rng
from bench.defenses.base import Context, State, Tensors, Transform

_CACHED = 64  # structures: a round has as many as the model has tensors, and every local step needs them again


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainInside(Transform):
    """Restrict a local gradient to a random structure (Konečný et al. 2016 §2), the same for all local steps and
    clients in a round. The structure is public, so the output has no secret draws.

    - `mask`: in each tensor round(`kept`·n) of the n coordinates, at least one, are trained; the others become 0.
    - `low-rank`: a weight's update is A·B with trained B. The weight, as a matrix (out, rest), has A (out, k) and B (k,
      rest), k = round(`kept`·min(out, rest)), at least 1. The gradient of B is AᵀG for the weight's gradient G, so a
      step moves the weight along A·AᵀG. A has orthonormal columns, uniform among such matrices. Tensors with fewer than
      two axes (biases) are trained whole."""

    structure: Literal["mask", "low-rank"]
    """Kind of structure."""
    kept: float
    """Share of the trained coordinates, or rank as a share of the full rank, in (0, 1]."""
    seed: int
    """Seed of the structures; a structure also depends on the round and on the tensor's name."""

    def __post_init__(self) -> None:
        if not 0 < self.kept <= 1:
            raise ValueError(f"share of trained variables must lie in (0, 1], got {self.kept}")

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        restrict = self._masked if self.structure == "mask" else self._projected
        return {name: restrict(name, value, context) for name, value in tensors.items()}

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """Return the transform's output for an attacker's candidate gradients `tensors`, and the unchanged `state`: the
        attacker knows the structure of the round, given by `context`."""
        return self.apply(tensors, context), state

    def _masked(self, name: str, value: Tensor, context: Context) -> Tensor:
        mask = _mask(self.seed, context.round, name, tuple(value.shape[context.lead :]), self.kept)
        return value.where(mask.to(value.device), 0.0)

    def _projected(self, name: str, value: Tensor, context: Context) -> Tensor:
        shape = value.shape[context.lead :]
        if len(shape) < 2:
            return value.clone()
        matrix = value.reshape(*value.shape[: context.lead], shape[0], -1)
        rank = max(1, round(self.kept * min(matrix.shape[-2:])))
        a = _columns(self.seed, context.round, name, shape[0], rank).to(value)
        projected: Tensor = (a @ (a.mT @ matrix)).reshape(value.shape)
        return projected


@lru_cache(maxsize=_CACHED)
def _mask(seed: int, round_: int, name: str, shape: tuple[int, ...], kept: float) -> Tensor:
    size = int(np.prod(shape))
    mask = np.zeros(size, bool)
    mask[_draws(seed, round_, name).permutation(size)[: max(1, round(kept * size))]] = True
    return torch.from_numpy(mask.reshape(shape))


@lru_cache(maxsize=_CACHED)
def _columns(seed: int, round_: int, name: str, rows: int, rank: int) -> Tensor:
    columns: Tensor = torch.linalg.qr(torch.from_numpy(_draws(seed, round_, name).standard_normal((rows, rank))))[0]
    return columns


def _draws(seed: int, round_: int, name: str) -> np.random.Generator:
    return rng.generator(seed, "structure", round_, name)
