"""A ring of integers: updates are rounded into it and masked, so that the sum of a round alone can be read."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import AddedNoise, Context, State, Tensors, Transform
from bench.defenses.ranges import positive

_LOW = 12  # bits of a ring element from its second draw; a uniform of single precision has 24
_BITS = 24  # of an element from its first draw, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Integers modulo R = 2^(b + bits of K), in steps of 2c/2^b: the least power of two above the sum of K updates in
    [-c, c].  `clip` c, `bits` b, `clients` K."""

    clip: float
    bits: int
    clients: int

    def __post_init__(self) -> None:
        positive("clip", self.clip)
        if self.bits < 1:
            raise ValueError(f"bits must be at least 1, got {self.bits}")
        if self.clients < 2:
            raise ValueError("the sum of one client's update is that update; give the round two clients at least")
        if not _LOW < self.width <= _LOW + _BITS:
            raise ValueError(
                f"a ring of {self.width} bits for {self.clients} clients; take bits so that it has "
                f"{_LOW + 1} to {_LOW + _BITS}"
            )

    @property
    def width(self) -> int:
        """log₂ R."""
        return self.bits + self.clients.bit_length()

    @property
    def step(self) -> float:
        return 2 * self.clip / 2.0**self.bits

    def reduced(self, integers: Tensor) -> Tensor:
        """Modulo R, in [-R/2, R/2); float64 holds each exactly."""
        size = 2.0**self.width
        return integers - size * torch.floor(integers / size + 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskInRing(Transform):
    """Client k of a round sends (⌊x_k/step + u_k⌋ + m_k) mod R, times the step, x_k its update limited to [-c, c].

    u_k is uniform in [0, 1): the rounding is unbiased.  m_k = s_k - s_(k+1) with s_k uniform in the ring, s_(K+1) =
    s_1: uniform among all masks that sum to 0, which is the law of masks from a seed of every pair (Bonawitz et al.
    2017, §4).  An upload by itself is uniform in the ring, whatever the update; any K - 1 of them are independent.

    Of other than K rows, which the harness passes where no point shows what comes out, each has the mask s_k: their sum
    is not readable, and no row is bare.
    """

    random: ClassVar[bool] = True
    mixes_clients: ClassVar[bool] = True

    ring: Ring

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        ring, masked = self.ring, {}
        for name, tensor in tensors.items():
            scaled = tensor.double().clamp(-ring.clip, ring.clip) / ring.step
            below = scaled.floor()
            up = context.draws.uniform(f"{name}/rounding", tensor).double() < scaled - below
            masks = self._seeds(name, tensor, context)
            if len(tensor) == ring.clients:
                masks = masks - masks.roll(-1, 0)
            integers = below + up.double() + masks
            masked[name] = (ring.step * ring.reduced(integers)).to(tensor)
        return masked

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """The candidate, limited to [-c, c]: the mean over a round is around that.  One upload says nothing of it."""
        del context
        ring = self.ring
        return {name: tensor.clamp(-ring.clip, ring.clip) for name, tensor in tensors.items()}, state

    def noise(self, context: Context, state: State) -> AddedNoise:
        """Of an upload that of a uniform element of the ring, (R² - 1)/12 steps squared; of the mean of K at most that
        of their rounding, 1/(4K)."""
        del context, state
        square = self.ring.step**2
        return AddedNoise(variance=square * (4.0**self.ring.width - 1) / 12, of_mean=square / (4 * self.ring.clients))

    def log_likelihood(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor:
        """0 for every candidate: all are as likely."""
        del observed
        first = next(iter(tensors.values()))
        return 0 * first.flatten(context.lead).sum(-1).reshape(first.shape[: context.lead])

    def _seeds(self, name: str, like: Tensor, context: Context) -> Tensor:
        """s_k, uniform in [0, R), in float64, of two draws each: one has too few bits."""
        high = torch.floor(context.draws.uniform(f"{name}/mask high", like).double() * 2.0 ** (self.ring.width - _LOW))
        low = torch.floor(context.draws.uniform(f"{name}/mask low", like).double() * 2.0**_LOW)
        return high * 2.0**_LOW + low


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSum(Transform):
    """The mean of a round's uploads → the mean of its updates: K times it is an integer of steps, taken modulo R.

    The masks and the multiples of R fall out.  In double precision that is exact.  In single precision an upload has 24
    bits, fewer than a ring of many clients, and the mean is off by about √K/5 steps (root mean square): 2·10⁻⁶ for ten
    clients and the default steps.
    """

    ring: Ring

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        del context
        ring, unmasked = self.ring, {}
        for name, tensor in tensors.items():
            total = (tensor.double() * (ring.clients / ring.step)).round()
            unmasked[name] = (ring.reduced(total) * (ring.step / ring.clients)).to(tensor)
        return unmasked
