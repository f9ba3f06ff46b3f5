"""Shuffling: each coordinate's reports of a round reach the server in an order that names no client."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import Context, Tensors, Transform


@dataclass(frozen=True, slots=True)
class ShuffleCoordinates(Transform):
    """A random order of the clients for every coordinate of (client, *shape).  The mean is as before.

    In LDP-FL (§3, algorithm 3) every parameter is sent by itself, at a time drawn uniformly in (0, T).  Independent
    times do not reveal the sender, however short T is, so that T itself is not simulated.
    """

    random: ClassVar[bool] = True
    mixes_clients: ClassVar[bool] = True
    unlinks: ClassVar[bool] = True

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        return {
            name: torch.gather(value, 0, context.draws.uniform(f"{name}/order", value).argsort(dim=0, stable=True))
            for name, value in tensors.items()
        }
