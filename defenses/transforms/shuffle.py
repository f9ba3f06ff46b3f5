"""Shuffling: each coordinate's reports of a round reach the server in an order that names no client."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import Context, Tensors, Transform


@dataclass(frozen=True, slots=True)
class ShuffleCoordinates(Transform):
    """A random order of the clients for every coordinate: rows (client, *shape) whose numbers are each round's
    own, mixed.  The mean is as before.

    Sun et al. 2021 (§3, algorithm 3) send every parameter by itself at a time of its own, uniform in (0, T).
    Independent times say nothing of who sent what, however short T is, so that T itself is not simulated.
    """

    random: ClassVar[bool] = True
    across: ClassVar[bool] = True
    unlinks: ClassVar[bool] = True

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        return {
            name: torch.gather(
                value, 0, context.draws.uniform(f"{name}/order", value).argsort(dim=0, stable=True)
            )
            for name, value in tensors.items()
        }
