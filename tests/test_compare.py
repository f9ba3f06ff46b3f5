"""`bench compare`: what differs, whether the two are paired, and what the pairs say; nothing else is claimed."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from bench.answer.run import Memory, Place, run_cell
from bench.cell import AttackCell, DataRef, Entry, Federated
from bench.cli.compare import command
from bench.cli.comparison import compare, questions
from bench.datasets.base import content_hash
from bench.datasets.digits import Digits
from bench.errors import BenchError
from bench.record import store as records
from bench.record.store import Record
from bench.scoring.intervals import mcnemar, paired, wilson

CELL: dict[str, Any] = {
    "kind": "attack",
    "dataset": {"name": "digits", "params": {}, "sha256": "0" * 64, "subset": None},
    "model": {"name": "dlg-lenet", "params": {"activation": "sigmoid"}},
    "federated": {"algorithm": "fedsgd", "batch": 1},
    "defense": {"name": "none", "params": {}},
    "attack": {"name": "cpl", "params": {"outer": 300, "restarts": 0}},
    "weights": {"kind": "init"}, "knowledge": "plain", "point": "type-2", "seed": 0, "draw": 0,
}  # fmt: skip


def record(
    successes: list[list[bool]],
    psnr: list[list[float | None]] | None = None,
    cell_id: str = "a1",
    **cell: Any,
) -> Record:
    """A record whose reading r is of client r and examples 10r, 10r + 1, …"""
    victims = [
        {
            "clients": [row], "examples": [10 * row + n for n in range(len(leaked))],
            "pictures": [
                {"success": hit, "psnr_db": psnr[row][n] if psnr else 30.0 * hit, "rmse": 0.5 - 0.4 * hit}
                for n, hit in enumerate(leaked)
            ],
        }
        for row, leaked in enumerate(successes)
    ]  # fmt: skip
    hits = np.array(successes)
    low, high = wilson(int(hits.sum()), hits.size)
    return Record(
        id=cell_id, status="done", cell={**copy.deepcopy(CELL), **cell},
        source={"bench": {"version": "1", "protocol": 1, "sha256": "5" * 64}},
        summary={
            "asr": float(hits.mean()), "asr_low": low, "asr_high": high, "lower_bound": False,
            "pictures": hits.size, "rmse_median": 0.1, "psnr_db_median": 30.0,
            "conditions": {"weights_norm": 26.0},
        },
        victims=victims, environment={}, cost={},
    )  # fmt: skip


def singles(*leaked: bool) -> list[list[bool]]:
    return [[hit] for hit in leaked]


def told(run: Path, *arguments: str) -> str:
    result = CliRunner().invoke(command, [*arguments, str(run)])
    assert result.exit_code == 0, result.exception
    return result.output


def run_of(folder: Path, *found: Record) -> Path:
    for one in found:
        records.write(folder, one)
    return folder


# --- the figures -------------------------------------------------------------------------------------


def test_the_paired_difference_is_the_intervals_own() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.random(40) < 0.8, generator.random(40) < 0.3
    found = compare(record(singles(*first.tolist())), record(singles(*second.tolist()), cell_id="b2"))
    assert found.paired is not None
    difference, low, high = paired(first, second)
    assert found.paired.difference == pytest.approx(difference)
    assert found.paired.interval == pytest.approx((low, high))
    assert found.paired.p_value == pytest.approx(mcnemar(first, second))
    assert found.paired.different == (not low <= 0 <= high)
    assert [row for row, _ in found.paired.only_a] == np.flatnonzero(first & ~second).tolist()
    assert [row for row, _ in found.paired.only_b] == np.flatnonzero(second & ~first).tolist()


def test_pictures_of_one_batch_are_resampled_together() -> None:
    """Ten readings of four pictures that leak together tell less than forty of one."""
    together = [[n < 6] * 4 for n in range(10)]
    none = [[False] * 4] * 10
    grouped = compare(record(together), record(none)).paired
    flat = compare(
        record(singles(*np.array(together).flatten().tolist())), record(singles(*[False] * 40))
    ).paired
    assert grouped is not None
    assert flat is not None
    assert grouped.difference == flat.difference == pytest.approx(0.6)
    assert grouped.interval[1] - grouped.interval[0] > 1.3 * (flat.interval[1] - flat.interval[0])
    assert grouped.only_a[:5] == ((0, 0), (0, 1), (0, 2), (0, 3), (1, 0))


def test_medians_are_of_the_differences_and_a_failed_picture_is_worst() -> None:
    hits = singles(True, True, True)
    first = record(hits, [[30.0], [25.0], [40.0]])
    second = record(hits, [[10.0], [24.0], [39.5]])
    found = compare(first, second).paired
    assert found is not None
    assert found.psnr_db == pytest.approx(1.0)
    assert found.rmse == 0
    failed = compare(first, record(hits, [[None], [None], [39.0]])).paired
    assert failed is not None
    assert failed.psnr_db is None, "more than half of the differences have no number"
    both = compare(record(hits, [[None], [25.0], [40.0]]), record(hits, [[None], [None], [40.0]])).paired
    assert both is not None
    assert both.psnr_db == 0, "two failed pictures are equally bad"


def test_equal_cells_are_never_called_different() -> None:
    for count in (1, 4, 64):
        found = compare(record(singles(*[True] * count)), record(singles(*[True] * count))).paired
        assert found is not None
        assert (found.difference, found.different, found.only_a, found.only_b) == (0, False, (), ())


# --- whether they are paired -------------------------------------------------------------------------


def changed(one: Record, **fields: Any) -> Record:
    content = {name: copy.deepcopy(getattr(one, name)) for name in Record.__dataclass_fields__}
    return Record(**{**content, **fields})


def test_a_draw_a_defense_or_an_attack_leaves_them_paired() -> None:
    base = record(singles(True, False))
    for cell in (
        {"draw": 1}, {"defense": {"name": "prune", "params": {"share": 0.7}}},
        {"attack": {"name": "dlg", "params": {}}}, {"knowledge": "adaptive"},
    ):  # fmt: skip
        assert compare(base, record(singles(True, True), **cell)).paired is not None
    file = {"kind": "file", "sha256": "1" * 64}
    found = compare(
        record(singles(True), weights={**file, "path": "/a"}),
        record(singles(True), weights={**file, "path": "/b"}),
    )
    assert found.paired is not None
    assert found.questions == (), "where a file was found is no part of the question"


def test_what_is_not_paired_says_why() -> None:
    base = record(singles(True, False))
    other_client = changed(base)
    other_client.victims[1]["clients"] = [7]
    other_example = changed(base)
    other_example.victims[0]["examples"] = [9]
    cases = {
        "different data": record(singles(True, False), dataset={**CELL["dataset"], "sha256": "1" * 64}),
        "different weights": record(singles(True, False), seed=1),
        "norms 26 and 27": changed(base, summary={**base.summary, "conditions": {"weights_norm": 27.0}}),
        "2 and 1 readings": record(singles(True)),
        "client 1 and of 7": other_client,
        "example 0 and of 9": other_example,
        "B is n/a: no bias": changed(base, status="n/a", reason="no bias", victims=[], summary={}),
        "B is a training": changed(base, cell={**CELL, "kind": "training"}),
        "example 0 and of 0, 1": record([[True, True], [False, False]]),
    }
    for reason, other in cases.items():
        found = compare(base, other)
        assert found.paired is None
        assert reason in str(found.unpaired)
    assert "different weights" in str(
        compare(base, record(singles(True, False), model={"name": "dlg-lenet", "params": {}})).unpaired
    )


def test_the_seed_is_no_matter_where_weights_come_from_a_file() -> None:
    weights = {"kind": "file", "sha256": "1" * 64, "path": "x"}
    assert compare(
        record(singles(True), weights=weights), record(singles(True), weights=weights, seed=1)
    ).paired


# --- what differs ------------------------------------------------------------------------------------


def test_questions_differ_field_by_field() -> None:
    other = copy.deepcopy(CELL)
    other["attack"] = {"name": "dlg", "params": {"outer": 1}}
    other["model"]["params"]["activation"] = "relu"
    other["federated"] = {"algorithm": "fedavg", "batch": 1, "steps": 5}
    found = {each.field: (each.a, each.b) for each in questions(CELL, other)}
    assert found == {
        "attack": ("cpl(outer=300, restarts=0)", "dlg(outer=1)"),
        "model.activation": ("sigmoid", "relu"),
        "federated.algorithm": ("fedsgd", "fedavg"),
        "federated.steps": ("absent", 5),
    }
    assert list(questions(CELL, copy.deepcopy(CELL))) == []


# --- the command -------------------------------------------------------------------------------------


def test_words(tmp_path: Path) -> None:
    a = record(singles(*[True] * 30))
    b = record(singles(*[False] * 30), cell_id="b2", defense={"name": "prune", "params": {"share": 0.7}})
    b = changed(b, source={"bench": {**b.source["bench"], "version": "2"}})
    text = told(run_of(tmp_path, a, b), "a1", "b2")
    order = [
        text.index(part)
        for part in ("question  defense: none | prune", "source    bench: version 1", "A - B")
    ]
    assert order == sorted(order)
    assert "A         ASR 100.0 % [88.6, 100.0] of 30 pictures" in text
    assert "+100.0 points [" in text and "the same 30 pictures" in text
    assert "only A    reading.picture 0.0, 1.0" in text and "(30)" in text
    assert "only B    no picture" in text
    assert text.rstrip().endswith("different: A leaks more")


def test_a_failed_attack_is_not_a_defense(tmp_path: Path) -> None:
    a, b = record(singles(*[True] * 30)), record(singles(*[False] * 30), cell_id="b2")
    b.summary["lower_bound"] = True
    text = told(run_of(tmp_path, a, b), "a1", "b2")
    assert "B         ASR ≥ 0.0 %" in text
    assert "the attack failed on some of B's pictures: that is not protection" in text


def test_different_victims_show_unpaired_figures_only(tmp_path: Path) -> None:
    a, b = record(singles(*[True] * 30)), record(singles(*[False] * 30), cell_id="b2", seed=1)
    text = told(run_of(tmp_path, a, b), "a1", "b2")
    assert "not paired: they are under different weights; so no difference is claimed" in text
    assert "ASR 100.0 %" in text and "ASR 0.0 %" in text
    assert "A - B" not in text and "leaks more" not in text
    content = json.loads(told(tmp_path, "a1", "b2", "--json"))
    assert content["paired"] is None
    assert content["questions"] == [{"field": "seed", "a": 0, "b": 1}]
    assert (content["a"]["asr"], content["b"]["asr"]) == (1, 0)


def test_trainings_show_their_accuracies(tmp_path: Path) -> None:
    cell = {"kind": "training", "rounds": 20, **{key: CELL[key] for key in ("dataset", "model", "defense")}}
    a = changed(record(singles(True)), cell=cell, summary={"accuracy": 0.9}, victims=[])
    text = told(run_of(tmp_path, a, changed(a, id="b2", summary={"accuracy": 0.8})), "a1", "b2")
    assert "accuracy 90.0 % after 20 rounds" in text and "accuracy 80.0 %" in text
    assert "not paired" in text


def test_records_of_two_runs_by_their_files(tmp_path: Path) -> None:
    one = run_of(tmp_path / "one", record(singles(True, False)))
    two = run_of(tmp_path / "two", record(singles(True, True)))
    files = [str(run / "records" / "a1.json") for run in (one, two)]
    result = CliRunner().invoke(command, files)
    assert result.exit_code == 0, result.exception
    assert "question  the same" in result.output
    assert "not called different" in result.output


def test_mistakes(tmp_path: Path) -> None:
    run = run_of(tmp_path, record(singles(True)))
    broken = changed(record(singles(True)), id="b2", victims=[{"clients": [0]}])
    run_of(run, broken)
    for arguments, message in (
        (["a1", "zz", str(run)], "no record with an id that starts with 'zz'"),
        (["a1", "b2", str(run)], "its fields are not a record's (KeyError"),
        (["a1", str(run / "no.json"), str(run)], "no.json: no such record"),
        (["a1", "b2", str(run / "nowhere")], "nowhere: no folder records/ there"),
    ):
        result = CliRunner().invoke(command, arguments)
        assert isinstance(result.exception, BenchError)
        assert message in str(result.exception)
        assert "\n" not in str(result.exception)


def test_real_cells_that_differ_in_defense_alone_are_paired(tmp_path: Path) -> None:
    data = DataRef(name="digits", sha256=content_hash(Digits().load(())))
    federated = Federated(batch=2, clients=20, per_round=5)
    ids, memory = [], Memory()
    for defense in (Entry(name="none"), Entry(name="prune", params={"share": 0.99})):
        cell = AttackCell(
            dataset=data, model=Entry(name="dlg-lenet"), federated=federated, defense=defense,
            attack=Entry(name="cpl"), point="type-2", readings=6, evaluations=60,
        )  # fmt: skip
        records.write(tmp_path, run_cell(cell, Place(run=tmp_path), memory))
        ids.append(cell.id)
    content = json.loads(told(tmp_path, *ids, "--json"))
    assert [each["field"] for each in content["questions"]] == ["defense"]
    assert content["sources"] == []
    assert content["paired"]["pictures"] == 6
    assert content["paired"]["difference"] == pytest.approx(content["a"]["asr"] - content["b"]["asr"])
    assert (content["unpaired"], content["a"]["asr"]) == (None, 1.0)
