"""NISS: what is left of shared noise on an upload, in the mean, to colluders, and to who knows all others."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bench.answer.context import Memory, RunContext
from bench.answer.run import run
from bench.cell import AttackCell, DataRef, Entry, Federated
from bench.datasets.loading import load
from bench.defenses.accounting.mechanism import Sampling
from bench.defenses.accounting.report import released
from bench.defenses.accounting.shares import (
    aggregate_variance,
    conditional_variance,
    least_factor_variance,
    upload_variance,
)
from bench.defenses.base import Context, Setting
from bench.defenses.niss import Niss
from bench.defenses.transforms.shares import NoiseShares
from bench.federated.draws import KeyedDraws
from bench.parameters import values
from bench.registry import entries as registry

CLIENTS, SIZE = 12, 20_000
SIGMAS = 5


def setting(per_round: int = CLIENTS) -> Setting:
    return Setting(clients=100, per_round=per_round, rounds=4, steps=1, batch=1, client_examples=9, rate=0.1)


def noise(rho: float, *, shares: int = 8, colluders: float = 0.0, seed: int = 1) -> Tensor:
    """What lies on zero uploads, (client, coordinate), in units of a client's own deviation."""
    draws = KeyedDraws(seed=seed, fields=("test",), rows=tuple((n,) for n in range(CLIENTS)))
    context = Context(lead=1, stage="exchange", round=0, step=0, setting=setting(), draws=draws, colluders=colluders)
    zero = {"a": torch.zeros(CLIENTS, SIZE, dtype=torch.float64)}
    return NoiseShares(deviation=3.0, shares=shares, factor_variance=rho).apply(zero, context)["a"] / 3


def near(found: float, expected: float, count: int, kurtosis: float = 9.0) -> bool:
    """A sample variance, within five standard errors; products of normals have a kurtosis of 9 at most."""
    return abs(found - expected) <= SIGMAS * expected * math.sqrt((kurtosis - 1) / count) + 1e-12


@pytest.mark.parametrize("rho", [0.0, 0.25, 1.0])
def test_an_upload_and_the_mean_have_the_papers_variances(rho: float) -> None:
    """Theorem 2: (2 + σ_r²) on each upload, σ_r² times a client's own on the sum of all, per client."""
    found = noise(rho)
    assert near(float(found.var(1).mean()), upload_variance(rho), CLIENTS * SIZE)
    of_sum = float(found.sum(0).var()) / CLIENTS
    assert near(of_sum, aggregate_variance(rho), SIZE)
    assert (of_sum < 1e-20) == (rho == 0), "perfect offset where every factor is 1"


@pytest.mark.parametrize("rho", [0.0, 0.5])
@pytest.mark.parametrize("q", [0.25, 0.5, 1.0])
def test_colluders_leave_what_theorem_3_counts(rho: float, q: float) -> None:
    found = noise(rho, colluders=q)
    expected = upload_variance(rho, q)
    assert expected == pytest.approx((1 - q) * (2 + rho) + q * rho)
    assert near(float(found.var(1).mean()), expected, CLIENTS * SIZE)


@pytest.mark.parametrize("q", [0.0, 0.3, 0.5, 0.75, 1.0])
def test_theorem_3s_bound_is_where_an_upload_alone_keeps_its_variance(q: float) -> None:
    least = least_factor_variance(q)
    assert upload_variance(least, q) >= 1 - 1e-12
    if q > 0.5:
        assert upload_variance(least, q) == pytest.approx(1.0)
        assert upload_variance(least - 0.01, q) < 1


def test_what_theorem_3_leaves_out_half_the_clients_fall_below() -> None:
    """At q = 1 and σ_r² = 1 a client's variance, given the shares it received, is their mean square: 1 on
    average, below it for half of the clients, with a 5 % quantile of .39 at v = 10 and .93 at v = 1000."""
    draw = np.random.default_rng(0)
    for shares, quantile in ((10, 0.39), (1000, 0.93)):
        each = draw.chisquare(shares, 200_000) / shares
        assert abs((each < 1).mean() - 0.5) < 0.07
        assert np.quantile(each, 0.05) == pytest.approx(quantile, abs=0.01)


@pytest.mark.parametrize(
    ("q", "rho", "expected"), [(0.0, 0.02, 1.0), (0.25, 0.04, 1.0), (0.5, 0.1, 0.89), (0.75, 0.5, 0.96)]
)
def test_an_adversary_who_knows_all_others_needs_other_factors(q: float, rho: float, expected: float) -> None:
    """N = 100, v = 20: what σ_r² keeps variance 1 against an adversary who knows all other parameters."""
    assert conditional_variance(rho, clients=100, shares=20, q=q) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("q", [0.0, 0.25, 0.75])
def test_an_adversary_who_knows_all_others_faces_no_noise_under_perfect_offset(q: float) -> None:
    assert conditional_variance(0.0, clients=100, shares=20, q=q) == 0
    assert noise(0.0).sum(0).abs().max() < 1e-9


@pytest.mark.parametrize("rho", [0.1, 0.5])
def test_the_conditional_variance_is_the_best_linear_estimates(rho: float) -> None:
    """Against least squares on simulated uploads: client 0's noise from all others'."""
    found = noise(rho).numpy()
    rest, own = found[1:].T, found[0]
    left = own - rest @ np.linalg.lstsq(rest, own, rcond=None)[0]
    expected = conditional_variance(rho, clients=CLIENTS, shares=8)
    assert near(float(left.var()), expected, SIZE)


@pytest.mark.parametrize("q", [0.0, 0.5])
def test_epsilon_counts_the_conditional_noise_and_says_so(q: float) -> None:
    """And, for an attacker with colluders, what they leave of it."""
    found = Niss(factor_variance=0.5, shares=8).mechanism(replace(setting(), colluders=q))
    left = conditional_variance(0.5, clients=CLIENTS, shares=8, q=q)
    assert found.rows["server"] == pytest.approx(left**0.5 / 2)
    assert found.released == pytest.approx((CLIENTS * 0.5) ** 0.5)
    assert f"{upload_variance(0.5, q):.3g} read alone, {left:.3g} given all" in found.caveats[0]
    assert ("50% of the neighbours telling" in found.caveats[0]) == (q > 0)
    assert Niss(factor_variance=0.0).mechanism(setting()).released == 0
    spent = released(found, Sampling(q=0.1, per_round=1, rounds=4, clients=(10, 100)), tensors=6)
    assert [one.convention for one in spent] == ["valid", "idealised"], "Fed-αCDP's count does not speak of shares"


def own_devices(colluders: float = 0.0, rho: float = 0.0) -> Tensor:
    """What lies on zero uploads of three owners with four devices each."""
    draws = KeyedDraws(seed=1, fields=("test",), rows=tuple((n,) for n in range(CLIENTS)))
    context = Context(lead=1, stage="exchange", round=0, step=0, setting=setting(), draws=draws, colluders=colluders)
    transform = Niss(sigma=3.0, shares=8, factor_variance=rho, devices=4).transforms(setting())["exchange"][0]
    zero = {"a": torch.zeros(CLIENTS, SIZE, dtype=torch.float64)}
    return transform.apply(zero, context)["a"] / 3  # type: ignore[attr-defined,no-any-return]


def test_an_owners_devices_do_not_collude_and_their_noise_cancels_in_the_owners_mean() -> None:
    """NISS §V-C: the grant of colluders changes nothing; but a server who knows the owner sums the devices' uploads."""
    found = own_devices(rho=0.25)
    assert torch.equal(found, own_devices(colluders=1.0, rho=0.25))
    assert near(float(found.var(1).mean()), upload_variance(0.25), CLIENTS * SIZE)
    of_owner = own_devices().unflatten(0, (3, 4)).sum(1)
    assert of_owner.abs().max() < 1e-9, "perfect offset within each owner"
    assert own_devices().var(1).min() > 1.9, "and no upload without noise"


def test_an_adversary_who_knows_the_owners_other_devices_finds_less_noise_than_in_a_ring_of_all() -> None:
    given = setting()
    own, all_ = (Niss(factor_variance=0.1, shares=3, devices=d).mechanism(given).rows["server"] for d in (4, 0))
    expected = conditional_variance(0.1, clients=4, shares=3)
    assert own == pytest.approx(expected**0.5 / 2) and own < all_
    found = own_devices(rho=0.1).numpy()[:4]
    left = found[0] - found[1:].T @ np.linalg.lstsq(found[1:].T, found[0], rcond=None)[0]
    assert near(float(left.var()), expected, SIZE)


@pytest.mark.parametrize("devices", [1, 5])
def test_a_round_consists_of_whole_groups_of_devices(devices: int) -> None:
    with pytest.raises(ValueError, match=f"12 clients in a round are no groups of {devices} devices"):
        Niss(devices=devices).transforms(setting())


def test_a_round_has_no_more_neighbours_than_clients() -> None:
    assert Niss(shares=50).transforms(setting(4))["exchange"][0].shares == 3  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="no neighbours in a round of one client"):
        Niss().transforms(setting(1))


def test_a_reading_alone_is_the_reading_in_company(tmp_path: Path) -> None:
    """Behind a transform across clients a reading comes from a whole round; with one reading there is one round."""
    data = DataRef(name="digits", sha256=load(registry.instance("datasets", "digits", {}), "digits").sha256)
    niss = Entry(name="niss", params=values(registry.instance("defenses", "niss", {})))
    mlp = Entry(name="mlp", params=values(registry.instance("models", "mlp", {})))
    cell = AttackCell(
        dataset=data,
        model=mlp,
        defense=niss,
        attack=Entry(name="labels-only"),
        point="type-0",
        readings=1,
        federated=Federated(clients=12, per_round=4, batch=2),
    )
    records = [run(cell.model_copy(update={"readings": count}), RunContext(run=tmp_path), Memory()) for count in (1, 2)]
    alone, company = (record.attack for record in records)
    assert alone is not None and company is not None, [record.reason for record in records]
    assert (alone.readings[0].snr_db, alone.readings[0].cosine) == pytest.approx(
        (company.readings[0].snr_db, company.readings[0].cosine)
    )
    assert alone.distortion.snr_db_median == pytest.approx(alone.readings[0].snr_db)
