"""Records and pages from elsewhere: edited fields break no board, and names obey no terminal."""

import base64
import gzip
from dataclasses import replace

import pytest
from tests.records import attack_cell, attack_record, readings_of

from bench.cell import Entry, Grants
from bench.cli.common import print_table
from bench.leaderboard.board import board
from bench.leaderboard.forms import offline
from bench.record.names import entry_text


def test_names_of_records_from_elsewhere_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    name = entry_text(Entry(name="a\x1b[2J\u202e", params={"b": "\x1b]0;evil\x07"}))
    assert name.isprintable() and name.startswith("a\ufffd[2J\ufffd(b=")
    print_table(("defense", ""), [("\x1b[31mred\u202e\nsecond line", "")])
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\u202e" not in out and "second line" in out


@pytest.mark.parametrize("gallery", [0, 7, 10**6])
def test_an_edited_number_of_candidates_breaks_no_board(gallery: int) -> None:
    """The edited record holds results of another grant: names of a gallery without a gallery, and the other way."""
    cell = attack_cell(attack="gallery", grants=Grants(gallery=50))
    true = attack_record(cell=cell, readings=readings_of([[False], [False]], named=True, place=1))
    edited = replace(true, cell=true.cell.model_copy(update={"grants": Grants(gallery=gallery)}))
    other = attack_record()
    for records in ([edited], [edited, true], [true, edited], [other, edited], [other, true, edited]):
        assert [row.defense for row in board(records)] == ["none"]
    (row,) = board([other, edited])
    (at,) = row.points.values()
    assert at.asr == 0.5 or not gallery  # without the grant, the names count as two more attacked examples


def test_packed_scripts_have_the_same_bytes_under_every_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 3.13 on, gzip's header names another operating system (RFC 1952, byte 9)."""
    whole = offline.packed("let x = 1;")
    compress = gzip.compress

    def later(data: bytes, **options: int) -> bytes:
        found = bytearray(compress(data, **options))
        found[9] = 255
        return bytes(found)

    monkeypatch.setattr(gzip, "compress", later)
    assert offline.packed("let x = 1;") == whole
    assert gzip.decompress(base64.b64decode(whole)) == b"let x = 1;"
