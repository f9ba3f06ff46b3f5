"""Promises: an item of a paper is rated no higher than records, code and tests allow; verdicts follow from figures."""

import re
from pathlib import Path
from typing import Any

import pytest
from _make import headlines, items, survey
from _make.items import FULL, MISSING, PARTLY, SMALL, Cells, Evidence, Headline, Item, Setting
from tests.records import TRAINING, attack_cell, entry, training_record

from bench.cell import TrainingCell
from bench.record.schema import Record

DOCS = Path(__file__).parent.parent / "docs"
SIZE = {"clients": 1000, "per_round": 100}
PAPERS = Setting(dataset="digits", where={"rounds": 100, "federated": SIZE}, tested=10000)
WHOLE = TRAINING.federated.model_copy(update=SIZE)


def training(defense: str = "none", accuracy: float = 0.9, **changes: Any) -> Record:
    """A training at the paper's size, with changes."""
    named = {"defense": entry(defense), "rounds": 100, "federated": WHOLE, "test_examples": 10000}
    return training_record(accuracy, cell=TRAINING.model_copy(update={**named, **changes}))


def evidence(*records: Record, tests: Path = DOCS) -> Evidence:
    return Evidence(
        records={"a-paper/full-size": records}, claims={"shown": "falls"}, sections=frozenset({"By hand"}), tests=tests
    )


def rated(of: Evidence, **fields: Any) -> items.Rated:
    item = Item(**{"id": "A1", "paper": "a-paper", "place": "Table I", "text": "it", **fields})
    (found,) = items.Book(settings={"whole": PAPERS}, items=(item,), headlines=()).rated(of)
    return found


TABLE = (Cells(at=("whole",), defense=("none", "prune")),)


@pytest.mark.parametrize(
    ("records", "rating"),
    [
        ([training(), training("prune")], FULL),
        ([training()], PARTLY),
        ([training(), training("prune", rounds=20)], PARTLY),
        ([training(federated=TRAINING.federated), training("prune", rounds=20)], MISSING),
    ],
)
def test_a_record_at_a_smaller_size_is_no_part(records: list[Record], rating: str) -> None:
    assert rated(evidence(*records), cells=TABLE).rating == rating


def test_a_cell_that_crashed_is_no_part() -> None:
    cell = training().cell
    assert isinstance(cell, TrainingCell)
    crashed = training_record(cell=cell, status="crashed", result=None)
    assert rated(evidence(crashed), cells=(Cells(at=("whole",)),)).rating == MISSING


def test_a_subset_of_the_data_is_named() -> None:
    """Unless a record of the whole data set exists, too."""
    part = training(dataset=training().cell.dataset.model_copy(update={"subset": "500 of 1797 pictures"}))
    cells = (Cells(at=("whole",)),)
    assert rated(evidence(part), cells=cells).subsets == (part.cell.dataset.name,)
    assert rated(evidence(part, training()), cells=cells).subsets == ()


def test_what_is_lacking_keeps_an_item_from_full_scale() -> None:
    assert rated(evidence(), code=("defense:prune",)).rating == FULL
    assert rated(evidence(), code=("defense:prune",), lacking=("a theorem",)).rating == PARTLY
    assert rated(evidence(), code=("defense:no-such-defense",)).rating == MISSING
    assert rated(evidence()).rating == MISSING


def test_a_test_must_exist(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_it() -> None: ...\n")
    of = evidence(tests=tmp_path)
    assert rated(of, tests=("test_a.py::test_it",)).rating == FULL
    assert rated(of, tests=("test_a.py::test_i",)).rating == rated(of, tests=("test_b.py::test_it",)).rating == MISSING


@pytest.mark.parametrize("name", ["a-paper/full-size", "By hand", "claim:shown"])
def test_evidence_of_a_smaller_size_makes_an_item_small(name: str) -> None:
    of = evidence(training(rounds=20))
    assert rated(of, cells=TABLE, small=(name,)).rating == SMALL
    assert rated(of, cells=TABLE, small=(f"{name}, another",)).rating == MISSING


def test_readings_and_evaluations_count_from_their_least_value() -> None:
    cell = items.fields_of(attack_cell(attack="cpl", readings=16))
    assert Setting(dataset="digits", where={"attack": "cpl"}, least={"readings": 16}).covers(cell)
    assert not Setting(dataset="digits", where={"attack": "cpl"}, least={"readings": 17}).covers(cell)
    assert not Setting(dataset="digits", where={"rounds": 100}).covers(cell)


def test_parameters_of_a_defense_must_agree() -> None:
    cell = attack_cell(defense=entry("prune").model_copy(update={"params": {"share": 0.7}}))
    defense = items.fields_of(cell)["defense"]
    assert items.agrees({"name": "prune", "share": 0.7}, defense) and items.agrees("prune", defense)
    assert not items.agrees({"name": "prune", "share": 0.8}, defense)
    assert not items.agrees({"name": "prune", "rank": 1}, defense)
    assert items.agrees({"name": "prune", "rank": "absent"}, defense)
    assert not items.agrees({"name": "prune", "share": "absent"}, defense)


def shown(**fields: Any) -> list[str]:
    of = Headline(**{"paper": "a-paper", "claim": "it trains", "metric": "accuracy", "at": "whole", **fields})
    return headlines.row(of, {"whole": PAPERS}, evidence(training(), training("prune", 0.8)), "A paper")


def test_a_main_claim_has_our_figure_its_interval_and_a_verdict() -> None:
    assert shown(value=0.92, defense="none")[2:] == ["92.0 %", "90.0 % [89.4–90.6]", "agrees within 3 points"]
    assert shown(value=0.98, defense="prune", why="B is ours")[4] == "differs by -18 points: B is ours"
    assert shown(value=-2.0, metric="difference", defense="prune", against="none")[3:] == [
        "-10.0 points [-11.0, -9.0]",
        "differs by -8 points",
    ]
    assert shown(value=0.9, defense="sign")[3:] == ["not run", "–"]


def test_the_page_lists_every_item_once_with_what_is_open() -> None:
    item = Item(id="A1", paper="a-paper", place="Table I", text="it", cells=TABLE, lacking=("APTOS",), run="a", hours=2)
    book = items.Book(settings={"whole": PAPERS}, items=(item,), headlines=())
    of = evidence(training())
    page = survey.page(book, book.rated(of), of, {"a-paper": "A paper"}, {"a-paper/full-size": "a-paper.md"})
    assert "| Table I: it | partly (1/3) | [a-paper/full-size](a-paper.md); open: APTOS |" in page
    assert "| all | 1 | 0 | 1 | 0 | 0 |" in page
    assert "| Table I | `a` | 2 |" in survey.not_run(book.rated(of))


def test_committed_items_name_settings_tests_and_presets_that_exist() -> None:
    book = items.read(DOCS / "papers.toml")
    assert len({item.id for item in book.items}) == len(book.items) == 79
    of = evidence(tests=DOCS.parent / "tests")
    headings = set(re.findall(r"^#+ (.+)$", (DOCS / "results" / "by-hand.md").read_text("utf-8"), re.MULTILINE))
    exports = {path.name.removesuffix(".json.xz") for path in (DOCS / "exports").iterdir()}
    for item in book.items:
        assert all(map(of.tested, item.tests)), item.id
        assert not item.run or (DOCS.parent / "bench" / "presets" / f"{item.run.split()[0]}.toml").is_file(), item.id
        for name in item.small:
            assert name.startswith("claim:") or name in headings or name.replace("/", "-") in exports, (item.id, name)
