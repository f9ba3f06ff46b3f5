"""What a stranger may send: for each kind of file a valid one, and a reader that must say yes or a clear no.

Used twice: `tests/test_fuzz.py` mutates the valid files with hypothesis, and `tests/fuzz_guided.py` runs the same
readers under a coverage-guided fuzzer.  A reader passes if it returns, or raises `BenchError` with a message that can
be shown; anything else is a finding, as is a file that appears outside the folder that it was given.
"""

import io
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.cells import RESOLVER, answer, attack, training

from bench.answer.provenance import provenance
from bench.cell import CheckpointWeights
from bench.datasets.idx import read_idx
from bench.datasets.loading import load
from bench.errors import BenchError, RecordError
from bench.gate import baseline
from bench.gate.verdict import verdict
from bench.leaderboard.board import board
from bench.matrix.expand import PlannedCell
from bench.matrix.published import saved
from bench.matrix.read import read as read_matrix
from bench.own import files as reading_files
from bench.record import request
from bench.record import store as records
from bench.record.checkpoints import read_about, read_weights, write_weights
from bench.record.compact import Interner
from bench.registry import entries as registry
from bench.sanitize import sanitized_lines
from bench.submission.check import check
from bench.submission.export import export, read_suite
from bench.sweep import bundle, merge, progress
from bench.sweep.plan import schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of file: a valid one, the name that it has in its folder, and who reads it there."""

    valid: Callable[[], bytes]
    name: str
    read: Callable[[Path], object]


def attempt(kind: Kind, content: bytes, folder: Path) -> str:
    """Have the file read; what was said against it, or "".  Raises whatever is a finding."""
    inside = folder / "inside"
    path = inside / kind.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    try:
        kind.read(path)
        said = ""
    except BenchError as error:
        said = sanitized_lines(error)
        if not said:
            raise ValueError("refused without a word") from error
    others = [one.name for one in folder.iterdir() if one.name != "inside"]
    assert not others, f"files outside: {others}"
    return said


@cache
def _run() -> Path:
    """A small finished run: a training, an attack with arrays."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-")) / "run"
    for cell in (training(), attack(readings=1)):
        answer(cell, folder)
    return folder


@cache
def _record(kind: str = "attack") -> bytes:
    found = next(one for one in records.records(_run()) if one.cell.kind == kind)
    return records.record_path(_run(), found.id).read_bytes()


def _id(kind: str = "attack") -> str:
    return str(json.loads(_record(kind))["id"])


def _npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def _pack() -> bytes:
    draw = np.random.default_rng(0)
    return _npz(
        x_train=draw.integers(0, 256, (20, 4, 4, 1), dtype=np.uint8),
        y_train=np.arange(20) % 2,
        x_test=draw.integers(0, 256, (8, 4, 4, 1), dtype=np.uint8),
        y_test=np.arange(8) % 2,
    )


def _weights(suffix: str) -> bytes:
    import torch

    tensors = {"0.weight": torch.ones(2, 3), "0.bias": torch.zeros(2)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"w{suffix}"
        if suffix == ".safetensors":
            write_weights(path, tensors, {"round": 1, "accuracy": 0.5})
        elif suffix == ".pt":
            torch.save(tensors, path)
        else:
            arrays: dict[str, Any] = {name: value.numpy() for name, value in tensors.items()}
            np.savez(path, **arrays)
        return path.read_bytes()


@cache
def _submission() -> bytes:
    path = _run().parent / "mine.zip"
    export(_run(), path, name="J. Doe", url="https://example.org")
    return path.read_bytes()


def _baseline() -> bytes:
    path = _run().parent / "baseline.json"
    baseline.write(path, baseline.of_run(records.records(_run()), None, {}))
    return path.read_bytes()


def _reading() -> bytes:
    draw = np.random.default_rng(0)
    path = _run().parent / "reading.npz"
    reading_files.save(
        path,
        values={"0.weight": draw.normal(size=(1, 2, 3))},
        weights={"0.weight": draw.normal(size=(2, 3))},
        meta=reading_files.checked_meta(shape=(3,), classes=2, batch=1, steps=1, rate=0.1, unit=1.0),
    )
    return path.read_bytes()


def _progress() -> bytes:
    with progress.Reporter(_run(), title="a run", cells=2, settled=1, left=lambda: 5.0):
        pass
    return (_run() / "progress.json").read_bytes()


def _idx() -> bytes:
    return b"\0\0\x08\3" + b"".join(n.to_bytes(4) for n in (2, 3, 3)) + bytes(range(18))


def _show(path: Path) -> object:
    """A record as every view reads it."""
    from bench.cli import cell_text, lookup

    record = lookup.by_reference(str(path), None)
    cell_text.lines(record)
    board([Interner()(record)])
    return record.cell


def _merge(path: Path) -> object:
    """As a record of a run of theirs, under the name that it had, with all that it names beside it."""
    source = path.parents[1]
    for name in ("arrays", "weights"):
        if not (source / name).exists():
            (source / name).symlink_to(_run() / name)
    of = "training" if "training" in path.name else "attack"
    path.rename(path.with_name(f"{_id(of)}.json"))
    into = source.parent / "into"
    shutil.rmtree(into, ignore_errors=True)
    found = merge.merge(into, [source])
    if found.refused:
        raise RecordError(found.refused[0])
    return records.read(records.record_path(into, _id(of))).cell


def _gate(path: Path) -> object:
    found = baseline.read(path)
    return verdict(found.records, found.records, found.margins)


def _suites(path: Path) -> object:
    return read_suite(path)


def _admit(path: Path) -> object:
    return bundle.admit(path.parent, {f"records/{_id()}.json": path.read_bytes()}, _id())


def _plan(path: Path) -> object:
    """As what a run folder holds already when its matrix is planned again."""
    run = path.parents[1]
    if not (run / "weights").exists():
        (run / "weights").symlink_to(_run() / "weights")
    path.rename(path.with_name(f"{_id('training')}.json"))
    on_it = attack(CheckpointWeights(training=_id("training"), round=2))
    planned = [PlannedCell(cell, None) for cell in (training(), on_it)]
    return schedule(planned, run, RESOLVER), provenance(on_it, run)


MATRIX = b"""title = "a matrix"
readings = 4
evaluations = 20
[axes]
dataset = ["digits", { name = "npz", path = "mine.npz" }]
model = [{ name = "mlp", hidden = [10] }]
attack = ["cpl", "gradinv"]
knowledge = ["plain", "adaptive"]
defense = ["none", { name = "prune", sweep = { share = [0.5, 0.9] } }]
point = ["type-2", "type-1"]
weights = ["init", { train = { rounds = 4 }, round = 2 }]
federated = [{ clients = 20, per_round = 2, batch = 2 }]
[[attack]]
[[attack]]
dataset = ["digits"]
point = ["type-0"]
evaluations = 30
[[train]]
dataset = ["digits"]
model = ["mlp"]
defense = ["none"]
rounds = [3]
[[published]]
source = "a paper"
dataset = "digits"
columns = ["defense", "accuracy"]
rows = [["none", 0.9], [{ name = "prune", share = 0.5 }, 0.8]]
"""

KINDS = {
    "matrix": Kind(valid=lambda: MATRIX, name="m.toml", read=lambda path: read_matrix(str(path))),
    "record": Kind(valid=_record, name="records/r.json", read=_show),
    "training": Kind(valid=lambda: _record("training"), name="records/r.json", read=_show),
    "merged": Kind(valid=_record, name="from/records/attack.json", read=_merge),
    "merged-training": Kind(valid=lambda: _record("training"), name="from/records/training.json", read=_merge),
    "planned": Kind(valid=lambda: _record("training"), name="records/r.json", read=_plan),
    "returned": Kind(valid=_record, name="returned", read=_admit),
    "arrays": Kind(
        valid=lambda: next((_run() / "arrays").iterdir()).read_bytes(),
        name=f"arrays/{'0' * 64}.npz",
        read=lambda path: records.read_arrays(path.parents[1], "0" * 64),
    ),
    "pack": Kind(
        valid=_pack,
        name="mine.npz",
        read=lambda path: load(registry.instance("datasets", "npz", {"path": str(path)}), "npz"),
    ),
    "idx": Kind(valid=_idx, name="train", read=lambda path: read_idx(path, item=(3, 3), whole=2)),
    "reading": Kind(valid=_reading, name="reading.npz", read=reading_files.load),
    "submission": Kind(valid=_submission, name="theirs.zip", read=check),
    "baseline": Kind(valid=_baseline, name="baseline.json", read=_gate),
    "safetensors": Kind(
        valid=lambda: _weights(".safetensors"),
        name="w.safetensors",
        read=lambda path: (read_about(path), read_weights(path)),
    ),
    "weights-npz": Kind(valid=lambda: _weights(".npz"), name="w.npz", read=read_weights),
    "weights-pt": Kind(valid=lambda: _weights(".pt"), name="w.pt", read=read_weights),
    "progress": Kind(valid=_progress, name="progress.json", read=lambda path: progress.read(path.parent)),
    "published": Kind(
        valid=lambda: b'[{"where": {"dataset": "digits"}, "figures": {"accuracy": 0.9}, "source": "x"}]',
        name="published.json",
        read=lambda path: saved(path.parent),
    ),
    "request": Kind(
        valid=lambda: b'{"matrix": "m", "scale": null, "defenses": ["a"], "plugins": []}',
        name="request.json",
        read=lambda path: request.read(path.parent),
    ),
    "suite": Kind(
        valid=lambda: b'{"suite": "smoke", "protocol": 1, "bench": "0", "ranked": true, "why_not": []}',
        name="suite-smoke.json",
        read=_suites,
    ),
}

NASTY: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "../../etc/passwd",
    "/etc/passwd",
    "\0",
    "\x1b[2J",
    "\u202etxt",
    "<script>alert(1)</script>",
    "{{7*7}}",
    "$(touch pwned)",
    "a" * 10**5,
    "\ud800",
    [],
    {},
    [[[[]]]],
    {"a": {"a": {}}},
    [None] * 1000,
    "=cmd|' /C calc'!A0",
    "nan",
    "1e999",
    "0" * 64,
)
TOKENS = (
    b"\0",
    b"\xff" * 8,
    b"PK\x03\x04",
    b"..",
    b"/",
    b"\x1b[2J",
    b"<script>",
    b"[" * 3000,
    b'"',
    b"{",
    b"}",
    b"9" * 400,
    b"\x93NUMPY",
    b"= [",
    b"\n",
    b"nan",
    b"1e400",
    b"\xe2\x80\xae",
    b"a" * 10**5,
    b"__import__('os')",
    b"-",
)


def mutated(content: bytes, draw: random.Random) -> bytes:
    """The file with a few things about it changed: in its structure where it is JSON, else in its bytes."""
    if draw.random() < 0.6:
        try:
            plain = json.loads(content)
        except ValueError:
            pass
        else:
            for _ in range(draw.randint(1, 3)):
                plain = _changed(plain, draw)
            return json.dumps(plain).encode("utf-8", "surrogatepass")
    found = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(found) + 1)
        match draw.randrange(6):
            case 0 if found:
                found[at % len(found)] ^= 1 << draw.randrange(8)
            case 1:
                found[at:at] = draw.choice(TOKENS)
            case 2:
                del found[at : at + draw.choice((1, 4, 100, 10**4))]
            case 3:
                found[at : at + 4] = draw.choice((0, 1, 2**31 - 1, 2**32 - 1)).to_bytes(4, "little")
            case 4:
                other = draw.randrange(len(found) + 1)
                found[at:at] = found[other : other + draw.choice((1, 16, 500))]
            case _:
                found = found[:at]
    return bytes(found)


def _changed(node: Any, draw: random.Random) -> Any:
    """The tree with one node replaced, dropped, renamed or doubled."""
    if isinstance(node, dict) and node and draw.random() < 0.85:
        key = draw.choice(sorted(node))
        match draw.randrange(8):
            case 0:
                return {name: value for name, value in node.items() if name != key}
            case 1:
                return {**node, draw.choice(("x", "../x", "\x1b[2J", "a" * 10**5, "")): node[key]}
            case _:
                return {**node, key: _changed(node[key], draw)}
    if isinstance(node, list) and node and draw.random() < 0.85:
        at = draw.randrange(len(node))
        if draw.random() < 0.2:
            return [*node[:at], *node[at + 1 :]]
        return [*node[:at], _changed(node[at], draw), *node[at + 1 :]]
    return draw.choice(NASTY)
