"""Cascades: each attack on what those before it left; the same worst case as every attack on everything."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.command import in_this_process
from tests.records import attack_cell, attack_record, readings_of
from tests.workers import simulated

from bench.answer.provenance import provenance
from bench.cell import AttackCell, Entry
from bench.cli import running
from bench.errors import BenchError
from bench.leaderboard.conditions import by_condition
from bench.leaderboard.worst import WorstCase
from bench.matrix.expand import expand
from bench.matrix.read import read
from bench.record.cascade import left
from bench.record.request import Request
from bench.record.schema import ReadingScore, Record
from bench.record.store import read as read_record
from bench.record.store import write
from bench.submission.check import cascades
from bench.sweep.plan import Resolver, schedule
from bench.sweep.scheduler import CellGroup, Scheduler

HEAD = """
title = "a cascade"
cascade = true
readings = 4
[axes]
dataset = ["digits"]
model = ["dlg-lenet"]
point = ["type-1"]
federated = [{ batch = 2 }]
defense = ["none", { name = "prune", at = "example", share = 0.9 }]
"""
ATTACKS = """
[[attack]]
attack = ["gallery"]
knowledge = ["adaptive"]
grants = [[{ gallery = 98 }]]
[[attack]]
attack = ["analytic", { name = "cpl", line_search = "backtracking" }]
evaluations = 60
[[attack]]
attack = ["map"]
knowledge = ["adaptive"]
evaluations = 60
"""


def of(cell: AttackCell, readings: tuple[ReadingScore, ...]) -> Record:
    """The record of this very cell, with these readings."""
    return replace(attack_record(cell=cell, readings=readings), id=cell.id, cell=cell)


def planned(tmp_path: Path, text: str = HEAD + ATTACKS, **options: Any) -> list[AttackCell]:
    path = tmp_path / "m.toml"
    path.write_text(text, "utf-8")
    cells = (item.cell for item in expand(read(path, **options), Resolver(None).data))
    return [cell for cell in cells if isinstance(cell, AttackCell)]


def test_attacks_come_in_the_order_of_the_file_and_a_gallery_stops_nothing(tmp_path: Path) -> None:
    cells = planned(tmp_path)
    by_id = {cell.id: cell for cell in cells}
    chains = {
        (cell.attack.name, len(cell.after), tuple(by_id[each].attack.name for each in cell.after)) for cell in cells
    }
    assert chains == {
        ("gallery", 0, ()),
        ("analytic", 0, ()),
        ("cpl", 1, ("analytic",)),
        ("map", 2, ("analytic", "cpl")),
    }
    for cell in cells:
        for each in cell.after:
            assert (by_id[each].defense, by_id[each].point) == (cell.defense, cell.point)
    assert {cell.after for cell in planned(tmp_path, full=True)} == {()}
    assert len(planned(tmp_path, full=True)) == len(cells)


def test_a_cell_that_a_file_names_twice_is_attacked_once(tmp_path: Path) -> None:
    again = ATTACKS + '[[attack]]\nattack = ["map"]\nknowledge = ["adaptive"]\nevaluations = 60\n'
    assert planned(tmp_path, HEAD + again) == planned(tmp_path)


def test_an_id_depends_on_what_came_before(tmp_path: Path) -> None:
    """So a record says by its id what was left to it; cells in no cascade keep theirs."""
    first, longer = (
        {cell.canonical() for cell in planned(tmp_path, HEAD + attacks) if cell.attack.name == "map"}
        for attacks in (ATTACKS, ATTACKS.replace("evaluations = 60", "evaluations = 61"))
    )
    assert first.isdisjoint(longer)
    assert "after" not in attack_cell().canonical()


def test_what_is_left_is_what_came_back_to_nobody(tmp_path: Path) -> None:
    first, second = attack_cell(readings=3), attack_cell(readings=3, attack="dlg")
    third = attack_cell(readings=3, attack="map", after=(first.id, second.id))
    with pytest.raises(BenchError, match="no record"):
        left(third, tmp_path)
    # reading 0 comes back to the first, 1 to both together, 2 to neither
    write(tmp_path, of(first, readings_of([[True, True], [True, False], [False, True]])))
    write(tmp_path, of(second, readings_of([[False, False], [False, True], [False, False]])))
    assert left(first, tmp_path) == (0, 1, 2)
    assert left(third, tmp_path) == (2,)
    assert provenance(third, tmp_path).left == (2,)
    crashed = replace(of(second, readings_of([[True]])), status="crashed", reason="a reason", result=None)
    write(tmp_path, crashed)
    assert left(third, tmp_path) == (1, 2)  # a crash brings nothing back


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=6),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
@settings(max_examples=100, deadline=None)
def test_no_cell_begins_before_those_before_it_are_done(
    shapes: list[tuple[int, int]], workers: int, random: Any
) -> None:
    """Groups of several cascades, attack by attack, on workers that take from one another."""
    groups: list[CellGroup] = []
    seconds: dict[str, float] = {}
    for number, (chains, length) in enumerate(shapes):
        made: list[list[AttackCell]] = [[] for _ in range(chains)]
        for attack in range(length):
            for chain, cells in enumerate(made):
                after = tuple(cell.id for cell in cells)
                cells.append(attack_cell(seed=100 * number + chain, evaluations=attack + 1, after=after))
        group = [made[chain][attack] for attack in range(length) for chain in range(chains)]
        seconds |= {cell.id: random.uniform(0.1, 5) for cell in group}
        groups.append(CellGroup(cells=tuple(group)))
    starts = simulated(Scheduler(groups, lambda cell: seconds[cell.id]), workers, seconds)
    assert Counter(cell.id for _, _, cell in starts) == dict.fromkeys(seconds, 1)
    ends = {cell.id: begin + seconds[cell.id] for begin, _, cell in starts}
    for begin, _, cell in starts:
        assert isinstance(cell, AttackCell)
        assert all(ends[each] <= begin + 1e-9 for each in cell.after)


def test_a_lost_cell_is_repeated_before_what_waits_for_it() -> None:
    first = attack_cell()
    second = attack_cell(attack="dlg", after=(first.id,))
    scheduler = Scheduler([CellGroup(cells=(first, second))], lambda cell: 1.0)
    assert scheduler.take("1") == first
    assert scheduler.take("2") is None  # what is left waits for it
    scheduler.remove("1")
    scheduler.retry(first)
    assert scheduler.take("2") == first
    assert scheduler.take("2") is None
    scheduler.settle(first)
    assert scheduler.take("2") == second
    assert scheduler.empty


def run(folder: Path, matrix: str | Path, *, full: bool) -> list[Record]:
    request = Request(matrix=str(matrix), full=full)
    prepared = running.prepare(request, out=folder, data_dir=None, jobs=1)
    running.execute(prepared, device="cpu", quiet=True, tracking_uri=None)
    return [read_record(path) for path in sorted(folder.glob("records/*.json"))]


def worst_cases(records: list[Record]) -> dict[tuple[str, str, str], WorstCase]:
    return {
        (condition.key, defense, point): worst
        for condition in by_condition(records)
        for defense, row in condition.rows.items()
        for point, worst in row.items()
    }


def same_worst_case(cascade: list[Record], cross: list[Record]) -> None:
    mine, other = worst_cases(cascade), worst_cases(cross)
    assert mine.keys() == other.keys()
    for key, worst in mine.items():
        assert worst.leaked == other[key].leaked, key
        assert worst.named == other[key].named, key
        # of an example that came back nobody else was asked
        assert all(other[key].identified[each] for each, hit in worst.identified.items() if hit)
        open_ = [each for each, leaked in worst.leaked.items() if not leaked]
        assert [worst.identified[each] for each in open_] == [other[key].identified[each] for each in open_]
        assert worst.asr == pytest.approx(sum(worst.rate(name) for name in worst.scores))


@pytest.mark.slow
def test_a_cascade_has_the_worst_case_of_the_whole_cross(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)
    path = tmp_path / "m.toml"
    path.write_text(HEAD + ATTACKS, "utf-8")
    cascade, cross = (run(tmp_path / name, path, full=name == "cross") for name in ("cascade", "cross"))
    same_worst_case(cascade, cross)
    attacked = {(record.cell.id, len(record.attack.readings)) for record in cascade if record.attack is not None}
    assert {0, 4} <= {count for _, count in attacked}, "some cell had nothing left"
    # nothing runs again; where an attack's record is gone, all that came after it does
    prepared = running.prepare(Request(matrix=str(path)), out=tmp_path / "cascade", data_dir=None, jobs=1)
    assert not prepared.schedule.waiting
    first = next(record for record in cascade if record.cell.kind == "attack" and record.cell.attack.name == "cpl")
    (tmp_path / "cascade" / "records" / f"{first.id}.json").unlink()
    again = schedule(prepared.cells, tmp_path / "cascade", Resolver(None)).waiting
    assert {cell.id for cell in again} >= {first.id}
    assert all(cell.id == first.id or first.id in getattr(cell, "after", ()) for cell in again)


@pytest.mark.slow
def test_on_smoke_the_cascade_has_the_worst_case_of_the_whole_cross(tmp_path: Path) -> None:
    cascade, cross = (run(tmp_path / name, "smoke", full=name == "cross") for name in ("cascade", "cross"))
    same_worst_case(cascade, cross)


def test_a_share_in_a_cascade_is_of_all_examples() -> None:
    """A later attack that gets one of two left-overs back adds one of four."""
    first = attack_cell(readings=4)
    second = attack_cell(readings=4, attack=Entry(name="map"), after=(first.id,))
    early = of(first, readings_of([[True], [True], [False], [False]]))
    late_readings = tuple(reading for n, reading in enumerate(readings_of([[True], [True], [True], [False]])) if n > 1)
    late = of(second, tuple(replace(each, number=n + 2) for n, each in enumerate(late_readings)))
    worst = WorstCase()
    for record in (early, late):
        worst.add(record)
    assert worst.asr == 0.75
    assert sorted(worst.rate(name) for name in worst.scores) == [0.25, 0.5]
    assert worst.best is not None
    assert worst.best[1] == 0.5


def test_a_submission_whose_cells_attacked_others_is_refused() -> None:
    """What a cell of a cascade attacked must be what those before it left."""
    first = attack_cell(readings=3)
    second = attack_cell(readings=3, attack="map", after=(first.id,))
    early = of(first, readings_of([[True], [False], [False]]))

    def late(*numbers: int) -> Record:
        every = readings_of([[False]] * 3)
        return of(second, tuple(replace(every[n], number=n) for n in numbers))

    assert list(cascades([early, late(1, 2)])) == []
    (found,) = cascades([early, late(2)])
    assert found.endswith("it attacked other readings than the cells before it left")
    (found,) = cascades([late(1, 2)])
    assert f"are not there: {first.id[:8]}" in found
