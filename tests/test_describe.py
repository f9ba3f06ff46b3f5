"""Promise: descriptions compose in stage order, and a candidate that is the truth fits them."""

from itertools import permutations

import pytest
import torch
from torch import Tensor

from bench.defenses.base import Setting, Transform
from bench.defenses.transforms.clip import Clip
from bench.defenses.transforms.low_rank import TopDirections
from bench.defenses.transforms.mask import KeepLargest, KeepRandom
from bench.defenses.transforms.noise import GaussianNoise, LaplaceNoise
from bench.federated.describe import Composition, describe
from bench.federated.stages import Moment, Stages, stages
from bench.points import point
from bench.registry import entries as registry

SETTING = Setting(clients=10, per_round=5, rounds=3, steps=1, batch=1, client_examples=9, rate=0.1)
SHAPES = {"conv.weight": (6, 2, 3, 3), "conv.bias": (6,), "fc.weight": (5, 8)}
TRANSFORMS: dict[str, Transform] = {
    "flat": Clip(bound=0.5), "tensor": Clip(bound=0.5, per="tensor"), "largest": KeepLargest(share=0.6),
    "random": KeepRandom(share=0.6), "low-rank": TopDirections(rank=1),
    "gaussian": GaussianNoise(deviation=1e-3), "laplace": LaplaceNoise(scale=1e-3),
}  # fmt: skip
PAIRS = list(permutations(TRANSFORMS, 2))
NOISE = ("gaussian", "laplace")
MASKS = ("largest", "random")
# A mask and a truncation hide each other: the zeros that would show what was kept are filled, or the
# spaces are those of the masked matrix.  Noise fills the zeros as well.  These fit only roughly.
ROUGH = {*((m, o) for m in MASKS for o in ("low-rank", *NOISE)), *(("low-rank", m) for m in MASKS)}
ROUGH |= {(n, o) for n in NOISE for o in ("low-rank", *MASKS)}


def gradients(seed: int) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn((4, *shape), generator=made, dtype=torch.float64) for name, shape in SHAPES.items()
    }


def described(first: str, second: str) -> tuple[Stages, Composition, dict[str, Tensor]]:
    """Both at the client's stage, their description, and what a server then reads of four clients."""
    found = Stages(setting=SETTING, transforms={"client": (TRANSFORMS[first], TRANSFORMS[second])}, states={})
    shown, _ = found.apply("client", gradients(0), Moment(seed=1, draw=0, round=0), (0, 1, 2, 3))
    probe = {name: value[0] for name, value in gradients(0).items()}
    description = describe(found, point("type-1"), round_=0, unit=1.0, probe=probe)
    assert description is not None
    return found, description, shown


def gap(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return float(sum(((a[n] - b[n]) ** 2).sum() for n in a))


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_the_truth_fits_the_description_of_any_two_transforms(first: str, second: str) -> None:
    _, description, shown = described(first, second)
    truth = description.simulate({n: v[:, None] for n, v in gradients(0).items()}, shown)
    other = description.simulate({n: v[:, None] for n, v in gradients(1).items()}, shown)
    assert gap(truth, shown) < gap(other, shown), "the truth is nearer than another gradient"
    if (first, second) in ROUGH:
        return
    energy = gap(shown, {n: torch.zeros_like(v) for n, v in shown.items()})
    noisy = first in NOISE or second in NOISE
    coordinates = sum(v.numel() for v in shown.values())
    bound = 1.5 * coordinates * description.noise.variance if noisy else 1e-20 * energy
    assert gap(truth, shown) <= bound


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_the_description_of_any_two_is_differentiable(first: str, second: str) -> None:
    _, description, shown = described(first, second)
    free = {n: v[:, None].clone().requires_grad_() for n, v in gradients(2).items()}
    total = sum((v * v).sum() for v in description.simulate(free, shown).values())
    assert isinstance(total, Tensor)
    found = torch.autograd.grad(total, list(free.values()))
    assert all(torch.isfinite(g).all() for g in found)
    assert any(g.abs().max() > 0 for g in found)


@pytest.mark.parametrize(
    ("first", "second", "additive"),
    [
        ("flat", "gaussian", True), ("low-rank", "laplace", True), ("gaussian", "laplace", True),
        ("flat", "tensor", True), ("gaussian", "flat", False), ("random", "flat", False),
        ("laplace", "largest", False), ("flat", "random", False),
    ],
)  # fmt: skip
def test_observations_are_averaged_only_where_nothing_but_added_noise_is_random(
    first: str, second: str, additive: bool
) -> None:
    assert described(first, second)[1].additive is additive


def test_variances_add_up_and_a_single_law_is_kept() -> None:
    both = described("gaussian", "laplace")[1].noise
    assert both.law == "gaussian"
    assert both.variance == pytest.approx(3e-6)
    alone = described("flat", "laplace")[1].noise
    assert alone.law == "laplace"
    assert alone.variance == pytest.approx(2e-6)
    assert described("flat", "tensor")[1].noise.variance == 0


@pytest.mark.parametrize(
    ("noise", "batch", "at", "expected"),
    [
        ("per-example", 4, "type-2", 0.09), ("per-example", 4, "type-1", 0.09 / 4),
        ("batch", 4, "type-1", 0.09), ("code", 4, "type-1", 0.09 / 16), ("batch", 4, "type-2", 0.0),
    ],
)  # fmt: skip
def test_the_noise_behind_a_mean_of_the_batch(noise: str, batch: int, at: str, expected: float) -> None:
    setting = Setting(clients=10, per_round=5, rounds=3, steps=1, batch=batch, client_examples=9, rate=0.1)
    defense = registry.instance("defenses", "fed-cdp", {"clip": 0.5, "sigma": 0.6, "noise": noise})
    found = stages(defense, setting, SHAPES)
    probe = {name: value[0] for name, value in gradients(0).items()}
    description = describe(found, point(at), round_=0, unit=1.0, probe=probe)
    assert description is not None
    assert description.noise.variance == pytest.approx(expected)


def test_noise_on_an_update_is_in_units_of_the_gradient() -> None:
    found = Stages(setting=SETTING, transforms={"client": (GaussianNoise(deviation=0.1),)}, states={})
    probe = {name: value[0] for name, value in gradients(0).items()}
    description = describe(found, point("type-1"), round_=0, unit=0.05, probe=probe)
    assert description is not None
    assert description.noise.variance == pytest.approx(0.01 / 0.05**2)
