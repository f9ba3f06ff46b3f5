"""`bench compare`: what differs, whether the two are paired, and what the pairs say; nothing else is claimed."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cells import answer, attack
from tests.command import fault, output
from tests.records import CELL, attack_cell, attack_record, training_record, unfinished, with_result

from bench.cell import DataRef, Entry, Federated, FileWeights
from bench.cli.compare import command
from bench.cli.comparison import PairedDifference, compare, differences
from bench.record import store as records
from bench.record.schema import AttackConditions, Record
from bench.scoring.intervals import mcnemar, paired_difference


def record(
    successes: list[list[bool]], psnr: list[list[float | None]] | None = None, cell_id: str = "a1", **cell: Any
) -> Record:
    """A record whose reading r is of client r and examples 10r, 10r + 1, …"""
    return attack_record(successes, psnr, id=cell_id, cell=attack_cell(**cell))


def singles(*leaked: bool) -> list[list[bool]]:
    return [[hit] for hit in leaked]


def run_of(folder: Path, *shown: Record) -> Path:
    for one in shown:
        records.write(folder, one)
    return folder


def pair_of(a: Record, b: Record) -> PairedDifference:
    """The paired difference, which there must be."""
    difference = compare(a, b).paired
    assert difference is not None
    return difference


# --- the figures -------------------------------------------------------------------------------------


def test_the_paired_difference_is_the_intervals_own() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.random(40) < 0.8, generator.random(40) < 0.3
    pair = pair_of(record(singles(*first.tolist())), record(singles(*second.tolist()), cell_id="b2"))
    difference, low, high = paired_difference(first, second)
    assert (pair.difference, *pair.interval) == pytest.approx((difference, low, high))
    assert pair.p_value == pytest.approx(mcnemar(first, second))
    assert pair.different == (not low <= 0 <= high)
    assert [row for row, _ in pair.only_a] == np.flatnonzero(first & ~second).tolist()
    assert [row for row, _ in pair.only_b] == np.flatnonzero(second & ~first).tolist()


def test_examples_of_one_batch_are_resampled_together() -> None:
    """Ten readings of four examples that leak together tell less than forty of one."""
    together = [[n < 6] * 4 for n in range(10)]
    none = [[False] * 4] * 10
    grouped = pair_of(record(together), record(none))
    flat = pair_of(record(singles(*np.array(together).flatten().tolist())), record(singles(*[False] * 40)))
    assert grouped.difference == flat.difference == pytest.approx(0.6)
    assert grouped.interval[1] - grouped.interval[0] > 1.3 * (flat.interval[1] - flat.interval[0])
    assert grouped.only_a[:5] == ((0, 0), (0, 1), (0, 2), (0, 3), (1, 0))


def test_medians_are_of_the_differences_and_a_failed_example_is_worst() -> None:
    hits = singles(True, True, True)
    first = record(hits, [[30.0], [25.0], [40.0]])
    second = record(hits, [[10.0], [24.0], [39.5]])
    pair = pair_of(first, second)
    assert pair.psnr_db == pytest.approx(1.0) and pair.rmse == 0
    failed = pair_of(first, record(hits, [[None], [None], [39.0]]))
    assert failed.psnr_db is None, "more than half of the differences have no number"
    both = pair_of(record(hits, [[None], [25.0], [40.0]]), record(hits, [[None], [None], [40.0]]))
    assert both.psnr_db == 0, "two failed examples are equally bad"


def test_equal_cells_are_never_called_different() -> None:
    for count in (1, 4, 64):
        pair = pair_of(record(singles(*[True] * count)), record(singles(*[True] * count)))
        assert (pair.difference, pair.different, pair.only_a, pair.only_b) == (0, False, (), ())


# --- whether they are paired -------------------------------------------------------------------------


def test_a_draw_a_defense_or_an_attack_leaves_them_paired() -> None:
    base = record(singles(True, False))
    for cell in (
        {"draw": 1},
        {"defense": Entry(name="prune", params={"share": 0.7})},
        {"attack": "dlg"},
        {"knowledge": "adaptive"},
    ):
        assert compare(base, record(singles(True, True), **cell)).paired is not None
    comparison = compare(
        record(singles(True), weights=FileWeights(sha256="1" * 64, path="/a")),
        record(singles(True), weights=FileWeights(sha256="1" * 64, path="/b")),
    )
    assert comparison.paired is not None
    assert comparison.configuration == (), "where a file was found is no part of the configuration"


def test_what_is_not_paired_says_why() -> None:
    base = record(singles(True, False))
    assert base.attack is not None
    first, second = base.attack.readings
    cases = {
        "different data": record(singles(True, False), dataset=DataRef(name="digits", sha256="1" * 64)),
        "different weights": record(singles(True, False), seed=1),
        "norms 26 and 27": with_result(base, conditions=AttackConditions(weights_norm=27.0)),
        "2 and 1 readings": record(singles(True)),
        "client 1 and of 7": with_result(base, readings=(first, replace(second, clients=(7,)))),
        "example 0 and of 9": with_result(base, readings=(replace(first, indices=(9,)), second)),
        "B is n/a: no bias": unfinished(base, "n/a", "no bias"),
        "B is a training": training_record(),
        "example 0 and of 0, 1": record([[True, True], [False, False]]),
    }
    for reason, other in cases.items():
        comparison = compare(base, other)
        assert comparison.paired is None
        assert reason in str(comparison.unpaired)
    assert "different weights" in str(compare(base, record(singles(True, False), model="dlg-lenet")).unpaired)


def test_the_seed_is_no_matter_where_weights_come_from_a_file() -> None:
    weights = FileWeights(sha256="1" * 64, path="x")
    assert pair_of(record(singles(True), weights=weights), record(singles(True), weights=weights, seed=1))


# --- what differs ------------------------------------------------------------------------------------


def test_configurations_differ_field_by_field() -> None:
    mine = CELL.model_dump(mode="json")
    other = copy.deepcopy(mine)
    other["attack"] = {"name": "dlg", "params": {"outer": 1}}
    other["model"]["params"]["activation"] = "relu"
    other["federated"] |= {"algorithm": "fedavg", "steps": 5}
    del other["draw"]
    found = {each.field: (each.a, each.b) for each in differences(mine, other)}
    assert found == {
        "attack": ("cpl(outer=300, restarts=0)", "dlg(outer=1)"),
        "model.activation": ("sigmoid", "relu"),
        "federated.algorithm": ("fedsgd", "fedavg"),
        "federated.steps": (1, 5),
        "draw": (0, "absent"),
    }
    assert list(differences(mine, copy.deepcopy(mine))) == []


# --- the command -------------------------------------------------------------------------------------


def test_words(tmp_path: Path) -> None:
    a = record(singles(*[True] * 30))
    b = record(singles(*[False] * 30), cell_id="b2", defense=Entry(name="prune", params={"share": 0.7}))
    b = replace(b, provenance=replace(b.provenance, bench=replace(b.provenance.bench, version="2")))
    text = output(command, "a1", "b2", run_of(tmp_path, a, b))
    parts = ("configuration  defense: none | prune", "provenance     bench: version 1", "A - B")
    order = [text.index(part) for part in parts]
    assert order == sorted(order)
    assert "A              ASR 100 % [89–100 %] of 30 examples" in text
    assert "+100.0 points [" in text and "the same 30 examples" in text
    assert "only A    reading.example 0.0, 1.0" in text and "(30)" in text
    assert "only B    no example" in text
    assert text.rstrip().endswith("different: A leaks more")


def test_a_failed_attack_is_not_a_defense(tmp_path: Path) -> None:
    a, b = record(singles(*[True] * 30)), record(singles(*[False] * 30), cell_id="b2")
    assert b.attack is not None
    b = with_result(b, summary=replace(b.attack.figures(), lower_bound=True))
    text = output(command, "a1", "b2", run_of(tmp_path, a, b))
    assert "B              ASR ≥ 0 %" in text
    assert "the attack failed on some of B's examples: that is not protection" in text


def test_different_victims_show_unpaired_figures_only(tmp_path: Path) -> None:
    a, b = record(singles(*[True] * 30)), record(singles(*[False] * 30), cell_id="b2", seed=1)
    text = output(command, "a1", "b2", run_of(tmp_path, a, b))
    assert "not paired: they are under different weights; so no difference is claimed" in text
    assert "ASR 100 %" in text and "ASR 0 %" in text
    assert "A - B" not in text and "leaks more" not in text
    content = json.loads(output(command, "a1", "b2", tmp_path, "--json"))
    assert content["paired"] is None
    assert content["configuration"] == [{"field": "seed", "a": 0, "b": 1}]
    assert (content["a"]["asr"], content["b"]["asr"]) == (1, 0)


def test_trainings_show_their_accuracies(tmp_path: Path) -> None:
    run = run_of(tmp_path, training_record(0.9, id="a1"), training_record(0.8, id="b2"))
    text = output(command, "a1", "b2", run)
    assert "accuracy 90.0 % after 20 rounds" in text and "accuracy 80.0 %" in text
    assert "not paired" in text


def test_records_of_two_runs_by_their_files(tmp_path: Path) -> None:
    one = run_of(tmp_path / "one", record(singles(True, False)))
    two = run_of(tmp_path / "two", record(singles(True, True)))
    text = output(command, *(run / "records" / "a1.json" for run in (one, two)))
    assert "configuration  the same" in text and "not called different" in text


def test_mistakes(tmp_path: Path) -> None:
    run = run_of(tmp_path, record(singles(True)))
    (run / "records" / "b2.json").write_text('{"schema": 2, "id": "b2"}')
    for arguments, message in (
        (("a1", "zz", run), "no record with an id that starts with 'zz'"),
        (("a1", "b2", run), "b2.json: not a record: status: field required"),
        (("a1", run / "no.json", run), "no.json: no such record"),
        (("a1", "b2", run / "nowhere"), "nowhere: no folder records/ there"),
    ):
        assert message in fault(command, *arguments)


def test_real_cells_that_differ_in_defense_alone_are_paired(tmp_path: Path) -> None:
    shared: dict[str, Any] = {
        "model": Entry(name="dlg-lenet"),
        "federated": Federated(batch=2, clients=20, per_round=5),
        "attack": Entry(name="cpl"),
        "readings": 6,
        "evaluations": 60,
    }
    defenses = (Entry(name="none"), Entry(name="prune", params={"share": 0.99}))
    ids = [answer(attack(**shared, defense=defense), tmp_path).id for defense in defenses]
    content = json.loads(output(command, *ids, tmp_path, "--json"))
    assert [each["field"] for each in content["configuration"]] == ["defense"]
    assert content["provenance"] == []
    assert content["paired"]["examples"] == 6
    assert content["paired"]["difference"] == pytest.approx(content["a"]["asr"] - content["b"]["asr"])
    assert (content["unpaired"], content["a"]["asr"]) == (None, 1.0)
