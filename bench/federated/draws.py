"""Where a defense's randomness comes from: a key per row, so that no order matters."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bench.rng import Field, generator


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedDraws:
    """Draws keyed by (seed, draw, round, local step, stage, which random transform, observation) and,
    for each row of the leading axes in row-major order, by its own fields (client, position in
    batch), and by the variable's name.

    Cells that differ only in a defense's strength therefore meet the same underlying draws.
    """

    seed: int
    fields: tuple[Field, ...]
    rows: tuple[tuple[Field, ...], ...]

    def normal(self, name: str, like: Tensor) -> Tensor:
        """Standard normals in the shape of `like`."""
        return self._draw("normal", name, like)

    def uniform(self, name: str, like: Tensor) -> Tensor:
        """Uniform in [0, 1), in the shape of `like`."""
        return self._draw("uniform", name, like)

    def _draw(self, law: str, name: str, like: Tensor) -> Tensor:
        size = like.numel() // len(self.rows)
        drawn = np.empty((len(self.rows), size), np.float32)
        for number, row in enumerate(self.rows):
            source = generator(self.seed, "defense", *self.fields, *row, name)
            if law == "normal":
                source.standard_normal(out=drawn[number], dtype=np.float32)
            else:
                source.random(out=drawn[number], dtype=np.float32)
        return torch.from_numpy(drawn).reshape(like.shape).to(like)
