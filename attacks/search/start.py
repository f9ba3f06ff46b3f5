"""First candidates of a search, drawn on the CPU with a key for each reading, example and restart."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bench.rng import Key
from bench.trip import Reading

Start = Literal["gaussian", "uniform", "grey", "black", "tile-2", "tile-4", "tile-8", "public"]


def start(kind: Start, reading: Reading, position: int, restart: int, key: Key) -> Tensor:
    """Draw the first candidates for a reading: (example, *shape) float32.

    - `kind`: distribution of the candidates, from the list below.
    - `reading`: the attacked readings; `position`: the reading's position in this batch.
    - `restart`: number of the draw, 0 for the first start.
    - `key`: source of random numbers.

    Kinds:

    - `gaussian`: N(0, 1) (Zhu et al. 2019); `uniform`: U(0, 1); `grey`, `black`: constants 0.5 and 0.
    - `tile-n`: a U(0, 1) tile with 1/n of height and width, repeated (Wei et al. 2020, §4.3); images only.
    - `public`: a random public example."""
    index = reading.indices[position]
    return torch.stack([_example(kind, reading, index, n, restart, key) for n in range(reading.examples)])


def _example(kind: Start, reading: Reading, index: int, example: int, restart: int, key: Key) -> Tensor:
    random = key.generator("start", index, example, restart)
    shape = reading.shape
    if kind == "gaussian":
        return torch.from_numpy(random.standard_normal(shape, dtype=np.float32))
    if kind == "uniform":
        return torch.from_numpy(random.random(shape, dtype=np.float32))
    if kind in ("grey", "black"):
        return torch.full(shape, 0.5 if kind == "grey" else 0.0)
    if kind == "public":
        return reading.public_inputs[int(random.integers(len(reading.public_inputs)))].clone()
    parts = int(kind.removeprefix("tile-"))
    channels, height, width = shape
    tile = random.random((channels, -(-height // parts), -(-width // parts)), dtype=np.float32)
    return torch.from_numpy(np.tile(tile, (1, parts, parts))[:, :height, :width].copy())
