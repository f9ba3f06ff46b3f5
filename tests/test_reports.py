"""LDP-FL's reports: unbiased, of the variance they should have (lemmas 1 to 3), and what can be linked of them."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from bench.defenses.accounting import local
from bench.defenses.base import Context, Setting
from bench.defenses.ldp_fl import LdpFl
from bench.defenses.transforms.shuffle import ShuffleCoordinates
from bench.defenses.transforms.two_point import TwoPoint
from bench.federated.draws import KeyedDraws
from bench.federated.stages import stages
from bench.points import POINTS

CLIENTS, COORDINATES = 200, 200
DRAWS = CLIENTS * COORDINATES
SIGMAS = 5


def context(clients: int, *, weight_step: float = 1.0, weights: Any = None) -> Context:
    setting = Setting(
        clients=clients,
        per_round=clients,
        rounds=3,
        steps=1,
        batch=1,
        client_examples=9,
        rate=0.1,
        weight_step=weight_step,
    )
    draws = KeyedDraws(seed=5, fields=("test",), rows=tuple((n,) for n in range(clients)))
    return Context(lead=1, stage="client", round=0, step=0, setting=setting, draws=draws, weights=weights)


def reported(w: float, report: TwoPoint, *, begun: float, weight_step: float = 1.0) -> np.ndarray:
    """`CLIENTS` report the same weight w at `COORDINATES`: what the server takes each of these `DRAWS` to be."""
    weights = torch.full((COORDINATES,), begun, dtype=torch.float64)
    update = ((weights - w) / weight_step).expand(CLIENTS, COORDINATES)
    sent = report.apply({"a": update}, context(CLIENTS, weight_step=weight_step, weights={"a": weights}))["a"]
    return (weights - weight_step * sent).flatten().numpy()


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("w", [-0.06, 0.0, 0.05])
@pytest.mark.parametrize("weight_step", [1.0, 0.05])
def test_reports_are_two_values_unbiased_and_of_the_stated_variance(
    epsilon: float, w: float, weight_step: float
) -> None:
    """Lemmas 1 and 2, with the term -(w - c)² that lemma 2 drops; within five standard errors."""
    report = TwoPoint(epsilon=epsilon, centre=0.01, radius=0.075)
    found = reported(w, report, begun=0.02, weight_step=weight_step)
    stretch = (math.exp(epsilon) + 1) / (math.exp(epsilon) - 1)
    assert np.unique(found.round(9)).tolist() == pytest.approx([0.01 - 0.075 * stretch, 0.01 + 0.075 * stretch])
    variance = (0.075 * stretch) ** 2 - (w - 0.01) ** 2
    assert abs(found.mean() - w) < SIGMAS * math.sqrt(variance / DRAWS)
    # of a two-valued law with chance p: kurtosis 1/(p(1 - p)) - 3
    p = 0.5 + (w - 0.01) / (2 * 0.075 * stretch)
    spread = variance * math.sqrt((1 / (p * (1 - p)) - 4) / DRAWS) + 1e-12
    assert abs(found.var() - variance) < SIGMAS * spread + variance / DRAWS


def test_each_report_is_private_by_epsilon() -> None:
    """The ratio of chances of one value between the two ends of the range is e^ε, and never more."""
    epsilon, radius = 1.5, 0.2
    stretch = TwoPoint(epsilon=epsilon, radius=radius).stretch
    chances = [0.5 + w / (2 * radius * stretch) for w in (-radius, radius)]
    assert chances[1] / chances[0] == pytest.approx(math.exp(epsilon))
    assert (1 - chances[0]) / (1 - chances[1]) == pytest.approx(math.exp(epsilon))


@pytest.mark.parametrize("clients", [1, 25])
def test_the_mean_of_reports_has_the_variance_over_their_number(clients: int) -> None:
    """Lemma 3: the deviation of the mean falls with the root of the clients."""
    begun = torch.zeros(20_000, dtype=torch.float64)
    report = TwoPoint(epsilon=1.0, radius=0.5)
    sent = report.apply(
        {"a": torch.full((clients, 20_000), -0.1, dtype=torch.float64)}, context(clients, weights={"a": begun})
    )["a"]
    mean = -sent.mean(0)
    variance = ((0.5 * report.stretch) ** 2 - 0.01) / clients
    assert abs(float(mean.mean()) - 0.1) < SIGMAS * math.sqrt(variance / 20_000)
    assert float(mean.var()) == pytest.approx(variance, rel=SIGMAS * math.sqrt(2 / 20_000))


def test_an_adaptive_range_is_each_tensors_own_and_the_servers() -> None:
    weights = {"a": torch.tensor([-1.0, 0.5]), "b": torch.tensor([0.0, 0.0, 4.0]), "c": torch.tensor([0.25])}
    report = TwoPoint(epsilon=1.0)
    given = {name: torch.zeros(50, *value.shape) for name, value in weights.items()}
    sent = report.apply(given, context(50, weights=weights))
    for name, centre, radius in (("a", -0.25, 0.75), ("b", 2.0, 2.0), ("c", 0.25, 0.0)):
        values = {round(float(v), 4) for v in (weights[name] - sent[name]).flatten()}
        assert values == {round(centre + sign * radius * report.stretch, 4) for sign in (-1, 1)}


def test_weights_out_of_range_count_as_its_ends() -> None:
    for w in (0.3, 7.0):
        found = reported(w, TwoPoint(epsilon=1.0, radius=0.2), begun=0.0)
        variance = (0.2 * TwoPoint(epsilon=1.0, radius=0.2).stretch) ** 2 - 0.04
        assert abs(found.mean() - 0.2) < SIGMAS * math.sqrt(variance / DRAWS)


def test_an_attacker_is_told_the_mean_and_the_variance_of_reports() -> None:
    report, weights = TwoPoint(epsilon=2.0, radius=0.5), {"a": torch.zeros(3, dtype=torch.float64)}
    here = context(20_000, weight_step=0.1, weights=weights)
    update = torch.tensor([0.5, -2.0, 9.0], dtype=torch.float64)  # to weights -.05, .2 and, clipped, -.5
    sent = report.apply({"a": update.expand(20_000, 3)}, here)["a"]
    said = report.expected({"a": update[None]}, {}, here)[0]["a"][0]
    noise = report.noise(here, {})
    assert said.tolist() == pytest.approx([0.5, -2.0, 5.0])
    assert isinstance(noise.variance, Mapping)
    variance = float(noise.variance["a"])
    assert (sent.mean(0) - said).abs().max() < SIGMAS * math.sqrt(variance / 20_000)
    assert noise.bound
    assert float(sent[:, 0].var()) == pytest.approx(variance, rel=0.05)
    assert float(sent.var(0).max()) <= 1.05 * variance


def test_reports_have_a_likelihood_of_their_own() -> None:
    """log p of each report against its chance, by the definition; at most 0, and highest near what was sent."""
    report, weights = TwoPoint(epsilon=1.0, radius=0.5), {"a": torch.zeros(2000, dtype=torch.float64)}
    here = context(1, weight_step=1.0, weights=weights)
    update = torch.linspace(-0.5, 0.5, 2000, dtype=torch.float64)[None]
    sent = report.apply({"a": update}, here)
    reach = 0.5 * report.stretch
    plus = 0.5 + (-update) / (2 * reach)  # the weight is -update
    chance = torch.where(sent["a"] < 0, plus, 1 - plus)  # a plus weight_step the update down
    expected = (2 * chance).log().sum() - 2000 * math.log1p(1 / report.stretch)
    found = report.log_likelihood({"a": update}, sent, here)
    assert float(found) == pytest.approx(float(expected))
    assert float(found) > float(report.log_likelihood({"a": -update}, sent, here))
    assert float(found) <= 0


def test_shuffling_mixes_every_coordinate_by_itself_and_keeps_the_mean() -> None:
    rows = torch.arange(12 * 500, dtype=torch.float64).reshape(12, 500)
    mixed = ShuffleCoordinates().apply({"a": rows}, context(12))["a"]
    assert torch.equal(mixed.sort(0).values, rows), "each coordinate keeps the round's reports"
    kept = (mixed == rows).double().mean()
    assert abs(float(kept) - 1 / 12) < SIGMAS * math.sqrt(1 / 12 * 11 / 12 / 6000)
    together = ((mixed[:, :1] // 500) == (mixed // 500)).double()[:, 1:].mean()
    assert abs(float(together) - 1 / 12) < 0.02, "two coordinates go together no more than by chance"


@pytest.mark.parametrize(
    ("sending", "stages"), [("split", {"client", "exchange"}), ("whole", {"client"}), ("named", {"client"})]
)
def test_only_split_vectors_are_unlinked(sending: Any, stages: set[str]) -> None:
    assert set(LdpFl(sending=sending).transforms(context(3).setting)) == stages


def test_epsilon_is_stated_with_what_it_assumes() -> None:
    """ε a weight is the paper's claim; composition gives d·ε a round and T·d·ε in all."""
    paper, whole, valid = local.released(LdpFl(epsilon=0.5).mechanism(context(3).setting), rounds=10, coordinates=1000)
    assert (paper.convention, paper.epsilon) == ("paper", 0.5)
    assert "no theorem" in paper.accountant
    assert whole.epsilon == 500.0
    assert (valid.convention, valid.epsilon, valid.delta) == ("valid", 5000.0, 0.0)
    tap = local.at_tap(LdpFl(epsilon=0.5).mechanism(context(3).setting), coordinates=1000, observations=3)
    assert (tap.convention, tap.epsilon) == ("tap", 1500.0)


@pytest.mark.parametrize(("field", "value"), [("epsilon", 0.0), ("epsilon", math.inf), ("radius", 0.0)])
def test_a_report_needs_an_epsilon_and_a_radius(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} must be above 0 and finite"):
        TwoPoint(**{"epsilon": 1.0, field: value})


def test_only_single_updates_are_unlinked_not_their_mean() -> None:
    setting = context(3).setting
    found = stages(LdpFl(), setting, {"a": (2,)})
    assert [name for name in POINTS if found.unlinked(POINTS[name])] == ["type-0"]
