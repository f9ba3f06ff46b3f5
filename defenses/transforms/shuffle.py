"""Shuffling: the server receives the clients' reports of each coordinate in an anonymous order."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import Context, Tensors, Transform


@dataclass(frozen=True, slots=True)
class ShuffleCoordinates(Transform):
    """Hide which coordinates come from the same client: permute the clients at random, anew for every coordinate of the
    tensors (client, *shape). The server then cannot assemble a client's update; the mean over clients is unchanged. In
    LDP-FL (§3, algorithm 3) a client sends each parameter separately, at a uniform time in (0, T). Independent times
    never reveal the sender, for any T > 0; `arrival.py` has the times and stragglers."""

    random: ClassVar[bool] = True
    mixes_clients: ClassVar[bool] = True
    unlinks: ClassVar[bool] = True

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        return {
            name: torch.gather(value, 0, context.draws.uniform(f"{name}/order", value).argsort(dim=0, stable=True))
            for name, value in tensors.items()
        }
