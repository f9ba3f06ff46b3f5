"""Promise: a text is shown in words, above its reconstruction, and its tokens change no terminal, page or picture."""

import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from tests.cells import RESOLVER, answer, attack, entry
from tests.command import output
from tests.records import CELL, attack_record, readings_of

from bench.cell import DataRef, Federated
from bench.cli.show import command
from bench.datasets.opinions import TOKENS
from bench.leaderboard.board import board
from bench.leaderboard.forms import figure, page, reconstructions
from bench.pictures import recorded
from bench.pictures.words import picture, words
from bench.record import store as records
from bench.record import vocabularies
from bench.record.schema import Record
from bench.tracking import pictures, victims

SVG = "{http://www.w3.org/2000/svg}"
TEXTS = ("", "good", "food", "\x1b[2J", "\u202eevil", "<b>bold</b>")


def test_right_tokens_are_those_in_their_places() -> None:
    truth = np.array([[[1, 2, 5, 0]], [[3, 4, 0, 0]]], np.float32)
    guess = np.array([[[1, 5, 5, 2]], [[4, 9, 0, 0]]], np.float32)
    first, second = words(truth, guess, TEXTS)
    assert (first.truth, first.guess) == (
        ("good", "food", "<b>bold</b>"),
        ("good", "<b>bold</b>", "<b>bold</b>", "food"),
    )
    assert first.right == (True, False, True, False)
    assert second.truth == ("\ufffd[2J", "\ufffdevil")
    assert (second.guess, second.right) == (("\ufffdevil", "\ufffd"), (False, False))
    assert words(np.full((1, 1, 4), np.nan), truth[:1], TEXTS)[0].truth == ()


def test_a_picture_has_a_colour_for_wrong_tokens() -> None:
    truth, wrong = np.array([[[1, 2, 0]]]), np.array([[[1, 1, 0]]])
    pages = [picture(words(truth, guess, TEXTS)) for guess in (truth, wrong)]
    red = [(np.asarray(page) == (190, 20, 60)).all(-1).any() for page in pages]
    assert red == [False, True]
    three = words(np.repeat(truth, 3, 0), np.repeat(wrong, 3, 0), TEXTS)
    assert picture(three).height > 2 * pages[1].height


def text_record(run: Path, **fields: Any) -> Record:
    """Two readings of a text each, the second with a wrong token; the run folder has the vocabulary."""
    truth, guess = np.array([[[1, 2, 3, 4, 5]], [[1, 2, 0, 0, 0]]]), np.array([[[1, 2, 3, 4, 5]], [[1, 5, 0, 0, 0]]])
    vocabularies.save(run, {CELL.dataset.sha256: TEXTS})
    arrays = {"truth": truth.astype(np.float32), "reconstruction": guess.astype(np.float32)}
    scores = readings_of(((True,), (False,)), ((None,), (None,)), tokens_right=0.5)
    record = attack_record(
        readings=scores, result={"data": "text", "arrays": records.write_arrays(run, arrays), **fields}
    )
    records.write(run, record)
    return record


def test_a_run_keeps_its_vocabulary(tmp_path: Path) -> None:
    vocabularies.save(tmp_path, {"a": TEXTS})
    assert vocabularies.read(tmp_path, "a") == TEXTS
    assert vocabularies.read(tmp_path, "b") == ()
    (tmp_path / "vocabularies" / "a.json").write_text("[1, 2]")
    assert vocabularies.read(tmp_path, "a") == ()


def test_a_record_of_texts_is_drawn_in_words_where_the_run_has_its_vocabulary(tmp_path: Path) -> None:
    record = text_record(tmp_path)
    drawn = recorded.of_record(tmp_path, record)
    assert drawn is not None and drawn == picture(recorded.texts_of(tmp_path, record))
    files, absent = pictures.of_record(tmp_path, record, include_private=False)
    assert absent is None
    with Image.open(io.BytesIO(files[pictures.GRID])) as uploaded:
        assert uploaded.size == drawn.size
    (tmp_path / "vocabularies" / f"{CELL.dataset.sha256}.json").unlink()
    colours = recorded.of_record(tmp_path, record)
    assert colours is not None and colours.size != drawn.size and recorded.texts_of(tmp_path, record) == []


def test_long_texts_are_cut_and_wrapped() -> None:
    long = np.ones((1, 1, 500))
    (text,) = words(long, long, TEXTS)
    assert len(text.truth) == len(text.guess) == 64
    assert picture([text]).width < 1000 and picture([text]).height > 4 * 20


def test_pages_and_figures_show_texts_and_obey_none(tmp_path: Path) -> None:
    rows = board([text_record(tmp_path)])
    runs = {cell: tmp_path for row in rows for cell in row.cells}
    found = reconstructions.thumbnails(rows, runs)
    html = page.render(rows, thumbnails=found, title="Board", context=())
    assert '<p>good food</p><p class="guess">good <mark>[&lt;b&gt;bold&lt;/b&gt;]</mark></p>' in html
    assert '<p class="guess">good food \ufffd[2J \ufffdevil &lt;b&gt;bold&lt;/b&gt;</p>' in html
    assert 'class="texts"' in html and "1 more</summary>" in html
    lines = figure.strips(rows, runs, point="type-2")
    drawn = figure.svg(lines).decode()
    table = html.partition("<tbody>")[2].partition("</tbody>")[0]
    assert "[2J" in table and "evil" in drawn
    assert not any(letter in content for letter in ("\x1b", "\u202e", "<b>bold") for content in (table, drawn))
    spans = [[span.text for span in text] for text in ElementTree.fromstring(drawn).iter(f"{SVG}text") if len(text)]
    assert spans[1::2] == [["good", "food"], ["good", "[<b>bold</b>]"]]
    fills = {span.text: span.get("fill") for span in ElementTree.fromstring(drawn).iter(f"{SVG}tspan")}
    assert fills["[<b>bold</b>]"] != fills["good"]
    with Image.open(io.BytesIO(figure.png(lines))) as image:
        assert image.height > 4 * 20
    assert reconstructions.thumbnails(board([text_record(tmp_path, private=True)]), runs) == {}


@pytest.mark.slow
def test_a_page_has_fewer_texts_where_rows_are_many(tmp_path: Path) -> None:
    (row,) = board([text_record(tmp_path)])
    shown = reconstructions.thumbnails([row] * 5000, dict.fromkeys(row.cells, tmp_path))
    assert [len(texts) for texts in shown.values() if isinstance(texts, list)] == [1]


def test_mlflow_lists_victims_in_words(tmp_path: Path) -> None:
    record = text_record(tmp_path)
    (chosen,) = victims.chosen(board([record]), [[record]]).values()
    attached = victims.attached(tmp_path, [record], chosen, "")
    assert attached.table is not None
    assert attached.table["output"] == [
        "good food \ufffd[2J \ufffdevil <b>bold</b> → good food \ufffd[2J \ufffdevil <b>bold</b>",
        "good food → good [<b>bold</b>]",
    ]
    assert attached.table["tokens_right"] == ["0.50", "0.50"]
    ((_, _, image),) = attached.images
    assert image.size == picture(recorded.texts_of(tmp_path, record)).size


@pytest.mark.slow
def test_show_prints_a_text_cell_in_words(tmp_path: Path) -> None:
    cell = attack(
        dataset=DataRef(name="opinions", sha256=RESOLVER.data("opinions", {}).sha256),
        model=entry("models", "tiny-transformer"),
        attack=entry("attacks", "prior-mean"),
        federated=Federated(clients=10, per_round=2, batch=1),
    )
    answer(cell, tmp_path)
    vocabularies.save(tmp_path, RESOLVER.vocabularies)
    shown = output(command, cell.id[:8], str(tmp_path))
    said = json.loads(output(command, cell.id[:8], str(tmp_path), "--json"))
    arrays = records.read_arrays(tmp_path, next(records.records(tmp_path)).arrays or "")
    for ids, text in zip(arrays["truth"][:, 0].astype(int), said["texts"], strict=True):
        sentence = [TOKENS[each] for each in ids if each]
        assert text["truth"] == sentence
        assert " ".join(sentence) in shown
    assert "[" in shown and (tmp_path / "pictures" / f"{cell.id}.png").is_file()
