"""How long a suite takes under a defense that was never timed: what is tried, and what follows from it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.records import attack_cell, attack_record, entry, readings_of

from bench.answer.context import RunContext
from bench.cell import AnyCell, AttackCell, DataRef, Entry, Federated, Grants
from bench.cli.running import _slowed
from bench.record.schema import Cost, Record
from bench.sweep.plan import Resolver
from bench.sweep.pool import Event
from bench.sweep.processes import ProcessPool
from bench.sweep.trial import Trial, tried

MINE = "low-rank"  # any defense that the trial knows nothing of
SECONDS = {
    ("gallery", MINE): 4.0,
    ("gallery", "sign"): 1.0,
    ("map", MINE): 3.0,
    ("map", "sign"): 2.0,
    ("gradinv", MINE): 1.0,
    ("gradinv", "sign"): 2.0,
}


class TimedPool:
    """One worker, whose attacks take the seconds of `SECONDS`; those of `crashing` crash."""

    def __init__(self, asked: list[AttackCell], crashing: Sequence[str], context: RunContext) -> None:
        self._asked, self._crashing = asked, crashing
        self._cell: AttackCell | None = None

    def workers(self) -> tuple[str, ...]:
        return ("a",)

    def submit(self, worker: str, cell: AnyCell, *, demand: int, company: tuple[AnyCell, ...] = ()) -> None:
        assert isinstance(cell, AttackCell)
        self._asked.append(cell)
        self._cell = cell

    def events(self) -> list[tuple[str, Event]]:
        cell = self._cell
        assert cell is not None
        seconds = SECONDS[cell.attack.name, cell.defense.name]
        record: Record = replace(
            attack_record(cell=cell, readings=readings_of([[True]])),
            id=cell.id,
            cost=Cost(wall_seconds=seconds, attack_seconds=seconds),
        )
        if cell.defense.name in self._crashing:
            record = replace(record, status="crashed", reason="a reason", result=None, cost=Cost(wall_seconds=1.0))
        return [("a", record)]

    def close(self) -> None:
        pass


def cell(attack: str = "map", point: str = "type-0", knowledge: str = "adaptive", **changes: object) -> AttackCell:
    return attack_cell(attack=attack, point=point, knowledge=knowledge, defense=MINE, **changes)


def trial_of(
    cells: Sequence[AnyCell], stage: str = "client", crashing: Sequence[str] = ()
) -> tuple[Trial, list[AttackCell]]:
    asked: list[AttackCell] = []
    names = {str(each.defense): stage for each in cells}
    return tried(cells, names, Resolver(None), None, partial(TimedPool, asked, crashing)), asked


def test_each_attack_has_the_ratio_of_its_own_trial() -> None:
    cells = [cell("gallery", grants=Grants(gallery=50)), cell("map"), cell("gradinv")]
    trial, _ = trial_of(cells)
    assert [trial.ratio(each) for each in cells] == [4.0, 1.5, 1.0]
    other = cells[0].model_copy(update={"defense": entry("prune")})
    assert trial.ratio(other) == 1.0


def test_what_is_tried_is_short_and_of_few_examples() -> None:
    """Of three settings the one with one example a reading, where it passes most stages; nothing of a black box, of
    trained weights, or of what another defense does."""
    batch = cell(federated=Federated(batch=8), readings=2, evaluations=1200)
    early, late = (cell(point=point, readings=16, evaluations=1200) for point in ("type-2", "type-0"))
    box = cell("learned-inverter", knowledge="black-box")
    known = attack_cell(attack="map", defense="prune", knowledge="adaptive")
    asked: list[AttackCell] = []
    names = {str(early.defense): "example"}
    tried([batch, early, box, late, known], names, Resolver(None), None, partial(TimedPool, asked, ()))
    assert {each.defense.name for each in asked} == {MINE, "sign"}
    assert {each.defense.params["at"] for each in asked if each.defense.name == "sign"} == {"example"}
    assert {(each.point, each.evaluations, each.readings, each.after) for each in asked} == {("type-0", 30, 4, ())}


@pytest.mark.parametrize("crashing", [(MINE,), ("sign",), (MINE, "sign")])
def test_a_trial_that_crashes_says_nothing(crashing: Sequence[str]) -> None:
    trial, asked = trial_of([cell()], crashing=crashing)
    assert len(asked) == 2
    assert trial.ratio(cell()) == 1.0


def test_a_point_that_the_defense_does_not_reach_takes_what_it_took() -> None:
    """A client's defense leaves an example's gradient as it is; one at stage `example` does not."""
    trial = Trial(
        {(str(Entry(name="gaussian", params={"at": at})), "map", "adaptive"): 3.0 for at in ("client", "example")}
    )
    seconds = {
        (at, point): _slowed(
            lambda _: 10.0,
            trial,
            cell(point=point).model_copy(update={"defense": Entry(name="gaussian", params={"at": at})}),
        )
        for at in ("client", "example")
        for point in ("type-2", "type-0")
    }
    assert seconds == {
        ("client", "type-2"): 10.0,
        ("client", "type-0"): 30.0,
        ("example", "type-2"): 30.0,
        ("example", "type-0"): 30.0,
    }
    assert _slowed(lambda _: None, trial, cell()) is None


@pytest.mark.slow
def test_a_real_trial_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine = cell(readings=2, evaluations=6, dataset=_digits())
    trial = tried([mine], {str(mine.defense): "client"}, Resolver(None), None, partial(ProcessPool, jobs=1))
    assert trial.ratio(mine) >= 1.0
    assert len(trial.ratios) == 1
    assert not list(tmp_path.iterdir())


def _digits() -> DataRef:
    facts = Resolver(None).data("digits", {})
    return DataRef(name="digits", params={}, sha256=facts.sha256, subset=facts.subset)
