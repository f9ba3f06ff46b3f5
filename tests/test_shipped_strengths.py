"""Promise: shipped strengths are neither too weak nor far too strong, and a message without data meets each level."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from scipy.stats import binom

from bench.answer.attack import attack as run_attack
from bench.answer.context import Memory, RunContext
from bench.calibration.curve import Counts, fitted, usual_slope
from bench.calibration.measure import TUNING, federations, reading_cells
from bench.calibration.result import levels_met
from bench.cell import AttackCell, Entry
from bench.defenses.strength import Strength
from bench.errors import MissingDataError
from bench.matrix.read import read
from bench.record.tradeoff import NAMED, AtLevel, Leaked, Row, permitted
from bench.reference.tradeoff import shipped_tradeoff
from bench.registry import entries as registry
from bench.sweep.plan import Resolver

# 128 readings at a chance of 2 %, by an older rule: docs/TRADEOFF.md, limits
FEW = {("cifar10-mobilenet", "aggregate", name) for name in ("adaclip", "fed-alpha-cdp", "fed-split")}
POWERS = {"sigma": 1, "epsilon": 1, "variance": 2}  # of the noise's deviation
SEEDS = 8  # of 16: 256 readings

SILENT = '''
from dataclasses import dataclass
from bench.defenses.base import Defense, Transform
from bench.defenses.transforms.noise import GaussianNoise

@dataclass(frozen=True, kw_only=True)
class Nothing(Transform):
    def apply(self, tensors, context):
        return {name: 0 * value for name, value in tensors.items()}

@dataclass(frozen=True, kw_only=True)
class Silent(Defense):
    """Sends noise in place of an update."""
    reference = "a test"
    stages = ("client",)
    def transforms(self, setting):
        return {"client": (Nothing(), GaussianNoise(deviation=1.0))}
'''


@dataclass(frozen=True)
class Noisy:
    """A shipped family whose strength is the size of additive noise."""

    row: Row
    strength: Strength

    def most_named(self, value: float, level: float) -> float:
        """The larger share of the two curves fitted near the level, in the first round and at trained weights."""
        curves = [curve for curve in (self.row.curve, self.row.trained_curve) if curve]
        return max(self._share(curve, value, level) for curve in curves)

    def half(self, at: AtLevel) -> float:
        """The value with half of the noise's deviation."""
        assert at.value is not None
        factor = 2.0 ** POWERS[self.strength.parameter]
        return at.value / factor if self.strength.strong > self.strength.weak else at.value * factor

    def _share(self, curve: tuple[Leaked, ...], value: float, level: float) -> float:
        assert self.row.chance is not None
        counts = [
            Counts(position=self.strength.position(each.value), hits=each.hits, readings=each.readings)
            for each in curve
            if each.value is not None
        ]
        fit = fitted(counts, level, self.row.chance, usual_slope(self.strength))
        return float(fit.share(self.strength.position(value)))


def shipped() -> Iterator[Row]:
    tradeoff = shipped_tradeoff()
    assert tradeoff is not None
    yield from tradeoff.rows


def noisy() -> Iterator[Noisy]:
    for row in shipped():
        name = row.family.partition("(")[0]
        if row.parameter in POWERS and (row.dataset, row.point, name) not in FEW:
            strength = registry.instance("defenses", name, {}).strength
            yield Noisy(row, strength)


@pytest.mark.parametrize("level", NAMED)
def test_half_of_the_shipped_noise_leaks_more_than_the_level(level: str) -> None:
    levels = [(each, each.row.at(level)) for each in noisy()]
    strengths = [(each, at) for each, at in levels if at is not None]
    assert len(strengths) > 40
    for each, at in strengths:
        assert at.most is not None
        assert each.most_named(each.half(at), at.most) > at.most, (each.row.dataset, each.row.point, each.row.family)


def test_other_victims_refute_no_more_strengths_than_chance_does() -> None:
    """A lower end (97.5 %) above the level: as often as of strengths that meet their levels exactly, at most."""
    strengths = [at for row in shipped() for at in row.at_levels if at.level in NAMED]
    refuted = sum(at.low > at.most for at in strengths if at.most is not None)
    assert len(strengths) > 100
    assert binom.sf(refuted - 1, len(strengths), 0.025) > 0.05, refuted


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["tradeoff", "tradeoff-adult", "tradeoff-cifar10"])
def test_noise_in_place_of_an_update_meets_each_level(preset: str, data_dir: Path, tmp_path: Path) -> None:
    matrix, facts = read(preset), Resolver(data_dir).data
    (federation,) = federations(matrix)
    context, memory = RunContext(run=tmp_path, data_dir=data_dir), Memory()
    hits, readings, chances = list[int](), list[int](), list[float]()
    torch.set_num_threads(1)
    rows = federation.attacks["named", "type-1"][:SEEDS]
    try:
        facts(federation.dataset, {})
    except MissingDataError as error:
        pytest.skip(str(error))
    (tmp_path / "silent.py").write_text(SILENT)
    registry.add_plugin(str(tmp_path / "silent.py"))
    try:
        cells = reading_cells(matrix, rows, Entry(name="silent"), TUNING, facts)
        for item in cells:
            assert isinstance(item.cell, AttackCell)
            summary = run_attack(item.cell, context, memory)[0].summary
            assert summary is not None and summary.naming is not None and summary.naming_chance is not None
            hits.append(round(summary.naming.value * summary.examples))
            readings.append(summary.examples)
            chances.append(summary.naming_chance)
    finally:
        registry.drop_plugins()
    levels = {level: permitted(level, sum(chances) / len(chances)) for level in NAMED}
    assert levels_met(Counts(position=0.0, hits=tuple(hits), readings=tuple(readings)), levels) == NAMED
