"""Risk-balanced perturbation: layers' risk, slices of equal risk, reservoirs, and compensation by random matrices."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, jacrev

from bench.cell import Federated
from bench.contracts.situations import setting_of
from bench.defenses import risk
from bench.defenses.base import Context, Public
from bench.defenses.risk_balanced import RiskBalanced
from bench.defenses.transforms.compensate import Compensate
from bench.defenses.transforms.slices import SliceNoise, reservoir
from bench.federated.draws import KeyedDraws, NoDraws

SETTING = setting_of(Federated(clients=12, per_round=3, batch=3))
SIGMAS = 5


def public(examples: int = 6) -> Public:
    known = SETTING.public
    assert known is not None
    return replace(known, inputs=known.inputs[:examples], labels=known.labels[:examples])


def context(clients: int, *, lead: int = 1, seed: int = 0) -> Context:
    draws = KeyedDraws(seed=seed, fields=("test",), rows=tuple((n,) for n in range(clients)))
    return Context(
        lead=lead,
        stage="client" if lead else "aggregate",
        round=0,
        step=0,
        setting=SETTING,
        draws=draws if lead else NoDraws(),
    )


def whole_jacobian(given: Public) -> dict[str, float]:
    """The same from torch's own whole Jacobian, one example after another."""
    weights = dict(given.weights)
    norms: dict[str, list[float]] = {}
    for x, y in zip(given.inputs, given.labels, strict=True):

        def loss(w: dict[str, Tensor], x: Tensor, y: Tensor = y) -> Tensor:
            return torch.nn.functional.cross_entropy(functional_call(given.model, w, (x[None],)), y[None])

        found = jacrev(lambda x: grad(loss)(weights, x))(x)
        squares: dict[str, float] = {}
        for name, jacobian in found.items():
            layer = name.rpartition(".")[0]
            squares[layer] = squares.get(layer, 0.0) + float(jacobian.square().sum())
        for layer, square in squares.items():
            norms.setdefault(layer, []).append(math.sqrt(square))
    return {layer: sum(values) / len(values) for layer, values in norms.items()}


@pytest.mark.slow  # six seconds
def test_risk_is_the_mean_norm_of_each_layers_jacobian() -> None:
    given = public(3)
    exact = risk.layer_risks(given, directions=given.inputs[0].numel())
    expected = whole_jacobian(given)
    assert list(exact) == list(expected)
    for layer, value in expected.items():
        assert exact[layer] == pytest.approx(value, rel=1e-9)


def test_a_few_directions_come_near_for_all_layers_at_once() -> None:
    given = public(20)
    exact = risk.layer_risks(given, directions=64)
    for layer, value in risk.layer_risks(given, directions=8).items():
        assert value == pytest.approx(exact[layer], rel=0.15)


def test_slices_carry_equal_risk_to_a_block() -> None:
    tensors = {"a.weight": torch.zeros(60), "a.bias": torch.zeros(20), "b.weight": torch.zeros(120)}
    assert risk.block_size(tensors) == 40
    # layer a: 2 blocks of 3, layer b: 3 blocks of 2
    assert risk.equal_risk(tensors, {"a": 6.0, "b": 6.0}, 2) == (80, 200)
    assert risk.equal_risk(tensors, {"a": 1.0, "b": 99.0}, 3) == (120, 160, 200)
    assert risk.equal_size(tensors, 5) == (40, 80, 120, 160, 200)
    with pytest.raises(ValueError, match="6 slices of 5 blocks"):
        risk.equal_size(tensors, 6)


def test_slices_of_a_network_are_balanced_and_none_is_empty() -> None:
    given = public()
    risks = risk.layer_risks(given, directions=4)
    for slices in (1, 7, 20):
        ends = risk.equal_risk(given.weights, risks, slices)
        assert len(ends) == slices
        assert ends[-1] == sum(value.numel() for value in given.weights.values())
        lengths = np.diff((0, *ends))
        assert lengths.min() > 0
        each = np.concatenate(
            [
                np.full(sum(given.weights[n].numel() for n in names), 1.0)
                * risks[layer]
                / sum(given.weights[n].numel() for n in names)
                for layer, names in risk.layers(given.weights).items()
            ]
        )
        carried = np.add.reduceat(each, (0, *ends[:-1])) / each.sum()
        # two ends, each at the nearest block
        block = risk.block_size(given.weights) * each.max() / each.sum()
        assert np.abs(carried - 1 / slices).max() <= block + 1e-9


def test_a_biased_root_set_has_its_share_of_one_class() -> None:
    found = SETTING.public
    assert found is not None
    for bias in (0.2, 0.6):
        root = risk.root_set(found, examples=10, bias=bias)
        assert len(root.labels) == 10
        assert float((root.labels == found.labels[0]).double().mean()) == pytest.approx(bias)
    assert torch.equal(risk.root_set(found, examples=20, bias=0).labels, found.labels[:20])


@pytest.mark.parametrize(("items", "count"), [(5, 2), (10, 9), (4, 4), (20, 1)])
def test_a_reservoir_holds_so_many_and_each_item_equally_often(items: int, count: int) -> None:
    draws = 20_000
    uniforms = torch.rand(draws, items, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    chosen = reservoir(uniforms, count)
    assert (chosen.sum(-1) == count).all()
    share = count / items
    assert (chosen.double().mean(0) - share).abs().max() <= SIGMAS * math.sqrt(share * (1 - share) / draws)


def test_noise_lies_on_whole_slices_drawn_by_each_client() -> None:
    tensors = {"a": torch.zeros(400, 6, dtype=torch.float64), "b": torch.zeros(400, 2, 3, dtype=torch.float64)}
    sent = SliceNoise(ends=(2, 5, 9, 12), count=2, deviation=0.5).apply(tensors, context(400))
    rows = torch.cat([value.flatten(1) for value in sent.values()], 1)
    parts = [part != 0 for part in torch.split(rows, [2, 3, 4, 3], dim=1)]
    assert all((part.all(1) | ~part.any(1)).all() for part in parts)
    noised = torch.stack([part.any(1) for part in parts], 1)
    assert (noised.sum(1) == 2).all()
    assert len({tuple(row) for row in noised.tolist()}) == 6, "every pair of slices comes up"
    deviation = float(rows[rows != 0].std())
    assert deviation == pytest.approx(0.5, rel=SIGMAS / math.sqrt(2 * 400 * 6))


def test_an_adaptive_attacker_excludes_the_slices_that_fit_worst() -> None:
    """Near the truth those are the noised ones, however strong the gradient itself is in the others."""
    source = torch.Generator().manual_seed(0)
    truth = {"a": torch.randn(30, 900, generator=source, dtype=torch.float64)}
    truth["a"][:, :300] *= 50
    transform = SliceNoise(ends=(300, 600, 900), count=1, deviation=0.1)
    sent = transform.apply(truth, context(30))
    near = {"a": (truth["a"] + 1e-3).requires_grad_()}
    candidate = transform.simulate(near, sent, context(30))["a"]
    noised = sent["a"] != truth["a"]
    assert torch.equal(candidate[noised], sent["a"][noised])
    assert torch.equal(candidate[~noised], near["a"][~noised])
    (slope,) = torch.autograd.grad(candidate.sum(), near["a"])
    assert torch.equal(slope == 0, noised), "what is excluded has no derivative"


def test_the_excluded_slices_are_those_that_leave_the_least_distance() -> None:
    source = torch.Generator().manual_seed(1)
    ours, seen = ({"a": torch.randn(5, 12, generator=source, dtype=torch.float64)} for _ in range(2))
    transform = SliceNoise(ends=(2, 5, 9, 12), count=2, deviation=0.1)
    candidate = transform.simulate(ours, seen, context(5))["a"]
    remaining = (candidate - seen["a"]).square().sum(1)
    each = torch.stack([part.sum(1) for part in torch.split((ours["a"] - seen["a"]).square(), [2, 3, 4, 3], dim=1)], 1)
    assert torch.allclose(remaining, each.sort(1).values[:, :2].sum(1))


def test_compensation_keeps_a_strong_signal_and_removes_noise() -> None:
    """Rank-one signal in noise of a known variance: what is left is nearer to the signal than what came."""
    source = np.random.default_rng(0)
    size, variance = 6000, 0.04
    width = int(math.sqrt(size / 6))
    signal = np.outer(source.standard_normal(-(-size // width)), source.standard_normal(width)).flatten()[:size]
    noise = math.sqrt(variance) * source.standard_normal(size)
    compensate = Compensate(variance=variance, quotient=6.0, tolerance=0.2)
    given = {"a": torch.from_numpy(signal + noise)}
    kept = compensate.apply(given, context(1, lead=0))["a"].numpy()
    before, after = ((found - signal).var() for found in (signal + noise, kept))
    assert after < before / 10
    alone = compensate.apply({"a": torch.from_numpy(noise)}, context(1, lead=0))["a"].numpy()
    assert alone.var() < 1e-3 * variance, "pure noise is removed entirely"


def test_compensation_leaves_what_has_no_such_directions_bit_for_bit() -> None:
    given = {"a": torch.linspace(-1, 1, 50), "b": torch.ones(3, 4)}
    found = Compensate(variance=1e-8, quotient=2.0, tolerance=0.1).apply(given, context(1, lead=0))
    assert all(torch.equal(found[name], value) for name, value in given.items())


def test_a_training_that_diverges_is_not_compensated() -> None:
    given = {"a": torch.tensor([1.0, float("nan"), 2.0, 3.0])}
    found = Compensate(variance=1.0, quotient=2.0, tolerance=0.1).apply(given, context(1, lead=0))["a"]
    assert torch.equal(found.nan_to_num(7.0), given["a"].nan_to_num(7.0))


@pytest.mark.parametrize(("quotient", "share"), [(1.0, 0.99), (6.0, 0.99), (12.0, 0.99)])
def test_eigenvalues_of_pure_noise_lie_in_the_interval(quotient: float, share: float) -> None:
    noise = torch.from_numpy(np.random.default_rng(3).standard_normal(40_000))
    kept = Compensate(variance=1.0, quotient=quotient, tolerance=0.2).apply({"a": noise}, context(1, lead=0))
    assert float(kept["a"].square().sum() / noise.square().sum()) < 1 - share + 0.01


def test_settings_choose_the_slices_and_the_noise_of_the_mean() -> None:
    found = RiskBalanced(slices=20, share=0.3, root=10).transforms(SETTING)
    noise, compensate = found["client"][0], found["aggregate"][0]
    assert isinstance(noise, SliceNoise) and isinstance(compensate, Compensate)
    assert (len(noise.ends), noise.count, noise.deviation) == (20, 6, 0.1)
    assert compensate.variance == pytest.approx(6 / 20 * 1e-2 / 3)
    clipped = RiskBalanced(slices=4, share=0.01, root=10, clip=0.5, compensation=False).transforms(SETTING)
    assert set(clipped) == {"client"}
    assert [type(item).__name__ for item in clipped["client"]] == ["Clip", "SliceNoise"]
    assert (clipped["client"][1].count, clipped["client"][1].deviation) == (1, 0.05)  # type: ignore[attr-defined]
    by_size = RiskBalanced(slicing="size", slices=4, root=10).transforms(SETTING)["client"][0]
    assert isinstance(by_size, SliceNoise)
    assert np.diff((0, *by_size.ends)).std() < np.diff((0, *noise.ends)).std()


def test_without_public_examples_it_refuses() -> None:
    with pytest.raises(ValueError, match="risk is measured on public examples"):
        RiskBalanced().transforms(replace(SETTING, public=None))
