"""Promise: a ceiling holds for the best attacker, and a defense that does not do what it states is found out."""

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import binom, norm

from bench.answer.context import Memory, RunContext
from bench.answer.run import run
from bench.ceilings.by_epsilon import ceiling, exceeded
from bench.cell import AttackCell
from bench.defenses.accounting import local
from bench.defenses.accounting.mechanism import Reports
from bench.defenses.accounting.report import at_tap
from bench.defenses.base import Setting
from bench.defenses.fed_cdp import FedCdp
from bench.epsilon import Epsilon
from bench.leaderboard.board import Row, board
from bench.leaderboard.flags import VIOLATED
from bench.leaderboard.forms import terminal
from bench.leaderboard.forms.page import render
from bench.matrix.expand import expand
from bench.matrix.read import read
from bench.registry import entries as registry
from bench.sweep.plan import Resolver

ALONE = Setting(clients=10, per_round=1, rounds=1, steps=1, batch=1, client_examples=50, rate=0.1)


def spent(sigma: float, uses: int = 1) -> Epsilon:
    report = at_tap(FedCdp(sigma=sigma, clipping="flat").mechanism(ALONE), "example", tensors=4, uses=uses)
    assert report is not None
    return report


@pytest.mark.parametrize("sigma", [0.25, 0.5, 2.0, 6.0])
@pytest.mark.parametrize("uses", [1, 4])
def test_of_a_gaussian_release_it_is_the_trade_off_at_chance(sigma: float, uses: int) -> None:
    """μ = C/σC: this example's gradient against a zero one."""
    found = ceiling(spent(sigma, uses), 0.01)
    assert found == pytest.approx(norm.cdf(norm.ppf(0.01) + uses**0.5 / sigma))


def test_per_tensor_clipping_counts_every_tensor() -> None:
    report = at_tap(FedCdp(sigma=6.0).mechanism(ALONE), "example", tensors=8)
    assert report is not None
    found = ceiling(report, 1 / 1001)
    assert found == pytest.approx(norm.cdf(norm.ppf(1 / 1001) + 8**0.5 / 6))
    assert found == pytest.approx(0.0044, abs=2e-4)  # what the theory quotes for Fed-CDP C = 4, σ = 6 on MNIST


@pytest.mark.parametrize("sigma", [0.3, 0.5, 1.0])
def test_the_best_decoder_stays_below_and_comes_near(sigma: float) -> None:
    """Maximum likelihood among 20 orthogonal gradients of norm C: the best attacker there is, 20 000 times."""
    rng, candidates, trials = np.random.default_rng(0), 20, 20_000
    readings = rng.standard_normal((trials, candidates)) * sigma
    readings[:, 0] += 1
    reached = float((readings.argmax(1) == 0).mean())
    limit = ceiling(spent(sigma), 1 / candidates)
    assert limit is not None
    assert reached < limit + 4 * (0.25 / trials) ** 0.5
    assert reached > limit / 2, "a ceiling far above the best attacker says little"


def test_of_a_pure_epsilon_randomised_response_reaches_what_it_may() -> None:
    for epsilon, k in ((0.5, 2), (2.0, 10), (5.0, 3)):
        report = local.at_tap(Reports(epsilon=epsilon, sending="named"), coordinates=1, observations=1)
        limit = ceiling(report, 1 / k)
        assert limit is not None
        assert np.exp(epsilon) / (np.exp(epsilon) + k - 1) <= limit <= 1
    huge = local.at_tap(Reports(epsilon=5.0, sending="named"), coordinates=10**6, observations=1)
    assert ceiling(huge, 0.01) == 1.0


def test_where_nothing_is_proved_there_is_none() -> None:
    assert ceiling(None, 0.1) is None
    assert ceiling(spent(6.0), 1.0) == 1.0, "a guess that cannot fail"


@pytest.mark.parametrize(("hits", "trials", "limit"), [(1, 32, 0.0044), (3, 32, 0.0044), (9, 64, 0.05), (12, 64, 0.05)])
def test_exceeded_is_the_binomial_test(hits: int, trials: int, limit: float) -> None:
    by_chance = binom.sf(hits - 1, trials, limit)
    assert exceeded(hits / trials, trials, limit) == (by_chance < 1e-3)


def test_nothing_is_exceeded_without_a_ceiling_or_a_hit() -> None:
    assert not exceeded(1.0, 100, None)
    assert not exceeded(0.0, 100, 0.01)
    assert not exceeded(1.0, 100, 1.0)


PLUGIN = '''
from dataclasses import dataclass
from bench.defenses.fed_cdp import FedCdp

@dataclass(frozen=True, kw_only=True)
class Honest(FedCdp):
    """States what it does."""

@dataclass(frozen=True, kw_only=True)
class Unclipped(FedCdp):
    """States a bound, and does not apply it."""
    def transforms(self, setting):
        return {"example": super().transforms(setting)["example"][1:]}

@dataclass(frozen=True, kw_only=True)
class Faint(FedCdp):
    """Adds a tenth of the noise that it states."""
    def transforms(self, setting):
        return FedCdp(clip=self.clip, sigma=self.sigma / 10, clipping=self.clipping).transforms(setting)
'''


def _row(folder: Path, defense: str, readings: int = 32) -> Row:
    (folder / "mine.py").write_text(PLUGIN)
    registry.add_plugin(str(folder / "mine.py"))
    path = folder / "matrix.toml"
    path.write_text(
        f"""title = "planted"
readings = {readings}
[axes]
dataset = ["digits"]
model = ["dlg-lenet"]
attack = ["gallery"]
knowledge = ["adaptive"]
grants = [[{{ gallery = 99 }}]]
point = ["type-2"]
federated = [{{ batch = 1 }}]
defense = [{defense}]
[[attack]]
"""
    )
    planned = expand(read(path), Resolver(None).data)
    cells = [one.cell for one in planned if isinstance(one.cell, AttackCell)]
    try:
        (row,) = board([run(cell, RunContext(run=folder), Memory()) for cell in cells])
    finally:
        registry.drop_plugins()
    return row


def flags(folder: Path, defense: str) -> set[str]:
    row = _row(folder, defense)
    at = row.points["type-2"]
    assert at.named is not None and at.named.ceiling is not None
    assert at.named.violated == (VIOLATED in {flag.code for flag in row.flags})
    return {flag.code for flag in row.flags}


@pytest.mark.parametrize(
    ("defense", "violated"),
    [
        ('{ name = "honest", clip = 0.5, sigma = 2.0 }', False),
        ('{ name = "honest", clip = 0.5, sigma = 2.0, clipping = "flat" }', False),
        ('{ name = "unclipped", clip = 0.1, sigma = 2.0 }', True),
        ('{ name = "faint", clip = 0.5, sigma = 2.0 }', True),
    ],
)
def test_a_defense_that_does_not_do_what_it_states_is_found_out(tmp_path: Path, defense: str, violated: bool) -> None:
    assert (VIOLATED in flags(tmp_path, defense)) == violated


def test_the_board_shows_the_fault_in_red(tmp_path: Path) -> None:
    row = _row(tmp_path, '{ name = "unclipped", clip = 0.1, sigma = 2.0 }')
    console = Console(width=120, force_terminal=True, color_system="standard", file=StringIO())
    console.print(terminal.board([row]))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    start = shown.index(VIOLATED)
    assert "\x1b[1;31m" in shown[max(0, start - 200) : start], "bold red"
    page = render([row], thumbnails={}, title="planted", context=())
    assert f'<span class="badge bad">{VIOLATED}</span>' in page
