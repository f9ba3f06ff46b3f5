"""Promise: noise whose mean and variance are as stated, and that hides nothing all the same, is found."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest
import torch
from tests.planted import Planted
from torch import Tensor

from bench.contracts.base import ContractBroken, ContractSkipped
from bench.contracts.descriptions import noise
from bench.contracts.law import dependence, law
from bench.defenses.base import AddedNoise, Context, Defense, State, Tensors, Transform
from bench.defenses.fed_cdp import FedCdp
from bench.defenses.gaussian import Gaussian
from bench.defenses.laplace import Laplace
from bench.defenses.prune import Prune

Kind = Literal["normal", "grid", "blocks", "seeds", "two values", "first row", "of its size", "flat"]


@dataclass(frozen=True, slots=True)
class Noisy(Transform):
    """Noise of variance 1 on each coordinate, as it says."""

    random: ClassVar[bool] = True
    kind: Kind = "normal"

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        return {name: value + self._noise(name, value, context) for name, value in tensors.items()}

    def _noise(self, name: str, value: Tensor, context: Context) -> Tensor:
        z = context.draws.normal(name, value)
        flat = z.reshape(*value.shape[: context.lead], -1)
        if self.kind == "grid":  # of half a deviation: the remainder of a reading is the gradient's
            return (2 * z).round() / 2 / (1 + 1 / 48) ** 0.5
        if self.kind == "blocks":  # eight neighbours share a draw: differences have none
            at = torch.arange(flat.shape[-1]) // 8 * 8
            return flat[..., at].reshape(value.shape)
        if self.kind == "seeds":
            like = flat[..., :1]  # one seed for all tensors of a row
            number = (context.draws.uniform("seed", like)[..., 0] * 4096).long()
            rows = [
                torch.randn(flat.shape[-1], generator=torch.Generator().manual_seed(int(n)), dtype=value.dtype)
                for n in number.flatten()
            ]
            return torch.stack(rows).reshape(value.shape)
        if self.kind == "two values":
            return z.sign()
        if self.kind == "first row":  # of a batch; said to be a bound
            return z * (torch.arange(value.shape[1]) == 0).reshape(1, -1, *[1] * (value.dim() - 2))
        if self.kind == "of its size":
            return z * value.abs().mean()
        if self.kind == "flat":  # uniform, of variance 1
            return (context.draws.uniform(name, value) - 0.5) * 12**0.5
        return z

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        del context
        return dict(tensors), state

    def noise(self, context: Context, state: State) -> AddedNoise:
        del context, state
        return AddedNoise(variance=1.0, bound=self.kind in ("first row", "of its size"))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("grid", "takes few values"),
        ("two values", "takes few values"),
        ("blocks", "its coordinates depend on one another"),
        ("seeds", "it has few draws"),
        ("first row", "on one row is 0 of another's"),
        ("of its size", "times the variance on gradients ten times larger"),
        ("flat", "is not gaussian: its distribution is off by 0.0"),
    ],
)
def test_noise_of_the_right_moments_that_hides_nothing(kind: Kind, words: str) -> None:
    with pytest.raises(ContractBroken, match=words):
        law(Planted(stage="example", transform=Noisy(kind)))


@pytest.mark.parametrize("kind", ["two values", "blocks", "flat"])
def test_its_moments_are_right(kind: Kind) -> None:
    """So that the test above is of the law alone."""
    noise(Planted(stage="example", transform=Noisy(kind)))


@pytest.mark.parametrize(
    "defense", [Planted(stage="example", transform=Noisy()), Gaussian(), Laplace(), FedCdp(noise="batch")]
)
def test_what_is_stated_is_taken(defense: Defense) -> None:
    law(defense)


def test_without_noise_there_is_no_law() -> None:
    with pytest.raises(ContractSkipped):
        law(Prune())


def test_dependence_counts_the_directions_that_have_noise() -> None:
    draws, coordinates = 64, 4000
    drawn = torch.Generator().manual_seed(0)
    z = torch.randn(draws, coordinates, generator=drawn, dtype=torch.float64)
    # its square root of n products each: a standard error of 2/draws
    assert abs(dependence(z) - 1) < 5 * 2 / draws
    blocks = z[:, ::8].repeat_interleave(8, 1)
    assert abs(dependence(blocks) / 8 - 1) < 5 * 2 / draws
