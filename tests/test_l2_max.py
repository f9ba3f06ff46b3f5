"""docs/papers/l2-max.md: its table in closed form, and a row from the code that adds the noise."""

import math
import re
from pathlib import Path

import pytest
import torch
from scipy.stats import beta, chi2, ncx2

from bench.cell import Federated
from bench.contracts.situations import setting_of
from bench.defenses.accounting.composition import gaussian
from bench.defenses.base import Context
from bench.defenses.fed_alpha_cdp import FedAlphaCdp
from bench.federated.draws import KeyedDraws

PAGE = (Path(__file__).parents[1] / "docs" / "papers" / "l2-max.md").read_text("utf-8")
SIGMA, DELTA = 6.0, 1e-5
DRAWS = 20000


def _events(values: int, chance: float) -> tuple[float, float]:
    """Return (t, P'), for the event ‖y - v‖ > σC√t, with probability `chance` under D and P' under D': ‖y - v‖²/(σC)²
    is a noncentral χ² with noncentrality 1/σ² under D, and a quarter of a χ² under D'."""
    t = float(ncx2.isf(chance, values, 1 / SIGMA**2))
    return t, float(chi2.sf(4 * t, values))


def _shown(value: float) -> str:
    return f"{value:.2g}" if value >= 0.001 else re.sub(r"e-0?", "e-", f"{value:.0e}")


def test_the_table_is_the_closed_form() -> None:
    claimed = gaussian(SIGMA, DELTA)
    assert f"ε = {claimed:.2f} at δ = 1e-5" in PAGE
    rows = re.findall(r"^\| (\d+) \| (\S+) \| (\S+) \| (\S+) \| (\S+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 4
    for values, chance, other, needed, delta in rows:
        p = float(chance)
        _, q = _events(int(values), p)
        found = (_shown(q), f"{math.log((p - DELTA) / q):.1f}", f"{p - math.exp(claimed) * q:.2g}")
        assert (other, needed, delta) == found


def test_the_code_of_the_defense_breaks_the_claim_beyond_chance() -> None:
    """D = {v, w} and D' = {v, 0} in ten coordinates: intervals of 99.9 % (Clopper & Pearson 1934)."""
    setting = setting_of(Federated(batch=2), rounds=1)
    defense = FedAlphaCdp(clip=4.0, sigma=SIGMA, noise="code", clipping="flat")
    stages = defense.transforms(setting)
    (clip,), (noise,) = stages["example"], stages["step"]
    v, w = torch.zeros(10, dtype=torch.float64), torch.zeros(10, dtype=torch.float64)
    v[0], w[1] = 2.0, 4.0
    t, expected = _events(10, 0.5)
    counts = []
    for draw, (batch, mean_square) in enumerate((((v, w), 0.5), ((v, 0 * w), expected))):
        draws = KeyedDraws(seed=draw, fields=(), rows=((0,),))
        given = {"w": torch.stack(batch).expand(DRAWS, 2, 10)}

        def context(lead: int, stage: str, norms: object = None, draws: KeyedDraws = draws) -> Context:
            return Context(lead=lead, stage=stage, round=0, step=0, setting=setting, draws=draws, norms=norms)  # type: ignore[arg-type]

        clipped = clip.apply(given, context(2, "example"))
        norms = {"w": clipped["w"].norm(dim=-1)}
        sent = noise.apply({"w": clipped["w"].mean(1)}, context(1, "step", norms))
        hits = int(((2 * sent["w"] - v).square().sum(1) > t * (SIGMA * 4.0) ** 2).sum())
        assert abs(hits - DRAWS * mean_square) < 4 * math.sqrt(DRAWS * mean_square)
        counts.append(hits)
    least = float(beta.ppf(0.0005, counts[0], DRAWS - counts[0] + 1))
    most = float(beta.ppf(0.9995, counts[1] + 1, DRAWS - counts[1]))
    assert least - math.exp(gaussian(SIGMA, DELTA)) * most > 0.4
    assert PAGE.count("more than .4") == 1


def test_the_page_is_a_page() -> None:
    assert len(PAGE.split()) <= 350


@pytest.mark.parametrize("values", [1, 10, 100])
def test_noise_of_the_bound_keeps_the_claim(values: int) -> None:
    """With S = C in both: the same events stay within ε, δ."""
    t, _ = _events(values, 0.5)
    within = math.exp(gaussian(SIGMA, DELTA)) * float(chi2.sf(t, values)) + DELTA
    assert within >= 0.5
