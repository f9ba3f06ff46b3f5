"""Promise: a text is shown in words, above its reconstruction, and its tokens change nothing on a terminal."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cells import RESOLVER, answer, attack, entry
from tests.command import output

from bench.cell import DataRef, Federated
from bench.cli.show import command
from bench.datasets.opinions import TOKENS
from bench.pictures.words import picture, words
from bench.record import store as records

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
    red = [(np.asarray(page) == (214, 39, 100)).all(-1).any() for page in pages]
    assert red == [False, True]
    three = words(np.repeat(truth, 3, 0), np.repeat(wrong, 3, 0), TEXTS)
    assert picture(three).height > 2 * pages[1].height


@pytest.mark.slow
def test_show_prints_a_text_cell_in_words(tmp_path: Path) -> None:
    cell = attack(
        dataset=DataRef(name="opinions", sha256=RESOLVER.data("opinions", {}).sha256),
        model=entry("models", "tiny-transformer"),
        attack=entry("attacks", "prior-mean"),
        federated=Federated(clients=10, per_round=2, batch=1),
    )
    answer(cell, tmp_path)
    shown = output(command, cell.id[:8], str(tmp_path))
    said = json.loads(output(command, cell.id[:8], str(tmp_path), "--json"))
    arrays = records.read_arrays(tmp_path, next(records.records(tmp_path)).arrays or "")
    for ids, text in zip(arrays["truth"][:, 0].astype(int), said["texts"], strict=True):
        sentence = [TOKENS[each] for each in ids if each]
        assert text["truth"] == sentence
        assert " ".join(sentence) in shown
    assert "[" in shown and (tmp_path / "pictures" / f"{cell.id}.png").is_file()
