"""Promise: a defense whose training is not of the strength that was attacked gets a flag, and no other does."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.boards import attacked, by_defense, codes, trained
from tests.records import CELL

from bench.answer.context import Memory, RunContext
from bench.answer.run import run
from bench.defenses.base import Tensors
from bench.federated.spots import looked_at, spot
from bench.leaderboard.board import Row, board
from bench.leaderboard.flags import APART
from bench.matrix.expand import expand
from bench.matrix.read import read
from bench.points import Stage
from bench.record.schema import AttackConditions, Distortion, Record, Spot
from bench.registry import entries as registry
from bench.sweep.plan import Resolver

PLUGIN = '''
import os
from dataclasses import dataclass

from bench.defenses.base import Context, Defense, Setting, StageTransforms, Tensors, Transform
from bench.federated.draws import KeyedDraws


@dataclass(frozen=True, slots=True)
class Noisy(Transform):
    """Deviation 1, or a hundredth of it where the defense is weak."""

    random = True
    when: str

    def apply(self, tensors: Tensors, context: Context):
        weak = {
            "rounds": context.setting.rounds < 50,
            "examples": context.setting.batch * context.setting.steps > 4,
            "environment": "WEAK" in os.environ,
            "later": context.round > 0,
            "draws": not isinstance(context.draws, KeyedDraws),
        }[self.when]
        deviation = 0.01 if weak else 1.0
        return {name: value + deviation * context.draws.normal(name, value) for name, value in tensors.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeakWhere(Defense):
    """Noise that is weak where nobody looks."""

    reference = "none"
    stages = ("step", "client")
    when: str = "rounds"

    def transforms(self, setting: Setting) -> StageTransforms:
        return {"step" if self.when == "draws" else "client": (Noisy(self.when),)}


DEFENSES = {"weak-where": WeakWhere}
'''

MATRIX = """title = "strength"
readings = 2
[axes]
dataset = ["digits"]
model = ["dlg-lenet"]
defense = [{defense}]
[[attack]]
attack = ["gallery"]
point = ["type-1"]
grants = [[{{ gallery = 20 }}]]
federated = [{{ batch = 3 }}]
[[attack]]
attack = ["dlg"]
point = ["type-2", "type-1", "type-0"]
federated = [{{ batch = 3 }}]
evaluations = 2
[[train]]
dataset = ["digits"]
model = ["dlg-lenet"]
defense = [{defense}]
federated = [
    {{ clients = 20, per_round = 4, batch = 5, rate = 0.1 }},
    {{ algorithm = "fedavg", clients = 20, per_round = 4, steps = 2, batch = 4, rate = 0.1 }},
]
rounds = [4]
"""


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[Row]]:
    monkeypatch.setattr(registry, "_added", {})
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN)

    def answered(defense: str) -> list[Row]:
        registry.add_plugin(str(plugin))
        path = tmp_path / "m.toml"
        path.write_text(MATRIX.format(defense=defense))
        records, memory = [], Memory()
        for item in expand(read(path), Resolver(None).data):
            monkeypatch.delenv("WEAK", raising=False)
            if item.cell.kind == "training":
                monkeypatch.setenv("WEAK", "")
            records.append(run(item.cell, RunContext(run=tmp_path), memory))
        assert not any(record.status == "crashed" for record in records), [each.reason for each in records]
        return board(records)

    return answered


@pytest.mark.parametrize(
    ("when", "code"),
    [
        ("rounds", "other-strength"),
        ("examples", "other-strength"),
        ("environment", "other-strength"),
        ("draws", "other-strength"),
        ("later", "round-dependent"),
    ],
)
def test_a_defense_that_is_weaker_in_its_training_is_found_out(
    rows: Callable[[str], list[Row]], when: str, code: str
) -> None:
    found = rows(f'{{ name = "weak-where", when = "{when}" }}')
    assert found and all(code in codes(row) and not set(APART) - {code} & set(codes(row)) for row in found)
    assert not any(row.pareto for row in found)


FAST = {"prune", "fed-cdp", "niss"}
EACH = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in registry.names("defenses")]


@pytest.mark.parametrize("name", EACH)
def test_no_defense_of_bench_is_taken_for_one(rows: Callable[[str], list[Row]], name: str) -> None:
    raised = {flag for row in rows(f'"{name}"') for flag in row.flags if flag.code in APART}
    assert not raised


def spots(*changes: float, signal: float = 1.0) -> tuple[Spot, ...]:
    return tuple(
        Spot(round=5 * number, signal=signal, changes={"type-1": change}, cosine=0.0)
        for number, change in enumerate(changes)
    )


def with_spots(*changes: float, signal: float = 1.0) -> Record:
    """A training in the setting that is attacked."""
    record = trained(0.9, defense="d", epsilon=1.0)
    assert record.training is not None
    cell = record.cell.model_copy(update={"federated": CELL.federated})
    return replace(record, cell=cell, result=replace(record.training, spots=spots(*changes, signal=signal)))


def noisy(snr_db: float, *, random: bool = True) -> Record:
    """Gradients of norm 1."""
    conditions = AttackConditions(described=True, random=random, gradient_norm_median=1.0)
    distortion = Distortion(snr_db_median=snr_db, snr_db_least=snr_db)
    return attacked(0, defense="d", point="type-1", conditions=conditions, distortion=distortion)


@pytest.mark.parametrize(
    ("records", "raised"),
    [
        ([noisy(0.0), with_spots(1.0, 0.3, 0.3)], []),  # a little over half of the noise
        ([noisy(0.0), with_spots(1.0, 1.0, 0.2)], ["round-dependent"]),
        ([noisy(0.0), with_spots(1.0, 1.0, 0.0)], ["round-dependent"]),
        ([noisy(0.0), with_spots(1e-4, 1e-4)], ["other-strength"]),
        ([noisy(0.0), with_spots(1e-4, 1e-4, signal=1e-4)], []),  # smaller gradients: the same share
        ([noisy(-40.0), with_spots(1.0, 1.0)], ["other-strength"]),
        ([noisy(120.0), with_spots(0.0, 0.0)], []),  # nothing is changed where it is attacked
        ([noisy(0.0), with_spots(1e-14, 1e-16)], ["other-strength"]),  # rounding is no change
        ([noisy(0.0, random=False), with_spots(0.1, 1e-3)], []),  # what a mask takes depends on the gradient
        ([noisy(0.0, random=False), with_spots(0.1, 0.0)], ["round-dependent"]),
        ([noisy(0.0, random=False), with_spots(0.0, 0.0)], ["other-strength"]),
    ],
)
def test_flags_by_what_was_changed(records: list[Record], raised: list[str]) -> None:
    rows = by_defense(board([attacked(32), *records]))
    assert [code for code in codes(rows["d"]) if code in APART] == raised


def test_a_decay_that_epsilon_counts_is_none() -> None:
    record = with_spots(1.0, 0.5, 0.02)
    assert record.training is not None
    figures = tuple(replace(each, multiplier=(6.0, 0.6)) for each in record.training.privacy.figures)
    decaying = replace(record.training, privacy=replace(record.training.privacy, figures=figures))
    for result, raised in ((record.training, True), (decaying, False)):
        rows = by_defense(board([attacked(32), noisy(0.0), replace(record, result=result)]))
        assert ("round-dependent" in codes(rows["d"])) == raised


def test_a_spot_is_what_points_show_beside_what_was_to_be_sent() -> None:
    undefended, left = {"w": torch.tensor([[3.0, 4.0]])}, {"w": torch.tensor([[3.0, 3.0], [9.0, 9.0]])}
    sent, mean = {"w": torch.tensor([[0.0, 4.0], [9.0, 9.0]])}, {"w": torch.tensor([2.0, 2.0])}
    shown: dict[Stage, Tensors] = {"client": left, "server": sent, "aggregate": {"w": torch.tensor([2.0, 3.0])}}
    seen = spot(7, undefended, shown, mean, 0.5)
    assert seen is not None and (seen.round, seen.signal) == (7, 100.0)
    assert seen.changes == {"type-1": 4.0, "type-0": 36.0, "aggregate": 4.0}
    assert math.isclose(seen.cosine, 0.8)
    assert spot(7, undefended, {**shown, "server": {"w": torch.full((1, 2), math.nan)}}, mean, 1.0) is None
    assert {0, 99} < looked_at(0, 100) and looked_at(0, 100) != looked_at(1, 100)
    assert looked_at(0, 1) == {0}
