"""Promise: descriptions compose in stage order, and a candidate that is the truth fits them."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations

import pytest
import torch
from torch import Tensor

from bench.contracts.trials import context_of, trial_of
from bench.defenses.base import Context, Setting, Transform
from bench.defenses.none import NoDefense
from bench.defenses.transforms.clip import Clip
from bench.defenses.transforms.low_rank import TopDirections
from bench.defenses.transforms.mask import KeepLargest, KeepRandom
from bench.defenses.transforms.noise import GaussianNoise, LaplaceNoise
from bench.defenses.transforms.sensitivity import SensitivityNoise
from bench.defenses.transforms.shuffle import ShuffleCoordinates
from bench.defenses.transforms.two_point import TwoPoint
from bench.federated.describe import Composition, describe
from bench.federated.stages import DrawKey, Stages, stages
from bench.federated.straight_through import straight_through
from bench.points import point
from bench.registry import entries as registry

SETTING = Setting(clients=10, per_round=5, rounds=3, steps=1, batch=1, client_examples=9, rate=0.1)
SHAPES = {"conv.weight": (6, 2, 3, 3), "conv.bias": (6,), "fc.weight": (5, 8)}
TRANSFORMS: dict[str, Transform] = {
    "flat": Clip(bound=0.5),
    "tensor": Clip(bound=0.5, per="tensor"),
    "largest": KeepLargest(share=0.6),
    "random": KeepRandom(share=0.6),
    "low-rank": TopDirections(rank=1),
    "gaussian": GaussianNoise(deviation=1e-3),
    "laplace": LaplaceNoise(scale=1e-3),
}
PAIRS = list(permutations(TRANSFORMS, 2))
NOISE = ("gaussian", "laplace")
# A mask's draws that noise hides, or a truncation: what was kept is not in the reading.
UNREAD = {("random", other) for other in ("low-rank", *NOISE)}


def gradients(seed: int) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(seed)
    return {name: torch.randn((4, *shape), generator=made, dtype=torch.float64) for name, shape in SHAPES.items()}


def described(first: str, second: str) -> tuple[Stages, Composition, dict[str, Tensor]]:
    """Both at the client's stage, their description, and what a server then reads of four clients."""
    found = Stages(setting=SETTING, transforms={"client": (TRANSFORMS[first], TRANSFORMS[second])}, states={})
    shown, _ = found.apply("client", gradients(0), DrawKey(seed=1, draw=0, round=0), (0, 1, 2, 3))
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
    if (first, second) in UNREAD:
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
        ("flat", "gaussian", True),
        ("low-rank", "laplace", True),
        ("gaussian", "laplace", True),
        ("flat", "tensor", True),
        ("gaussian", "flat", False),
        ("random", "flat", False),
        ("laplace", "largest", False),
        ("flat", "random", False),
    ],
)
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
        ("per-example", 4, "type-2", 0.09),
        ("per-example", 4, "type-1", 0.09 / 4),
        ("batch", 4, "type-1", 0.09),
        ("code", 4, "type-1", 0.09 / 16),
        ("batch", 4, "type-2", 0.0),
    ],
)
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


def test_on_a_mean_of_clients_each_keeps_what_is_its_own() -> None:
    """Three clients clip and prune their updates: the description takes the candidates' clients one by one."""
    setting = Setting(clients=10, per_round=3, rounds=3, steps=1, batch=2, client_examples=9, rate=0.1)
    found = Stages(setting=setting, transforms={"client": (TRANSFORMS["flat"], TRANSFORMS["largest"])}, states={})
    each = {name: torch.cat([v, v + 1, 2 * v])[:6] for name, v in gradients(0).items()}  # of two examples a client
    means = {name: value.unflatten(0, (3, 2)).mean(1) for name, value in each.items()}
    sent, _ = found.apply("client", means, DrawKey(seed=1, draw=0, round=0), (0, 1, 2))
    shown = {name: value.mean(0, keepdim=True) for name, value in sent.items()}
    description = describe(found, point("aggregate"), round_=0, unit=1.0, probe={n: v[0] for n, v in each.items()})
    assert description is not None
    assert description.ordered
    truth = description.simulate({name: value[None] for name, value in each.items()}, shown)
    assert gap(truth, shown) <= 1e-20 * gap(shown, {n: torch.zeros_like(v) for n, v in shown.items()})


@dataclass(frozen=True)
class Rounded(Transform):
    """Says nothing of itself."""

    step: float

    def apply(self, tensors: Mapping[str, Tensor], context: Context) -> dict[str, Tensor]:
        del context
        return {name: (value / self.step).round() * self.step for name, value in tensors.items()}


@dataclass(frozen=True)
class Halved(Rounded):
    """Differentiable, and says nothing of itself either."""

    def apply(self, tensors: Mapping[str, Tensor], context: Context) -> dict[str, Tensor]:
        del context
        return {name: value.tanh() / 2 for name, value in tensors.items()}


@dataclass(frozen=True)
class Dropped(Rounded):
    """Keeps a coordinate with probability `step`."""

    random = True

    def apply(self, tensors: Mapping[str, Tensor], context: Context) -> dict[str, Tensor]:
        return {n: v * (context.draws.uniform(n, v) < self.step) for n, v in tensors.items()}


def of_one(*transforms: Transform) -> Composition:
    found = Stages(setting=SETTING, transforms={"client": transforms}, states={})
    probe = {name: value[0] for name, value in gradients(0).items()}
    description = describe(found, point("type-1"), round_=0, unit=1.0, probe=probe)
    assert description is not None
    return description


def slope_of(transform: Transform) -> tuple[dict[str, Tensor], dict[str, Tensor], Mapping[str, Tensor]]:
    """The candidates, what the description makes of them where noise hides the draws, and its sum's derivative."""
    free = {name: value[:, None].clone().requires_grad_() for name, value in gradients(0).items()}
    after = of_one(transform, GaussianNoise(deviation=1e-3)).simulate(free, gradients(1))
    total = torch.stack([value.sum() for value in after.values()]).sum()
    return free, after, dict(zip(free, torch.autograd.grad(total, list(free.values())), strict=True))


def test_a_transform_that_says_nothing_is_simulated_by_its_code() -> None:
    free, after, slope = slope_of(Rounded(0.5))
    for name, value in free.items():
        torch.testing.assert_close(after[name], (value[:, 0].detach() / 0.5).round() * 0.5)
        assert slope[name].min() == slope[name].max()
        assert 0.3 < float(slope[name].flatten()[0]) < 3, "a staircase's derivative is that of the ramp below it"


def test_the_codes_own_derivative_is_taken_where_it_is_right() -> None:
    free, after, slope = slope_of(Halved(0.0))
    for name, value in free.items():
        torch.testing.assert_close(slope[name], (1 - value.detach().tanh() ** 2) / 2)


def test_what_is_random_and_says_nothing_is_the_mean_over_own_draws() -> None:
    free, after, slope = slope_of(Dropped(0.25))
    for name, value in free.items():
        torch.testing.assert_close(after[name], 0.25 * value[:, 0].detach())
        torch.testing.assert_close(slope[name], torch.full_like(value, 0.25), rtol=0.3, atol=0.1)


def test_what_looks_at_other_clients_is_not_described_for_one() -> None:
    found = Stages(setting=SETTING, transforms={"exchange": (ShuffleCoordinates(),)}, states={})
    probe = {name: value[0] for name, value in gradients(0).items()}
    assert describe(found, point("type-0"), round_=0, unit=1.0, probe=probe) is None
    assert describe(found, point("aggregate"), round_=0, unit=1.0, probe=probe) is not None


def test_noise_that_differs_between_coordinates_has_their_mean() -> None:
    found = Stages(setting=SETTING, transforms={"client": (TwoPoint(epsilon=1.0),)}, states={})
    weights = {name: value[0] for name, value in gradients(0).items()}
    weights["fc.weight"] = 3 * weights["fc.weight"]
    description = describe(found, point("type-1"), round_=0, unit=1.0, probe=weights, weights=weights)
    assert description is not None
    noise, reach = description.noise, {n: float(v.max() - v.min()) / 2 for n, v in weights.items()}
    assert noise.variances is not None
    kappa = TwoPoint(epsilon=1.0).stretch
    for name, variance in noise.variances.items():
        assert float(variance) == pytest.approx((reach[name] * kappa) ** 2)
    count = sum(value.numel() for value in weights.values())
    assert noise.variance == pytest.approx(sum((reach[n] * kappa) ** 2 * v.numel() for n, v in weights.items()) / count)


def test_a_noise_that_is_shrunk_later_or_depends_on_the_batch_is_a_bound() -> None:
    assert not described("flat", "gaussian")[1].noise.bound
    assert described("gaussian", "flat")[1].noise.bound
    assert of_one(SensitivityNoise(multiplier=1.0, bound=2.0)).noise.bound


def _signs(value: Tensor, lead: int, seed: int) -> Tensor:
    return torch.randn(value.shape[lead:], generator=torch.Generator().manual_seed(seed)).sign().to(value)


@dataclass(frozen=True)
class _Astray(Transform):
    """Public signs; what it says is expected has the right values, and a derivative of other signs."""

    def apply(self, tensors: Mapping[str, Tensor], context: Context) -> dict[str, Tensor]:
        return {name: value * _signs(value, context.lead, 1) for name, value in tensors.items()}

    def expected(
        self, tensors: Mapping[str, Tensor], state: Mapping[str, Tensor], context: Context
    ) -> tuple[dict[str, Tensor], Mapping[str, Tensor]]:
        right = self.apply(tensors, context)
        return {
            name: right[name].detach() + _signs(value, context.lead, 2) * (value - value.detach())
            for name, value in tensors.items()
        }, state


def test_a_stated_derivative_that_leads_astray_is_not_taken() -> None:
    trial = trial_of(NoDefense(), steps=1, batch=1)
    context, given = context_of(trial, "client"), trial.at("client")
    transform = _Astray()
    code = straight_through(transform, given, {}, context)
    free = {name: value.clone().requires_grad_() for name, value in given.items()}
    after, _ = code(free, {}, context)
    torch.stack([value.sum() for value in after.values()]).sum().backward()
    for value in free.values():
        assert value.grad is not None
        assert torch.equal(value.grad, _signs(value, context.lead, 1).expand_as(value))
