"""LDP-FL's times of sending: a listener links by time only without a latency; stragglers lose reports, and the
estimate keeps its mean with the variance of fewer reports."""

import math

import pytest
import torch
from tests.test_reports import context

from bench.contracts.unlinked import unlinked
from bench.defenses.ldp_fl import LdpFl
from bench.defenses.transforms.arrival import DropLate

CLIENTS, COORDINATES, SIGMAS = 8, 4000, 5
HERE = context(CLIENTS)
LIKE = torch.zeros(CLIENTS, COORDINATES, dtype=torch.float64)


def sending(latency: float = 1.0, stragglers: float = 0.0, lag: float = 0.5) -> DropLate:
    return DropLate(latency=latency, stragglers=stragglers, lag=lag)


def linked(times: torch.Tensor) -> float:
    """Share of pairs that a listener gets right: in each coordinate, the sender of the report with the same place in
    time as a report of the first coordinate.  All possible assignments of uniform times are equally likely, and the one
    by order is possible whenever any is: no listener has a likelier one."""
    order = times.argsort(0)
    return float((order[:, 1:] == order[:, :1]).double().mean())


def test_a_listener_links_all_reports_sent_at_one_moment() -> None:
    """T near 0, and clients that are ready at different times: the paper's side channel."""
    ready = torch.arange(CLIENTS, dtype=torch.float64)[:, None]
    assert linked(ready + sending(latency=0.5).times("a", LIKE, HERE)) == 1


def test_a_listener_is_at_chance_under_uniform_latency_after_a_common_start() -> None:
    share, chance = linked(sending().times("a", LIKE, HERE)), 1 / CLIENTS
    assert abs(share - chance) < SIGMAS * math.sqrt(chance * (1 - chance) / (CLIENTS * COORDINATES))


@pytest.mark.parametrize("spread", [0.1, 0.3])
def test_without_a_common_start_the_share_linked_grows_with_the_spread_over_the_latency(spread: float) -> None:
    """Two clients, ready `spread` apart, T = 1.  The order tells the sender with probability 1 - (1 - spread)²/2 in a
    coordinate, and both coordinates must be right or both wrong."""
    here, like = context(2), torch.zeros(2, 40_000, dtype=torch.float64)
    ready = torch.tensor([[0.0], [spread]], dtype=torch.float64)
    order = (ready + sending().times("a", like, here)).argsort(0)[0]
    right = 1 - (1 - spread) ** 2 / 2
    expected = right**2 + (1 - right) ** 2
    found = float((order[::2] == order[1::2]).double().mean())
    assert abs(found - expected) < SIGMAS * math.sqrt(expected * (1 - expected) / 20_000)


def test_late_reports_would_be_linked_and_are_dropped() -> None:
    """Sent late, a single straggler's share ℓ/T arrives after T and has one sender; dropped, all arrive before T."""
    it, lag = sending(), 0.3
    times = it.times("a", LIKE, HERE)
    after = (times[0] + lag > it.latency).double().mean()
    assert abs(float(after) - lag) < SIGMAS * math.sqrt(lag * (1 - lag) / COORDINATES)
    kept = times[0][times[0] >= lag]
    assert float(kept.max()) <= it.latency


@pytest.mark.parametrize("stragglers", [0.3, 1.0])
def test_the_share_lost_has_a_closed_form(stragglers: float) -> None:
    """P(t < ℓ) = stragglers · E[ℓ]/T = stragglers · lag/2T."""
    clients = 3000
    here, like = context(clients), torch.zeros(clients, 20, dtype=torch.float64)
    it = sending(latency=2.0, stragglers=stragglers, lag=1.0)
    lost = (it.times("a", like, here) < it.lags(like, here)[:, None]).double().mean(1)
    assert abs(float(lost.mean()) - stragglers / 4) < SIGMAS * float(lost.std()) / math.sqrt(clients)


@pytest.mark.parametrize(("lag", "received"), [(0.5, 0.775), (1.0, 0.55), (2.0, 0.325)])
def test_the_estimate_is_unbiased_with_the_variance_of_the_reports_that_are_left(lag: float, received: float) -> None:
    """K reports with mean m and variance 1: the mean of what arrives has mean m and variance
    ((1 + m²)/received - m²)/K, that of K · received reports for m = 0."""
    clients, m, repeats = 20, 0.5, 4000
    it = sending(stragglers=0.9, lag=lag)
    assert it.received == pytest.approx(received)
    here = context(clients * repeats)  # a round's clients are consecutive rows, with a coordinate each
    given = m + torch.randn(clients * repeats, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    means = it.apply({"a": given}, here)["a"].reshape(repeats, clients).mean(1)
    variance = ((1 + m**2) / received - m**2) / clients
    assert abs(float(means.mean()) - m) < SIGMAS * math.sqrt(variance / repeats)
    assert float(means.var()) == pytest.approx(variance, rel=SIGMAS * math.sqrt(2.2 / repeats))


def test_zeros_show_an_attacker_what_was_lost() -> None:
    it = sending(stragglers=0.9)
    given = 1 + torch.arange(CLIENTS * 50, dtype=torch.float64).reshape(CLIENTS, 50)
    sent = it.apply({"a": given}, HERE)["a"]
    assert 0 < float((sent == 0).double().mean()) < 0.5
    assert torch.equal(it.simulate({"a": given}, {"a": sent}, HERE)["a"], sent)


def test_what_stragglers_leave_is_unlinked() -> None:
    unlinked(LdpFl(stragglers=0.9))


def test_options_say_what_the_server_can_link() -> None:
    setting = HERE.setting
    at_once = LdpFl(latency=0.0)
    assert set(at_once.transforms(setting)) == {"client"} and at_once.mechanism(setting).sending == "whole"
    assert LdpFl(latency=5.0, stragglers=0.1).mechanism(setting).sending == "split"
    for wrong in (LdpFl(latency=0.0, stragglers=0.1), LdpFl(sending="named", stragglers=0.1)):
        with pytest.raises(ValueError, match='stragglers drop single reports; give sending="split"'):
            wrong.transforms(setting)
