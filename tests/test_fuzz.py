"""Files from strangers, mutated: every reader says yes or a clear no, and writes nowhere else."""

import io
import json
import random
import sys
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from tests import fuzzing

from bench.cli.main import main
from bench.errors import BenchError
from bench.own import files as reading_files
from bench.record.npz import read_npz

EXECUTIONS, MORE = 50, 1000


@pytest.mark.parametrize("name", fuzzing.KINDS)
def test_the_valid_file_is_read(name: str, tmp_path: Path) -> None:
    kind = fuzzing.KINDS[name]
    assert fuzzing.attempt(kind, kind.valid(), tmp_path) == ""


@pytest.mark.parametrize("name", fuzzing.KINDS)
@seed(1)
@given(draw=st.integers(0, 2**32))
@settings(
    max_examples=EXECUTIONS,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_mutated_file_is_read_or_refused_in_words(name: str, tmp_path: Path, draw: int) -> None:
    kind = fuzzing.KINDS[name]
    said = fuzzing.attempt(kind, fuzzing.mutated(kind.valid(), random.Random(draw)), tmp_path)
    assert all(line.isprintable() for line in said.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzzing.KINDS)
def test_more_mutated_files_are_read_or_refused_in_words(name: str, tmp_path: Path) -> None:
    kind = fuzzing.KINDS[name]
    for number in range(MORE):
        said = fuzzing.attempt(kind, fuzzing.mutated(kind.valid(), random.Random(number)), tmp_path)
        assert all(line.isprintable() for line in said.splitlines()), number


def test_the_fuzzer_would_find_a_reader_that_falls(tmp_path: Path) -> None:
    careless = fuzzing.Kind(valid=fuzzing._record, name="r.json", read=_careless)
    falls = 0
    for number in range(100):
        try:
            fuzzing.attempt(careless, fuzzing.mutated(careless.valid(), random.Random(number)), tmp_path)
        except (ValueError, TypeError, KeyError):
            falls += 1
    assert falls > 10


def _careless(path: Path) -> object:
    return json.loads(path.read_text())["cell"]["defense"]["name"]


def bomb(path: Path, size: int) -> None:
    """A pack of zeros that unpacks to `size` bytes, packed by a search for runs alone."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (size,)})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x_train.npy", "w") as file:
        file._compressor = zlib.compressobj(6, zlib.DEFLATED, -15, strategy=zlib.Z_RLE)  # type: ignore[attr-defined]
        file.write(header.getvalue())
        for _ in range(size >> 24):
            file.write(bytes(1 << 24))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """1.25 GiB of zeros in little more than a megabyte."""
    path = tmp_path_factory.mktemp("bomb") / "bomb.npz"
    bomb(path, 5 << 28)
    return path.read_bytes()


@pytest.mark.parametrize("kind", ["arrays", "submission"])
def test_a_bomb_is_refused_before_it_is_unpacked(kind: str, packed: bytes, tmp_path: Path) -> None:
    assert len(packed) < 2 << 20
    tracemalloc.start()
    said = fuzzing.attempt(fuzzing.KINDS[kind], packed, tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert said or kind == "submission"  # whose check returns what it found
    assert peak < 64 << 20


def test_packs_of_ones_own_have_a_limit_too(packed: bytes) -> None:
    with pytest.raises(BenchError, match="declares 1342177408 bytes, more than the 1000000000"):
        read_npz(Path("mine.npz"), limit=10**9, content=packed)


def test_reading_files_have_a_limit_too(packed: bytes, tmp_path: Path) -> None:
    (tmp_path / "reading.npz").write_bytes(packed)
    with pytest.raises(BenchError, match="declares 1342177408 bytes, more than the 1000000000"):
        reading_files.load_arrays(tmp_path / "reading.npz", limit=10**9)


def test_a_bomb_that_lies_about_its_size_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "lies.npz"
    bomb(path, 1 << 28)
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02")
    content[at + 24 : at + 28] = (1000).to_bytes(4, "little")  # its size, in the directory
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(BenchError):
        read_npz(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20


NAMES = [
    "../../../tmp/pwned",
    "/tmp/pwned",
    "a" * 10**5,
    "\x1b[2J\x1b]0;x\x07",
    "<img src=x onerror=alert(1)>",
    "\u202e",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", ["describe", "check", "show", "status", "data fetch", "leaderboard show", "gate"])
def test_any_name_on_the_command_line_is_refused_in_words(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*command.split(), name] + (["--baseline", name] if command == "gate" else [])
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code not in (0, None)
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert len(said.err) < 10**4 + (10**5 if "Usage:" in said.err else 0)
    assert not list(tmp_path.iterdir())
    if "Usage:" not in said.err:  # click quotes what was typed here, by who reads it
        assert all(line.isprintable() for line in said.err.splitlines())
