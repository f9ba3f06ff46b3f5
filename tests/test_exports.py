"""A preset's run as a file to commit, and its page: the records as they were, the paper's figure beside each, ids."""

from dataclasses import replace
from pathlib import Path

import pytest
from _make import exports, preset, results
from _make.exports import Export
from _make.markdown import COMMAND
from tests.records import attack_cell, attack_record

from bench.errors import BenchError
from bench.matrix.published import PublishedFigures
from bench.reference import store

PAPER = PublishedFigures(
    where={"dataset": {"name": "digits"}, "attack": {"name": "cpl"}, "knowledge": "plain"},
    figures={"asr": 0.973, "rmse": 0.094, "iterations": 28.3},
    source="Paper, Table I",
)
CELLS = [attack_cell(attack="cpl"), attack_cell(attack="map", knowledge="adaptive")]
RECORDS = tuple(
    attack_record([(bool(hit),) for hit in hits], cell=cell)
    for cell, hits in zip(CELLS, ([1, 0, 0, 0], [1, 1, 1, 0]), strict=True)
)
EXPORT = Export(
    matrix="a-paper/table-1", scale="small", title="Table I", commit="abc1234", published=(PAPER,), records=RECORDS
)


def row_of(page: str, attack: str) -> list[str]:
    """The cells of the table's row of this attack, the first that there is."""
    line = next(line for line in page.splitlines() if f"| {attack} |" in line)
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_an_export_comes_back_whole(tmp_path: Path) -> None:
    path = exports.write(tmp_path, EXPORT)
    assert path.name == "a-paper-table-1.json.xz"
    (back,) = exports.every(tmp_path)
    assert (back.matrix, back.scale, back.title, back.commit) == ("a-paper/table-1", "small", "Table I", "abc1234")
    assert back.published == (PAPER,)
    assert {record.id for record in back.records} == {cell.id for cell in CELLS}
    assert preset.page(back.records, back.published) == preset.page(RECORDS, (PAPER,))
    content = path.read_bytes()
    assert exports.write(tmp_path, back).read_bytes() == content


def test_an_export_of_a_run_that_is_not_whole_says_so(tmp_path: Path) -> None:
    exports.write(tmp_path, replace(EXPORT, unfinished=3))
    assert next(iter(exports.every(tmp_path))).unfinished == 3


@pytest.mark.parametrize("content", [b"", b"no xz", None])
def test_a_damaged_export_is_named_in_one_line(content: bytes | None, tmp_path: Path) -> None:
    path = exports.write(tmp_path, EXPORT)
    if content is None:
        store.pack(path, ['{"matrix": "a-paper/table-1"}'])
    else:
        path.write_bytes(content)
    with pytest.raises(BenchError, match=rf"^{path}: .*get it from the repository again$"):
        exports.read(path)


def test_the_papers_figures_stand_beside_the_attack_that_they_are_of() -> None:
    page = preset.page(RECORDS, (PAPER,))
    head = row_of(page, "attack")
    plain, ours = row_of(page, "cpl"), row_of(page, "map · adaptive")
    asr = head.index("ASR")
    assert head[asr + 1] == head[head.index("RMSE") + 1] == "paper"
    assert plain[asr].startswith("25 %") and plain[asr + 1] == "0.973"
    assert ours[asr].startswith("75 %") and ours[asr + 1] == "–"
    assert plain[-1] == CELLS[0].id[:8] and ours[-1] == CELLS[1].id[:8]
    assert page.endswith("*Paper*: Paper, Table I.\n")


def test_the_worst_case_is_of_all_attacks_together() -> None:
    worst = preset.page(RECORDS, ()).partition("## In the worst case")[2]
    assert "| none | ≥ 75 %" in worst
    assert "In the worst case" not in preset.page(RECORDS[:1], ())


def test_the_page_says_what_was_run() -> None:
    page = results.exported(EXPORT, "")
    assert page.startswith("<!-- Written by docs/generate.py")
    assert "`bench run --matrix a-paper/table-1 --scale small`; commit abc1234" in page
    assert "2 cells" in page
    assert "- What comes out.\n" in results.exported(EXPORT, "- What comes out.\n")


def test_the_headline_is_the_first_sentence_in_bold() -> None:
    assert (
        results.headline("- **No picture\n  comes back**: of none.\n- **Not this**", "Table I")
        == "No picture comes back"
    )
    assert results.headline("- no bold text", "Table I") == "Table I"


def test_the_index_links_the_pages_that_are_there() -> None:
    pages = {"a.md": ("A", "first"), "b.md": ("b", "second")}
    said = results.index("", "", pages, {"a.md"}, {"p.md": ("P", "third")})
    assert "| [A](docs/results/a.md) | first |" in said and "| `b` | second |" in said and COMMAND in said
    assert "| [P](docs/papers/p.md) | third |" in said
    assert COMMAND not in results.index("", "", pages, {"a.md", "b.md"}, {})
