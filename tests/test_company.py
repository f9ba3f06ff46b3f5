"""Promise: cells that are attacked together get what each gets by itself."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.benchmarks.small_cells import in_double
from tests.cells import LATER, NOISE, NONE, PRUNE, mate
from tests.records import attack_record

from bench.answer import company as beside
from bench.answer import readings
from bench.answer.company import attack_together, part_of
from bench.answer.context import Memory, RunContext
from bench.answer.observation import draw_and_observe
from bench.answer.reconstruct import attacker_of
from bench.answer.run import run
from bench.attacks.base import Attack
from bench.cell import AttackCell, Entry
from bench.record.schema import Record
from bench.record.store import write
from bench.registry import entries as registry
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction


def mergeable(name: str) -> bool:
    attack: type[Attack] = registry.load("attacks", name)
    return attack.mergeable


MIXED = Entry(name="mixup")
MERGEABLE = [name for name in registry.names("attacks") if mergeable(name)]


def equal(one: Reconstruction, other: Reconstruction) -> None:
    torch.testing.assert_close(one.inputs, other.inputs, rtol=0, atol=1e-9)
    torch.testing.assert_close(one.loss, other.loss, rtol=1e-9, atol=1e-12)
    for name in ("labels", "evaluations", "outer", "restarts"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert one.status == other.status
    assert one.history[-1][0] == other.history[-1][0]
    torch.testing.assert_close(one.history[-1][1], other.history[-1][1], rtol=1e-9, atol=1e-12)
    assert one.trajectory is not None and other.trajectory is not None
    torch.testing.assert_close(one.trajectory[-1], other.trajectory[-1], rtol=0, atol=1e-9)


def test_an_attack_is_mergeable_only_if_it_says_so() -> None:
    assert not Attack.mergeable and MERGEABLE


def knowing(name: str) -> list[Any]:
    """What the attack may know; the adaptive ones are slow, but for who is nothing else, and so are cpl's kin."""
    attack: type[Attack] = registry.load("attacks", name)
    marked = {"adaptive": [pytest.mark.slow]} if "plain" in attack.knowledge else {}
    if name in ("compensated-gradinv", "dlg", "idlg", "gradinv"):
        marked["plain"] = [pytest.mark.slow]
    return [pytest.param(name, knows, marks=marked.get(knows, [])) for knows in attack.knowledge]


@pytest.mark.parametrize(("attack", "knowledge"), [case for name in MERGEABLE for case in knowing(name)])
def test_together_as_alone(tmp_path: Path, attack: str, knowledge: str) -> None:
    """In double precision, to 1e-9, over evaluations that do not yet amplify rounding."""
    known = MIXED if attack == "demix" else NOISE
    defenses = [PRUNE, NOISE, NONE] if knowledge == "plain" else [known, known]
    counts = [3, 2, 10]
    cells = [
        mate(defense, attack=Entry(name=attack), knowledge=knowledge, draw=n, readings=counts[n])
        for n, defense in enumerate(defenses)
    ]
    context, memory, budget = RunContext(run=tmp_path), Memory(), Budget(evaluations=24, chunk=4)
    given = [in_double(draw_and_observe(each, context, memory).reading) for each in cells]
    attacker: Attack = attacker_of(cells[0], given[0])
    whole, rows = Reading.joined(given)
    assert [len(each) for each in rows] == counts[: len(cells)]
    traced = sum(index < budget.traced for index in whole.indices)
    together = attacker.reconstruct(whole, replace(budget, traced=traced), Key.of_attacker(0))
    for reading, own in zip(given, rows, strict=True):
        alone = attacker.reconstruct(reading, budget, Key.of_attacker(0))
        part = part_of(together, own)
        equal(part, alone)
        assert part.trajectory is not None and part.trajectory.shape[1] == min(8, len(reading))
        if attack not in ("map", "demix"):  # whose marks are the ends of stages
            assert [mark for mark, _ in part.history] == [mark for mark, _ in alone.history]


@pytest.mark.parametrize(
    "defense",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in {*LATER, "risk-balanced"}))
        for name in registry.names("defenses")
    ],
)
def test_readings_taken_in_pieces_equal_readings_taken_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defense: str
) -> None:
    """Every registered defense, batches of two: a client's reading depends on no other client, but for whole rounds."""
    params = (
        {"correction": "none"} if defense == "quantile" else {}
    )  # "exact" needs more clients than a small round has
    cell = mate(
        Entry(name=defense, params=params), attack=Entry(name="cpl"), knowledge="plain", point="type-1", readings=3
    )
    cell = cell.model_copy(update={"federated": cell.federated.model_copy(update={"batch": 2})})
    whole = draw_and_observe(cell, RunContext(run=tmp_path), Memory()).reading
    monkeypatch.setattr(readings, "_MOST", 2)  # a client at a time
    pieces = draw_and_observe(cell, RunContext(run=tmp_path), Memory()).reading
    for name, value in whole.values.items():
        torch.testing.assert_close(pieces.values[name], value, rtol=1e-4, atol=1e-5 * float(value.abs().max()))


def answered(cells: list[AttackCell], folder: Path, rows: int | None) -> list[Record]:
    context, memory = RunContext(run=folder, rows=rows), Memory()
    return [run(each, context, memory, company=tuple(cells[n + 1 :])) for n, each in enumerate(cells)]


def test_records_of_cells_in_company(tmp_path: Path) -> None:
    """Same successes; each names the others; adaptive cells, and what there is no room for, are left to their turn."""
    cells = [
        mate(PRUNE, evaluations=40),
        mate(PRUNE, knowledge="adaptive", evaluations=40),
        mate(NOISE, evaluations=40),
        mate(NONE, evaluations=40),
        mate(NONE, readings=10, evaluations=40),
        mate(Entry(name="prune", params={"share": 0.5}), evaluations=40),
    ]
    alone, together = answered(cells, tmp_path / "alone", None), answered(cells, tmp_path / "beside", 9)
    for one, other in zip(alone, together, strict=True):
        assert one.attack is not None and other.attack is not None
        assert [[example.success for example in reading.examples] for reading in one.attack.readings] == [
            [example.success for example in reading.examples] for reading in other.attack.readings
        ]
        assert one.cost.company == ()
        assert other.cost.wall_seconds >= (other.cost.attack_seconds or 0.0) > 0
    plain = [cells[n].id for n in (0, 2, 3)]
    for n, record in enumerate(together):
        assert set(record.cost.company) == ({*plain} - {record.id} if record.id in plain else set()), n


def test_equal_readings_are_attacked_once(tmp_path: Path) -> None:
    """Type-0 shows what type-1 shows."""
    cells = [mate(PRUNE), mate(PRUNE, point="type-0"), mate(NOISE)]
    first, second, third = answered(cells, tmp_path, 100)
    assert second.cost.reused_from == first.id and not second.cost.company
    assert first.cost.company == (third.id,)


def test_a_cell_that_fails_leaves_the_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attack that fails on all readings at once is tried on each cell's; who cannot be observed says so itself."""
    bad = mate(Entry(name="prune", params={"share": 0.7, "nothing": 1}))
    cells = [mate(PRUNE), bad, mate(NOISE)]
    first, second, third = answered(cells, tmp_path, 100)
    assert (first.status, second.status, third.status) == ("done", "crashed", "done")
    assert first.cost.company == (third.id,)

    def fails(*given: Any) -> Reconstruction:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(beside, "attack_readings", fails)
    assert [each.status for each in answered([mate(PRUNE), mate(NOISE)], tmp_path, 100)] == ["done", "done"]


def test_what_another_worker_took_is_forgotten(tmp_path: Path) -> None:
    first, second, third = mate(PRUNE), mate(NOISE), mate(NONE)
    context, memory = RunContext(run=tmp_path, rows=100), Memory()
    attack_together(first, [second, third], context, memory)
    assert set(memory.attacked) == {first.id, second.id, third.id}
    attack_together(mate(NONE, knowledge="adaptive"), [third], context, memory)
    assert set(memory.attacked) == {third.id}


@pytest.mark.parametrize("conditions", [{}, {"rows": 100, "time_limit": 60.0}, {"rows": 5}])
def test_a_cell_by_itself(tmp_path: Path, conditions: dict[str, Any]) -> None:
    """On a CPU unless asked for; under a time limit, which is each cell's own; without room."""
    memory = Memory()
    attack_together(mate(PRUNE), [mate(NOISE)], RunContext(run=tmp_path, **conditions), memory)
    assert not memory.attacked


def test_what_was_attacked_beside_others_counts_for_the_readings_that_are_left(tmp_path: Path) -> None:
    """A cell before it in its cascade, made again between, may leave others."""
    before = mate(PRUNE, attack=Entry(name="prior-mean"))
    cells = [mate(PRUNE, after=(before.id,)), mate(NOISE, after=(before.id,))]
    context, memory = RunContext(run=tmp_path, rows=100), Memory()
    write(tmp_path, attack_record([[False] * 2, [True] * 2, [True] * 2], cell=before))
    attack_together(cells[0], cells[1:], context, memory)
    assert set(memory.attacked) == {each.id for each in cells}
    write(tmp_path, attack_record([[True] * 2, [False] * 2, [True, False]], cell=before))
    result = run(cells[0], context, memory).attack
    assert result is not None
    assert [number for number, _ in result.numbered()] == [1, 2]
    assert not memory.attacked.keys() & {cells[0].id}


def test_a_cell_with_nothing_left_is_in_no_company(tmp_path: Path) -> None:
    """The cells before it in its cascade got every reading back."""
    before = mate(PRUNE, attack=Entry(name="prior-mean"))
    write(tmp_path, attack_record([[True] * 2] * 3, cell=before))
    empty, first, second = mate(NOISE, after=(before.id,)), mate(PRUNE), mate(NONE)
    context, memory = RunContext(run=tmp_path, rows=100), Memory()
    attack_together(empty, [first, second], context, memory)
    assert not memory.attacked
    attack_together(first, [empty, second], context, memory)
    assert set(memory.attacked) == {first.id, second.id}
