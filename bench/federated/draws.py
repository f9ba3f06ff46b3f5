"""Random draws for defenses: a key per row, or a stream per client, independent of the processing order."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from bench.rng import Field, generator


class NoDraws:
    """Stand-in for a source of random numbers in code that must not draw any: each draw raises `RuntimeError`."""

    def normal(self, name: str, like: Tensor) -> Tensor:
        """Raise `RuntimeError`, with the tensor's `name` in the message; `like` is not used."""
        raise RuntimeError(f"nothing may be drawn here ({name})")

    uniform = normal


class ZeroDraws(NoDraws):
    """Source of random draws in which every normal draw is zero: a transform with additive noise gives its noiseless
    output. Other draws raise `RuntimeError`."""

    def normal(self, name: str, like: Tensor) -> Tensor:
        """Return zeros with the shape of `like`, for any tensor `name`."""
        return torch.zeros_like(like)


@dataclass(slots=True, kw_only=True)
class CentralDraws:
    """Fixed numbers in place of a defense's random draws, with which an attacker computes the defense's mean output:
    the mean of the outputs for `part` = 0 to `parts` - 1.

    A normal draw is 0. A uniform draw is the midpoint of interval number `part` among `parts` equal intervals of [0,
    1); the intervals have a different order for each coordinate. In the mean, the probability that a uniform lies below
    a threshold is off by at most 1/(2·parts)."""

    lead: int
    """Number of leading axes (such as client and example), along which draws are equal."""
    part: int = 0
    """Number of the interval, from 0."""
    parts: int = 1
    """Number of intervals."""
    drawn: bool = False
    """True after a uniform was drawn: the output may then differ between parts."""

    def normal(self, name: str, like: Tensor) -> Tensor:
        """Return zeros with the shape of `like`, for any tensor `name`."""
        return torch.zeros_like(like)

    def uniform(self, name: str, like: Tensor) -> Tensor:
        """Return the midpoints for the tensor `name`, with the shape of `like`; equal along the leading axes."""
        self.drawn = True
        shape = tuple(like.shape[self.lead :])
        middles = (_orders(name, shape, self.parts)[self.part] + 0.5) / self.parts
        return middles.to(like).expand(like.shape)


@lru_cache(maxsize=64)
def _orders(name: str, shape: tuple[int, ...], parts: int) -> Tensor:
    """Return a random order of 0 … `parts` - 1 for each coordinate of the tensor `name`, (part, *shape)."""
    draw = generator(0, "own draws", name).random((parts, *shape), dtype=np.float32)
    return torch.from_numpy(draw.argsort(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedDraws:
    """Random draws determined by a key: the seed, `fields`, the fields of a row (a client or an example), and the
    tensor name. The defense's strength is no part of the key, so cells (experiments) that differ only in the
    strength have the same draws."""

    seed: int
    """Seed of the cell."""
    fields: tuple[Field, ...]
    """Key fields common to all rows: draw, round, local step, stage, number of the random transform, observation."""
    rows: tuple[tuple[Field, ...], ...]
    """Key fields of each row (a client, or an example of a client): (client,) or (client, position in the batch), in
    row-major order."""

    def normal(self, name: str, like: Tensor) -> Tensor:
        """Return standard normal numbers for the tensor `name`, with the shape of `like`."""
        return self._draw("normal", name, like)

    def uniform(self, name: str, like: Tensor) -> Tensor:
        """Return uniform numbers in [0, 1) for the tensor `name`, with the shape of `like`."""
        return self._draw("uniform", name, like)

    def _draw(self, law: str, name: str, like: Tensor) -> Tensor:
        size = like.numel() // len(self.rows)
        drawn = np.empty((len(self.rows), size), np.float32)
        for number, row in enumerate(self.rows):
            key = generator(self.seed, "defense", *self.fields, *row, name)
            if law == "normal":
                key.standard_normal(out=drawn[number], dtype=np.float32)
            else:
                key.random(out=drawn[number], dtype=np.float32)
        return torch.from_numpy(drawn).reshape(like.shape).to(like)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDraws:
    """Random draws for defenses in training. On a CPU each client has a random generator in each round: a client's
    draws follow the order of local steps, stages and tensors, and do not depend on the clients that are processed
    together. On a GPU a single generator serves all clients that are processed together."""

    streams: tuple[torch.Generator, ...]
    """Generator of each client (client,), or a single generator for all clients."""

    @classmethod
    def of(cls, seed: int, draw: int, round_: int, clients: tuple[int, ...], device: torch.device) -> "StreamDraws":
        """Return the random draws for a round of a training.

        - `seed`, `draw`: the training's seed, and the number of its repetition with other noise.
        - `round_`: number of the round, from 0.
        - `clients`: numbers of the round's clients.
        - `device`: device of the generators."""
        first = int(generator(seed, "defense in training", draw, round_).integers(2**32))
        # The CPU's generator takes 32-bit seeds: consecutive seeds give a round's clients distinct streams.
        own = clients if device.type == "cpu" else clients[:1]  # a draw for all clients is a single kernel
        return cls(streams=tuple(torch.Generator(device).manual_seed((first + client) % 2**32) for client in own))

    def normal(self, name: str, like: Tensor) -> Tensor:
        """Return standard normal numbers with the shape of `like`, (client, …), from the clients' generators; `name`
        has no effect."""
        return self._fill(like, Tensor.normal_)

    def uniform(self, name: str, like: Tensor) -> Tensor:
        """Return uniform numbers in [0, 1) with the shape of `like`, (client, …), from the clients' generators; `name`
        has no effect."""
        return self._fill(like, Tensor.uniform_)

    def _fill(self, like: Tensor, law: Callable[..., Tensor]) -> Tensor:
        drawn = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        if len(self.streams) == 1:
            law(drawn, generator=self.streams[0])
            return drawn
        for row, stream in zip(drawn, self.streams, strict=True):
            law(row, generator=stream)
        return drawn
