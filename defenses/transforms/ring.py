"""Masks among integers modulo R (a ring): clients round and mask updates; the server can read only a round's sum."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import AddedNoise, Context, State, Tensors, Transform
from bench.defenses.ranges import positive

_LOW = 12  # bits of a ring element from its second draw; a single-precision uniform has 24 bits
_BITS = 24  # maximum number of bits from the first draw


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Number format of secure aggregation: masked uploads are integers modulo R, so that masks cancel in the sum. A
    coordinate in [-c, c] is rounded to steps of 2c/2^b; R is the least power of two above the sum of K updates."""

    clip: float
    """c, bound on a coordinate's magnitude."""
    bits: int
    """b, log₂ of the number of steps in [-c, c]."""
    clients: int
    """K, the number of clients in a round."""
    dummies: int = 0
    """k, the number of these clients that the attacker controls."""

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
        """Number of bits of a masked upload's coordinate, log₂ R for integers modulo R: `bits` plus the binary digits
        of the number of `clients`."""
        return self.bits + self.clients.bit_length()

    @property
    def senders(self) -> int:
        """Number of clients in a round without the attacker's own clients, K - k."""
        return self.clients - self.dummies

    @property
    def step(self) -> float:
        """Rounding step of a coordinate, 2c/2^b, in units of the update: the difference between values that
        neighbouring integers stand for."""
        return 2 * self.clip / 2.0**self.bits

    def reduced(self, integers: Tensor) -> Tensor:
        """Reduce `integers` modulo R, the number of values in the ring, to the range [-R/2, R/2); exact in float64."""
        size = 2.0**self.width
        return integers - size * torch.floor(integers / size + 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskInRing(Transform):
    """Hide each of K clients' updates x_k by a random mask, as in secure aggregation: limit the update to [-c, c],
    round at random to an integer, add a mask m_k, and reduce modulo R. Client k sends (⌊x_k/step + u_k⌋ + m_k) mod R,
    times the step; u_k uniform in [0, 1) makes the rounding unbiased.

    The masks have sum 0: m_k = s_k - s_(k+1), with s_k uniform in the ring (the integers modulo R) and s_(K+1) = s_1.
    Their distribution is uniform under this condition, like masks from pairwise seeds (Bonawitz et al. 2017, §4): a
    single upload is uniform in the ring for every update, and any K - 1 uploads are independent.

    An attacker with k dummies (own clients) knows the sum of the dummies' masks, and so the sum of the other K - k
    masks. The rows are then these K - k clients, and their masks have sum 0: the attacker's difference, bit for bit.

    For another number of rows, row i has the mask s_i: every row is masked, and the sum cannot be read. The harness
    passes such rows only if no attacker sees the result."""

    random: ClassVar[bool] = True
    mixes_clients: ClassVar[bool] = True
    allows_dummies: ClassVar[bool] = True

    ring: Ring
    """Integers modulo R, in which the masks are drawn."""

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        ring, masked = self.ring, {}
        for name, tensor in tensors.items():
            scaled = tensor.double().clamp(-ring.clip, ring.clip) / ring.step
            below = scaled.floor()
            up = context.draws.uniform(f"{name}/rounding", tensor).double() < scaled - below
            masks = self._seeds(name, tensor, context)
            if len(tensor) == ring.senders:
                masks = masks - masks.roll(-1, 0)
            integers = below + up.double() + masks
            masked[name] = (ring.step * ring.reduced(integers)).to(tensor)
        return masked

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """Return the transform's output for an attacker's candidate updates `tensors`, averaged over rounding and
        masks, and the unchanged `state`: the candidate limited to [-c, c], with c = `ring.clip`. The mean over a
        round's uploads is centred at this value. For a single upload the value has no meaning, because the upload has
        no information on the candidate. `context`: place in the training."""
        ring = self.ring
        return {name: tensor.clamp(-ring.clip, ring.clip) for name, tensor in tensors.items()}, state

    def noise(self, context: Context, state: State) -> AddedNoise:
        """Return the noise that attackers assume, for a single upload and for the mean over a round's K clients. An
        upload has the variance of a uniform integer modulo R, (R² - 1)/12, in squares of the rounding step `ring.step`.
        The mean has only the rounding noise, at most 1/(4K) in these squares. `context`: place in the training; `state`
        is not used."""
        square = self.ring.step**2
        return AddedNoise(variance=square * (4.0**self.ring.width - 1) / 12, of_mean=square / (4 * self.ring.senders))

    def log_likelihood(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor:
        """Return the log likelihood of a masked upload `observed` under each candidate in `tensors`, up to a constant:
        0 for each row (client), (row,), because the upload has the same distribution for all candidates. `context`:
        place in the training."""
        first = next(iter(tensors.values()))
        return 0 * first.flatten(context.lead).sum(-1).reshape(first.shape[: context.lead])

    def _seeds(self, name: str, like: Tensor, context: Context) -> Tensor:
        """Return the terms s_k of the masks: a uniform integer in [0, R) per coordinate, in the shape of `like`, in
        float64. Each integer comes from two draws, because a single draw has too few bits."""
        high = torch.floor(context.draws.uniform(f"{name}/mask high", like).double() * 2.0 ** (self.ring.width - _LOW))
        low = torch.floor(context.draws.uniform(f"{name}/mask low", like).double() * 2.0**_LOW)
        return high * 2.0**_LOW + low


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSum(Transform):
    """Recover the mean update at the server of a secure aggregation: the mean of K masked uploads, times K, is an
    integer number of steps, reduced modulo R. Masks and multiples of R cancel, so the result is the mean update, exact
    in double precision. In single precision an upload has 24 bits; for many clients, R needs more. The mean then has a
    root mean square error of about √K/5 steps, 2·10⁻⁶ for ten clients and default steps."""

    allows_dummies: ClassVar[bool] = True

    ring: Ring
    """Integers modulo R, in which the uploads were masked."""

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        ring, unmasked = self.ring, {}
        for name, tensor in tensors.items():
            total = (tensor.double() * (ring.senders / ring.step)).round()
            unmasked[name] = (ring.reduced(total) * (ring.step / ring.senders)).to(tensor)
        return unmasked
