"""A ring of integers: updates are rounded and masked, and only a round's sum can be read."""

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
    """Integers modulo R = 2^(b + bits of K), in steps 2c/2^b.

    R is the least power of two above the sum of K updates in [-c, c].
    """

    clip: float
    """c."""
    bits: int
    """b."""
    clients: int
    """K."""

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
        """Modulo R, in [-R/2, R/2); exact in float64."""
        size = 2.0**self.width
        return integers - size * torch.floor(integers / size + 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskInRing(Transform):
    """Client k sends (⌊x_k/step + u_k⌋ + m_k) mod R, times the step; x_k: its update limited to [-c, c].

    u_k is uniform in [0, 1): unbiased rounding.  m_k = s_k - s_(k+1), with s_k uniform in the ring and s_(K+1) = s_1:
    the uniform distribution over masks with sum 0, as for masks from pairwise seeds (Bonawitz et al. 2017, §4).  A
    single upload is uniform in the ring for every update; any K - 1 uploads are independent.

    With a row count other than K (passed by the harness if no point shows the result) row k has mask s_k: the sum is
    unreadable, and no row is bare.
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
        """The candidate limited to [-c, c]: centre of a round's mean.  A single upload has no information on the
        candidate."""
        del context
        ring = self.ring
        return {name: tensor.clamp(-ring.clip, ring.clip) for name, tensor in tensors.items()}, state

    def noise(self, context: Context, state: State) -> AddedNoise:
        """Single upload: variance of a uniform ring element, (R² - 1)/12 steps squared.  Mean of K: at most the
        rounding's, 1/(4K)."""
        del context, state
        square = self.ring.step**2
        return AddedNoise(variance=square * (4.0**self.ring.width - 1) / 12, of_mean=square / (4 * self.ring.clients))

    def log_likelihood(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor:
        """0 for every candidate: all are equally likely."""
        del observed
        first = next(iter(tensors.values()))
        return 0 * first.flatten(context.lead).sum(-1).reshape(first.shape[: context.lead])

    def _seeds(self, name: str, like: Tensor, context: Context) -> Tensor:
        """s_k, uniform in [0, R), in float64, from two draws each: a single draw has too few bits."""
        high = torch.floor(context.draws.uniform(f"{name}/mask high", like).double() * 2.0 ** (self.ring.width - _LOW))
        low = torch.floor(context.draws.uniform(f"{name}/mask low", like).double() * 2.0**_LOW)
        return high * 2.0**_LOW + low


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSum(Transform):
    """Mean of a round's uploads → mean of its updates: K times the mean is an integer number of steps, taken modulo R.

    Masks and multiples of R cancel.  Exact in double precision.  In single precision an upload has 24 bits, fewer than
    a ring for many clients: the mean is off by about √K/5 steps (root mean square), 2·10⁻⁶ for ten clients and default
    steps.
    """

    ring: Ring

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        del context
        ring, unmasked = self.ring, {}
        for name, tensor in tensors.items():
            total = (tensor.double() * (ring.clients / ring.step)).round()
            unmasked[name] = (ring.reduced(total) * (ring.step / ring.clients)).to(tensor)
        return unmasked
