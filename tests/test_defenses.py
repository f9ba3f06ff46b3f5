"""Defenses: what each does at which stage, its closed-form norms and variances, what it refuses."""

import math
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch

from bench import rng
from bench.defenses.base import Context, Defense, Setting
from bench.defenses.fed_cdp import FedCdp
from bench.defenses.fed_sdp import FedSdp
from bench.defenses.gaussian import Gaussian
from bench.defenses.laplace import Laplace
from bench.defenses.low_rank import LowRank
from bench.defenses.none import NoDefense
from bench.defenses.prune import Prune
from bench.defenses.random_prune import RandomPrune
from bench.defenses.transforms.noise import Noise
from bench.errors import BenchError
from bench.parameters import build, parameters, values
from bench.points import POINTS
from bench.registry.static import read

K, B = 16, 5
SETTING = Setting(clients=100, per_round=K, rounds=20, steps=1, batch=B, client_examples=50, rate=0.1)
LEADS = {"example": (K, B), "step": (K,), "client": (K,), "server": (K,), "aggregate": ()}
SHAPES = {"weight": (20, 30), "bias": (20,)}
CLASSES: dict[str, Any] = {
    "none": NoDefense,
    "prune": Prune,
    "random-prune": RandomPrune,
    "low-rank": LowRank,
    "gaussian": Gaussian,
    "laplace": Laplace,
    "fed-sdp": FedSdp,
    "fed-cdp": FedCdp,
}
# name, parameters, the stages where it acts, and the points where that is seen
ACTS: tuple[Any, ...] = (
    ("none", {}, (), ()),
    ("prune", {}, ("client",), ("type-1", "type-0", "aggregate")),
    ("prune", {"at": "example"}, ("example",), tuple(POINTS)),
    ("random-prune", {}, ("client",), ("type-1", "type-0", "aggregate")),
    ("random-prune", {"at": "example", "deviation": 0.1}, ("example",), tuple(POINTS)),
    ("low-rank", {}, ("client",), ("type-1", "type-0", "aggregate")),
    ("low-rank", {"at": "example", "rank": 2}, ("example",), tuple(POINTS)),
    ("gaussian", {}, ("client",), ("type-1", "type-0", "aggregate")),
    ("gaussian", {"at": "example"}, ("example",), tuple(POINTS)),
    ("laplace", {}, ("client",), ("type-1", "type-0", "aggregate")),
    ("laplace", {"at": "example"}, ("example",), tuple(POINTS)),
    # Fed-αCDP Table III: at the server only type-0 is protected, on the client types 0 and 1
    ("fed-sdp", {}, ("server",), ("type-0", "aggregate")),
    ("fed-sdp", {"at": "client"}, ("client",), ("type-1", "type-0", "aggregate")),
    ("fed-sdp", {"noise": "mean"}, ("server", "aggregate"), ("type-0", "aggregate")),
    ("fed-sdp", {"at": "client", "noise": "mean"}, ("client", "aggregate"), ("type-1", "type-0", "aggregate")),
    # and per-example noise protects all three
    ("fed-cdp", {}, ("example",), tuple(POINTS)),
    ("fed-cdp", {"noise": "batch"}, ("example", "step"), tuple(POINTS)),
    ("fed-cdp", {"noise": "code"}, ("example", "step"), tuple(POINTS)),
)


@dataclass(frozen=True)
class Draws:
    """Draws keyed by stage, law and variable."""

    stage: str

    def normal(self, name, like):
        drawn = rng.generator(0, "normal", self.stage, name).standard_normal(tuple(like.shape))
        return torch.from_numpy(drawn).to(like)

    def uniform(self, name, like):
        drawn = rng.generator(0, "uniform", self.stage, name).random(tuple(like.shape))
        return torch.from_numpy(drawn).to(like)


def context(stage):
    lead = len(LEADS[stage])
    return Context(lead=lead, stage=stage, round=0, step=0, setting=SETTING, draws=Draws(stage))


def gradients(stage, scale=1.0):
    source = torch.Generator().manual_seed(3)
    return {
        name: scale * torch.randn((*LEADS[stage], *shape), generator=source, dtype=torch.float64)
        for name, shape in SHAPES.items()
    }


def after(defense, stage, tensors):
    for transform in defense.transforms(SETTING).get(stage, ()):
        tensors = transform.apply(tensors, context(stage))
    return tensors


def flat(tensors, stage):
    """(row, coordinate), all leading axes as one."""
    lead = len(LEADS[stage])
    rows = math.prod(LEADS[stage])
    return torch.cat([t.reshape((rows, math.prod(t.shape[lead:]))) for t in tensors.values()], dim=1)


def stated_variance(defense, stage):
    (variance,) = [
        transform.variance(context(stage))
        for transform in defense.transforms(SETTING)[stage]
        if isinstance(transform, Noise)
    ]
    return variance


def assert_variance(sample, variance, kurtosis=3.0):
    """The sample variance within five standard errors, v·√((kurtosis - 1)/n), of what is claimed."""
    error = variance * math.sqrt((kurtosis - 1) / sample.numel())
    assert abs(sample.var() - variance) < 5 * error


# --- the contract


@pytest.mark.parametrize(("name", "given", "stages", "points"), ACTS)
def test_acts_at_its_stages_and_is_seen_at_its_points(name, given, stages, points):
    defense = build(CLASSES[name], given, where=name)
    acting = defense.transforms(SETTING)
    assert tuple(acting) == stages
    assert set(stages) <= set(defense.stages)
    assert tuple(p for p, point in POINTS.items() if any(point.sees(stage) for stage in stages)) == points
    for stage in stages:
        before = gradients(stage)
        changed = after(defense, stage, before)
        assert all((changed[n].shape, changed[n].dtype) == (t.shape, t.dtype) for n, t in before.items())
        assert not torch.equal(flat(changed, stage), flat(before, stage))


@pytest.mark.parametrize("name", CLASSES)
def test_claims_just_the_stages_that_some_choice_of_parameters_uses(name):
    used = {stage for other, _, stages, _ in ACTS if other == name for stage in stages}
    assert used == set(CLASSES[name].stages)


@pytest.mark.parametrize("name", CLASSES)
def test_is_registered_under_its_name_and_read_without_import(name):
    (entry,) = entry_points(group="bench.defenses", name=name)
    assert entry.load() is CLASSES[name]
    assert issubclass(CLASSES[name], Defense)
    module, _, attribute = entry.value.partition(":")
    literals = read(module, attribute)
    assert literals["stages"] == CLASSES[name].stages
    assert literals["reference"] == CLASSES[name].reference
    assert literals["__doc__"]


@pytest.mark.parametrize("name", CLASSES)
def test_every_parameter_says_what_it_means_where_it_comes_from_and_can_be_given(name):
    declared = parameters(CLASSES[name])
    assert all(item.meaning and item.source for item in declared)
    defaults = values(CLASSES[name]())
    assert {item.name: item.default for item in declared} == defaults
    assert build(CLASSES[name], defaults, where=name) == CLASSES[name]()


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("none", {"share": 0.5}, "none: unknown parameter 'share'; it takes none"),
        ("prune", {"share": 1.5}, "prune: share must be at most 1, got 1.5"),
        ("prune", {"at": "server"}, "prune: at input should be 'client' or 'example', got 'server'"),
        ("prune", {"shares": 0.5}, "prune: unknown parameter 'shares'; did you mean 'share'?"),
        ("random-prune", {"threshold": -1.0}, "random-prune: threshold must be at least 0, got -1.0"),
        ("random-prune", {"deviation": math.nan}, "random-prune: deviation must be a number, got nan"),
        ("low-rank", {"share": 0.0}, "low-rank: share must be above 0, got 0.0"),
        ("low-rank", {"rank": 0}, "low-rank: rank must be at least 1, got 0"),
        ("gaussian", {"variance": -0.1}, "gaussian: variance must be at least 0, got -0.1"),
        ("laplace", {"variance": "much"}, "laplace: variance input should be a valid number, got 'much'"),
        ("fed-sdp", {"clip": 0.0}, "fed-sdp: clip must be above 0, got 0.0"),
        ("fed-sdp", {"noise": "some"}, "fed-sdp: noise input should be 'share', 'each' or 'mean', got 'some'"),
        ("fed-cdp", {"sigma": -6.0}, "fed-cdp: sigma must be at least 0, got -6.0"),
        ("fed-cdp", {"clipping": "tensor"}, "fed-cdp: clipping input should be 'per-tensor' or 'flat', got 'tensor'"),
    ],
)
def test_refuses(name, given, message):
    with pytest.raises(BenchError) as caught:
        build(CLASSES[name], given, where=name)
    assert str(caught.value) == message


# --- masks and low rank


@pytest.mark.parametrize("at", ["client", "example"])
def test_prune_zeroes_its_share_of_each_update(at):
    kept = (flat(after(Prune(at=at), at, gradients(at)), at) != 0).sum(1)
    assert (kept == 620 - 434).all()


def test_random_prune_zeroes_its_share_and_noises_what_it_sends():
    before = gradients("client")
    plain = flat(after(RandomPrune(share=0.9), "client", before), "client")
    noised = flat(after(RandomPrune(share=0.9, deviation=0.5), "client", before), "client")
    assert ((plain != 0).sum(1) == 62).all()
    assert torch.equal(plain != 0, noised != 0)
    assert_variance((noised - plain)[plain != 0], 0.25)


def test_random_prune_sends_nothing_below_its_threshold():
    sent = flat(after(RandomPrune(share=0.0, threshold=2.5), "client", gradients("client")), "client")
    before = flat(gradients("client"), "client")
    assert torch.equal(sent, torch.where(before.abs() > 2.5, before, 0))


@pytest.mark.parametrize(("defense", "rank"), [(LowRank(), 2), (LowRank(rank=5), 5), (LowRank(share=0.01), 1)])
def test_low_rank_leaves_its_rank_and_the_bias(defense, rank):
    before = gradients("client")
    changed = after(defense, "client", before)
    assert (torch.linalg.matrix_rank(changed["weight"]) == rank).all()
    assert torch.equal(changed["bias"], before["bias"])


# --- plain noise


@pytest.mark.parametrize("at", ["client", "example"])
@pytest.mark.parametrize(("kind", "kurtosis"), [(Gaussian, 3.0), (Laplace, 6.0)])
def test_noise_has_its_variance(kind, kurtosis, at):
    before = gradients(at)
    defense = kind(variance=0.04, at=at)
    assert stated_variance(defense, at) == pytest.approx(0.04)
    assert_variance(flat(after(defense, at, before), at) - flat(before, at), 0.04, kurtosis)


# --- Fed-SDP: C = 2, σ = 3


@pytest.mark.parametrize("at", ["server", "client"])
def test_fed_sdp_clips_all_tensors_of_an_update_together(at):
    clipped = after(FedSdp(at=at, clip=2.0, sigma=0.0), at, gradients(at, scale=100.0))
    torch.testing.assert_close(flat(clipped, at).norm(dim=1), torch.full((K,), 2.0, dtype=torch.float64))


@pytest.mark.parametrize("at", ["server", "client"])
@pytest.mark.parametrize(
    ("noise", "stage", "variance"), [("share", None, 36 / K), ("each", None, 36.0), ("mean", "aggregate", 36 / K**2)]
)
def test_fed_sdp_adds_noise_of_the_variance_of_its_option(at, noise, stage, variance):
    stage = stage or at
    defense = FedSdp(at=at, clip=2.0, sigma=3.0, noise=noise)
    assert stated_variance(defense, stage) == pytest.approx(variance)
    zeros = {name: 0 * tensor for name, tensor in gradients(stage).items()}
    assert_variance(flat(after(defense, stage, zeros), stage), variance)


def test_fed_sdp_shares_of_noise_amount_to_that_on_the_mean():
    share, mean = (FedSdp(noise=noise) for noise in ("share", "mean"))
    assert stated_variance(share, "server") / K == pytest.approx(stated_variance(mean, "aggregate"))


def test_fed_sdp_with_noise_on_the_mean_only_clips_an_update():
    (clip,) = FedSdp(noise="mean").transforms(SETTING)["server"]
    assert not isinstance(clip, Noise)


# --- Fed-CDP


def test_fed_cdp_clips_each_tensor_or_all_together():
    large = gradients("example", scale=100.0)
    each = after(FedCdp(clip=2.0, sigma=0.0), "example", large)
    for tensor in each.values():
        norms = tensor.flatten(2).norm(dim=2)
        torch.testing.assert_close(norms, torch.full((K, B), 2.0, dtype=torch.float64))
    together = flat(after(FedCdp(clip=2.0, sigma=0.0, clipping="flat"), "example", large), "example")
    torch.testing.assert_close(together.norm(dim=1), torch.full((K * B,), 2.0, dtype=torch.float64))


@pytest.mark.parametrize(
    ("noise", "stage", "variance"),
    [("per-example", "example", 36.0), ("batch", "step", 36.0), ("code", "step", 36 / B**2)],
)
def test_fed_cdp_adds_noise_of_the_variance_of_its_reading(noise, stage, variance):
    defense = FedCdp(clip=2.0, sigma=3.0, noise=noise)
    assert stated_variance(defense, stage) == pytest.approx(variance)
    zeros = {name: 0 * tensor for name, tensor in gradients(stage).items()}
    assert_variance(flat(after(defense, stage, zeros), stage), variance)


@pytest.mark.parametrize(("noise", "multiplier"), [("per-example", 13.4), ("batch", 30.0), ("code", 6.0)])
def test_fed_cdp_readings_amount_to_their_multipliers_of_the_sum(noise, multiplier):
    """At B = 5, σ = 6: the deviation on the batch's sum over C; only `code` is the σ of accountants."""
    defense = FedCdp(noise=noise)
    if noise == "per-example":
        on_sum = B * stated_variance(defense, "example")
    else:
        on_sum = B**2 * stated_variance(defense, "step")
    assert math.sqrt(on_sum) / defense.clip == pytest.approx(multiplier, abs=0.05)


@pytest.mark.parametrize("noise", ["batch", "code"])
def test_fed_cdp_with_noise_on_the_mean_leaves_an_example_clipped_only(noise):
    (clip,) = FedCdp(noise=noise).transforms(SETTING)["example"]
    assert not isinstance(clip, Noise)
