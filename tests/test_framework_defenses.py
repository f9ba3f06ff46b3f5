"""Defenses of frameworks against their code, written again in NumPy; `test_nvflare.py` and `test_flower.py` compare
with the installed frameworks."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm
from torch import Tensor

from bench.defenses.base import Context, Setting
from bench.defenses.local_dp_mod import LocalDpMod
from bench.defenses.nvflare_percentile import KeepAbovePercentile, NvflarePercentile
from bench.defenses.nvflare_svt import ChooseByThreshold, NvflareSvt
from bench.federated.draws import KeyedDraws
from bench.federated.privacy import account, at_point
from bench.points import point

SETTING = Setting(clients=10, per_round=5, rounds=1, steps=1, batch=1, client_examples=8, rate=0.1, weight_step=0.1)


def context(rows: int, setting: Setting = SETTING) -> Context:
    draws = KeyedDraws(seed=0, fields=("test",), rows=tuple((row,) for row in range(rows)))
    return Context(lead=1, stage="client", round=0, step=0, setting=setting, draws=draws)


def updates(rows: int = 3, seed: int = 0) -> dict[str, Tensor]:
    draw = np.random.default_rng(seed)
    shapes = {"weight": (6, 5), "bias": (7,)}
    made = {name: torch.from_numpy(draw.standard_normal((rows, *shape))) for name, shape in shapes.items()}
    made["bias"][:, :3] = 0.0
    return made


@pytest.mark.parametrize("percentile", [0.0, 10.0, 33.3, 90.0, 100.0])
@pytest.mark.parametrize(("gamma", "steps"), [(10.0, 1), (0.05, 1), (0.05, 4), (1e-3, 1)])
def test_the_percentile_filter_is_nvflares_on_the_weight_difference(
    percentile: float, gamma: float, steps: int
) -> None:
    setting, given = replace(SETTING, steps=steps), updates()
    defense = NvflarePercentile(percentile=percentile, gamma=gamma)
    ((transform,),) = defense.transforms(setting).values()
    sent = transform.apply(given, context(3, setting))
    for row in range(3):
        each = {name: -0.1 * value[row].numpy() / steps for name, value in given.items()}
        cutoff = np.percentile(np.concatenate([np.abs(value).ravel() for value in each.values()]), percentile)
        for name, value in each.items():
            kept = np.where((value > -cutoff) & (value < cutoff), 0.0, np.clip(value, -gamma, gamma))
            assert sent[name][row].numpy() == pytest.approx(kept * steps / -0.1, abs=1e-12)


def test_zeros_that_the_percentile_filter_shows_refuse_candidates() -> None:
    """A candidate above the percentile at a zero, and below it at a kept coordinate, is off the reading."""
    transform = KeepAbovePercentile(percentile=50, limit=10.0)
    truth = {"w": torch.tensor([[4.0, -3.0, 1.0, 0.5, 0.2]])}
    seen = transform.apply(truth, context(1))
    assert seen["w"].tolist() == [[4.0, -3.0, 1.0, 0.0, 0.0]]
    for candidate, off in (([4, -3, 1, 0.9, -1], 0.0), ([4, -3, 1, 2, 0], 1.0), ([4, -3, 0.25, 0, 0], 0.75)):
        said = transform.simulate({"w": torch.tensor([candidate], dtype=torch.float)}, seen, context(1))
        assert float((said["w"] - seen["w"]).abs().sum()) == pytest.approx(off)


def test_where_the_limit_hides_the_percentile_the_candidates_own_takes_its_place() -> None:
    transform = KeepAbovePercentile(percentile=50, limit=0.1)
    truth = {"w": torch.tensor([[4.0, -3.0, 1.0, 0.5, 0.2]])}
    seen = transform.apply(truth, context(1))
    assert torch.equal(transform.simulate(truth, seen, context(1))["w"], seen["w"])


def test_local_dp_mods_noise_is_flowers_formula() -> None:
    """FLIP's values: clip 1, sensitivity 1e-4, ε = 10 give noise of 4.8e-5."""
    assert LocalDpMod().deviation == pytest.approx(4.845e-5, rel=1e-3)
    given = {"w": torch.full((1, 40_000), 0.5, dtype=torch.float64)}  # of norm 10 as a weight difference
    defense = LocalDpMod(clipping_norm=2.0, sensitivity=4.0, epsilon=0.5, delta=1e-6)
    (transforms,) = defense.transforms(SETTING).values()
    sent = given
    for transform in transforms:
        sent = transform.apply(sent, context(1))
    apart = 0.1 * sent["w"] - 0.1 * given["w"] * (2.0 / 10)
    deviation = 4.0 * math.sqrt(2 * math.log(1.25e6)) / 0.5
    assert float(apart.std()) == pytest.approx(deviation, rel=5 / math.sqrt(2 * 40_000))


def true_epsilon(defense: LocalDpMod) -> tuple[float | None, tuple[str, ...]]:
    said, reason = at_point(defense, SETTING, point("type-1"), tensors=2, coordinates=100, round_=0, observations=1)
    assert said is not None and reason is None
    return said.epsilon, said.caveats


def test_epsilon_follows_from_the_clip_not_from_the_stated_sensitivity() -> None:
    """δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ) with μ = 2·clip/deviation (Balle & Wang 2018) at the figure reported."""
    for honest in (LocalDpMod(sensitivity=2.0, epsilon=0.9), LocalDpMod(sensitivity=0.5, epsilon=0.9)):
        epsilon, (said,) = true_epsilon(honest)
        mu = 2 / honest.deviation
        assert epsilon is not None
        delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert delta == pytest.approx(1e-5, rel=1e-3)
        assert "ε = 0.9" in said
        assert (epsilon <= 0.9) == (honest.sensitivity == 2.0)
        assert ("changes its update by up to 2" in said) == (honest.sensitivity == 0.5)
    epsilon, (said,) = true_epsilon(LocalDpMod())
    assert epsilon is None or epsilon > 1e6
    assert said == (
        "stated by the library: ε = 10 at δ = 1e-05, for a sensitivity of 0.0001; a replaced client changes its update "
        "by up to 2"
    )


def test_a_training_with_local_dp_mod_never_repeats_the_stated_epsilon() -> None:
    accounts = account(LocalDpMod(), SETTING, tensors=2, coordinates=100, examples=80)
    assert accounts is not None
    for each in accounts.released(1):
        assert each.convention != "paper"
        assert each.epsilon is None or each.epsilon > 1e6


ROWS = 3000


def chosen_by_the_loop(values: np.ndarray, choice: ChooseByThreshold, draw: np.random.Generator) -> np.ndarray:
    """NVFLARE's loop, pass by pass with new noise: (coordinate,), True where a coordinate is sent."""
    count = math.ceil(len(values) * choice.fraction)
    first = choice.epsilon / (1 + (2 * count) ** (2 / 3))
    threshold = choice.tau + draw.laplace(scale=choice.limit / first)
    accepted = np.zeros(len(values), bool)
    while accepted.sum() < count:
        noisy = np.minimum(np.abs(values), choice.limit) + draw.laplace(
            scale=2 * choice.limit * count / (choice.epsilon - first), size=len(values)
        )
        accepted |= noisy >= threshold
    sent = np.zeros(len(values), bool)
    sent[draw.choice(np.flatnonzero(accepted), count, replace=choice.replace)] = True
    return sent


@pytest.mark.parametrize("replace_", [True, False])
@pytest.mark.parametrize(("epsilon", "tau"), [(40.0, 0.5), (60.0, 1.1), (0.1, 0.1)])
def test_svt_chooses_coordinates_as_often_as_nvflares_loop(replace_: bool, epsilon: float, tau: float) -> None:
    """Five standard errors; with tau = 1.1 above the limit, several passes are needed."""
    choice = ChooseByThreshold(fraction=0.3, epsilon=epsilon, limit=1.0, tau=tau, replace=replace_)
    values = np.array([0.0, 0.1, -0.3, 0.5, -0.7, 0.8, 0.9, -1.0, 2.0, 9.0])
    given = {"w": torch.from_numpy(values).expand(ROWS, -1)}
    sent = choice.apply(given, context(ROWS))["w"]
    ours = (sent != 0).double().mean(0).numpy()
    draw = np.random.default_rng(5)
    theirs = np.mean([chosen_by_the_loop(values, choice, draw) for _ in range(ROWS)], 0)
    assert np.abs(ours - theirs).max() <= 5 * math.sqrt(0.5 / ROWS)
    if epsilon == 40.0:
        assert ours[-1] > 3 * ours[0]  # the choice depends on the values
    assert torch.where(sent != 0, given["w"].clamp(-1, 1) - sent, 0).abs().max() < 1e-19
    counts = (sent != 0).sum(-1)
    assert int(counts.max()) == 3 and (replace_ or int(counts.min()) == 3)
    if epsilon == 0.1:  # hardly any choice by value: the mean that attackers use is exact
        expected = choice.expected(given, {}, context(ROWS))[0]["w"][0]
        assert expected.numpy() == pytest.approx(values.clip(-1, 1) * theirs, abs=5 * math.sqrt(0.5 / ROWS))


def test_svt_sends_a_weight_difference_with_laplace_noise_also_on_zeros() -> None:
    setting = replace(SETTING, steps=4)
    defense = NvflareSvt(fraction=0.5, gamma=1e-3, noise_var=0.5)
    choice, noise = defense.transforms(setting)["client"]
    given = {"w": torch.cat([torch.zeros(1, 20_000), torch.full((1, 20_000), 7.0)], 1).double()}
    sent = noise.apply(choice.apply(given, context(1, setting)), context(1, setting))["w"][0]
    shown = sent != 0
    assert float(shown[:20_000].double().mean()) == pytest.approx(float(shown[20_000:].double().mean()), abs=0.03)
    # as a weight difference per step: ±gamma, and Laplace noise of scale 2·gamma/noise_var
    apart = sent * 0.1 / 4 - torch.where(torch.arange(40_000) < 20_000, 0.0, 1e-3)
    assert kstest(apart[shown].numpy() / (2 * 1e-3 / 0.5), "laplace").pvalue > 1e-3


def test_svt_states_no_epsilon_and_says_why() -> None:
    defense = NvflareSvt()
    found = at_point(defense, SETTING, point("type-1"), tensors=2, coordinates=100, round_=0, observations=1)
    assert found == (None, defense.no_epsilon)
    assert account(defense, SETTING, tensors=2, coordinates=100, examples=80) is None
