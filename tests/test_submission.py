"""Submissions: what goes in comes out, private examples stay, no lie of form passes, and lies of content are
found by running cells again."""

import hashlib
import importlib
import io
import json
import shutil
import stat
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from scipy.stats import ttest_ind
from tests.command import in_this_process
from tests.records import with_result

from bench import PROTOCOL, api
from bench.answer.context import Memory, RunContext
from bench.answer.run import record_without_result
from bench.answer.run import run as run_cell
from bench.cell import (
    AttackCell,
    CheckpointWeights,
    DataRef,
    Entry,
    Federated,
    FileWeights,
    Grants,
    InitialWeights,
    TrainingCell,
)
from bench.cli import submission as commands
from bench.datasets.base import content_hash
from bench.datasets.digits import Digits
from bench.datasets.loading import load
from bench.datasets.own import NpzPack
from bench.errors import BenchError, RecordError
from bench.kinds.images import IMAGE
from bench.leaderboard.board import board
from bench.record import store as records
from bench.record.checkpoints import file_sha256
from bench.record.schema import Record
from bench.scoring.intervals import wilson
from bench.submission import archive, arrays, draw, figures, truth, verdicts
from bench.submission.check import FailedCheck, check
from bench.submission.export import export
from bench.submission.importing import import_
from bench.submission.manifest import parsed
from bench.submission.verify import verify

Edit = Callable[[dict[str, Any]], None]
SLOW = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", autouse=True)
def _one_process() -> Iterator[None]:
    """Cells run again in this process, by one thread as workers have it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        in_this_process(patch, importlib.import_module("bench.submission.verify"))
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of tiny cells: cpl and the mean image on digits, undefended and under noise that hides all; on
    a weights file, on a checkpoint; on private images; one that is not applicable."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    context, memory = RunContext(run=folder), Memory()
    data = DataRef(name="digits", sha256=content_hash(Digits().load(())))
    common: dict[str, Any] = {
        "dataset": data,
        "model": Entry(name="dlg-lenet"),
        "defense": Entry(name="none"),
        "federated": Federated(batch=1, clients=20, per_round=5),
        "point": "type-2",
        "readings": 6,
        "evaluations": 50,
    }
    cpl, mean = Entry(name="cpl"), Entry(name="prior-mean")
    hiding = {"defense": Entry(name="fed-cdp", params={"sigma": 6.0}), "attack": cpl}
    training = TrainingCell(
        dataset=data,
        model=common["model"],
        defense=common["defense"],
        federated=common["federated"],
        rounds=2,
        test_every=2,
        checkpoints=(2,),
    )
    weights = folder.parent / "theirs" / "w.safetensors"
    weights.parent.mkdir()
    save_file(api.build("dlg-lenet", shape=(1, 8, 8), classes=10, seed=9).state_dict(), weights)
    pack = folder.parent / "private.npz"
    rng = np.random.default_rng(0)
    np.savez(pack, x_train=rng.random((80, 8, 8)), y_train=np.arange(80) % 4)
    own = load(NpzPack(path=str(pack)), "npz")
    mine = {**common, "dataset": DataRef(name="npz", params={"path": str(pack)}, sha256=own.sha256)}
    cells: list[AttackCell | TrainingCell] = [
        *(AttackCell(**common, attack=cpl, seed=seed) for seed in (0, 1)),
        AttackCell(**common, attack=mean),
        AttackCell(**{**common, **hiding}),
        AttackCell(**common, attack=mean, weights=FileWeights(sha256=file_sha256(weights), path=str(weights))),
        training,
        AttackCell(**common, attack=mean, weights=CheckpointWeights(training=training.id, round=2, series=training.id)),
        AttackCell(**{**mine, "federated": Federated(batch=1, clients=10, per_round=5)}, attack=mean),
    ]
    for cell in cells:
        record = run_cell(cell, context, memory)
        assert record.status == "done", record.reason
        records.write(folder, record)
    refused = AttackCell(**common, attack=mean, knowledge="adaptive")
    records.write(folder, record_without_result(refused, context, "n/a", "prior-mean knows plain, not adaptive"))
    weights.rename(weights.with_name("moved.safetensors"))  # the submitter's path is nowhere here
    return folder


@pytest.fixture(scope="module")
def submission(run: Path) -> Path:
    export(run, run.parent / "mine.zip", name="J. Doe", url="https://example.org")
    return run.parent / "mine.zip"


@pytest.fixture(scope="module")
def small(run: Path) -> Path:
    """A submission of one record with its arrays, for what is tried many times."""
    folder = run.parent / "small"
    (folder / "records").mkdir(parents=True)
    record = one_of(run, attack="prior-mean")
    shutil.copy(records.record_path(run, record.id), records.record_path(folder, record.id))
    shutil.copytree(run / "arrays", folder / "arrays")
    export(folder, run.parent / "small.zip")
    return run.parent / "small.zip"


def one_of(run: Path, *, attack: str = "cpl", defense: str = "none", weights: str = "init") -> Record:
    """The first plain attack record that fits, of digits."""
    return next(
        record
        for record in records.records(run)
        if isinstance(cell := record.cell, AttackCell)
        and cell.attack.name == attack
        and cell.defense.name == defense
        and cell.weights.kind == weights
        and cell.dataset.name == "digits"
        and record.status == "done"
    )


def contents(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def forged(file: Path, out: Path, members: Mapping[str, bytes | None], **fields: Any) -> Path:
    """A submission with these entries besides those of `file`, its manifest made to fit by who forged it;
    None takes an entry away."""
    inside: dict[str, Any] = {**contents(file), **members}
    inside = {name: content for name, content in inside.items() if content is not None}
    old = parsed(inside.pop("manifest.json"))
    files = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)} for name, content in inside.items()
    }
    changed = {**old.model_dump(mode="json"), "files": files, **fields}
    inside["manifest.json"] = (json.dumps(changed, indent=1, sort_keys=True) + "\n").encode()
    archive.write(out, {name: partial(bytes, content) for name, content in inside.items()})
    return out


def edited(file: Path, out: Path, edit: Edit, **which: str) -> Path:
    """A submission in which one record was edited in place, and the manifest with it."""
    folder = out.parent / f"{out.stem}-run"
    import_(file, folder)
    record = one_of(folder, **which)
    text = text_of(record, edit)
    return forged(file, out, {f"records/{record.id}.json": text.encode()})


def text_of(record: Record, edit: Edit = lambda content: None) -> str:
    """The record's file, edited."""
    content = json.loads(records.to_json(record))
    edit(content)
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def hidden(record: Record) -> Record:
    """The record with the claim that nothing leaked, in every figure that depends on it."""
    result = record.attack
    assert result is not None
    readings = tuple(
        replace(
            reading,
            leaked=False,
            examples=tuple(
                figures._judged(replace(example, rmse=10 ** (-5 / 20), psnr_db=5.0), IMAGE, False)
                for example in reading.examples
            ),
        )
        for reading in result.readings
    )
    return replace(record, result=figures.consistent(replace(result, readings=readings)))


# --- what goes in comes out ---------------------------------------------------------------------------------


def test_a_run_comes_out_as_it_went_in(run: Path, submission: Path, tmp_path: Path) -> None:
    found = import_(submission, tmp_path / "board")
    there = {path.name: path.read_bytes() for path in (run / "records").glob("*.json")}
    assert {path.name: path.read_bytes() for path in (tmp_path / "board/records").glob("*.json")} == there
    assert len(found.new) == len(there)
    rows = [asdict(row) for row in board(records.records(run))]
    assert [asdict(row) for row in board(records.records(tmp_path / "board"))] == rows
    for record in records.records(tmp_path / "board"):
        if record.arrays is not None and not record.private:
            assert set(records.read_arrays(tmp_path / "board", record.arrays)) >= {"truth", "reconstruction"}
    again = import_(submission, tmp_path / "board")
    assert (again.new, len(again.same), again.aside) == ([], len(there), [])
    assert not (tmp_path / "board/kept").exists()
    assert parsed((tmp_path / f"board/submissions/{found.sha256}.json").read_bytes()).name == "J. Doe"


def test_the_same_folder_gives_the_same_bytes(run: Path, submission: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "copy")
    export(tmp_path / "copy", tmp_path / "again.zip", name="J. Doe", url="https://example.org")
    assert (tmp_path / "again.zip").read_bytes() == submission.read_bytes()


def test_private_examples_stay(run: Path, submission: Path, tmp_path: Path) -> None:
    (private,) = (record for record in records.records(run) if record.private)
    examples = (run / "arrays" / f"{private.arrays}.npz").read_bytes()
    assert examples not in submission.read_bytes()
    assert str(private.arrays) not in " ".join(contents(submission))
    manifest = parsed(contents(submission)["manifest.json"])
    assert manifest.left_out == {private.id: "private"}
    export(run, tmp_path / "open.zip", include_pictures=True)
    assert examples in (tmp_path / "open.zip").read_bytes()
    assert parsed(contents(tmp_path / "open.zip")["manifest.json"]).pictures
    # Nor under another record that names the same arrays and is not marked.
    shutil.copytree(run, tmp_path / "twins")
    twin = one_of(run, attack="prior-mean")
    twin = with_result(twin, arrays=private.arrays)
    records.record_path(tmp_path / "twins", twin.id).write_text(text_of(twin))
    export(tmp_path / "twins", tmp_path / "twins.zip")
    assert examples not in (tmp_path / "twins.zip").read_bytes()


def test_records_alone_and_defenses_of_choice(run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "bare.zip", arrays=False)
    assert not any(name.startswith("arrays/") for name in contents(tmp_path / "bare.zip"))
    found = export(run, tmp_path / "some.zip", defenses=["fed-cdp"])
    assert {record.cell.defense.name for record in found.records} == {"none", "fed-cdp"}
    with pytest.raises(BenchError, match="no record of defense 'x'; the run has fed-cdp, none"):
        export(run, tmp_path / "x.zip", defenses=["x"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bare.zip", "some.zip"]


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: shutil.rmtree(folder / "records"), "no folder records/"),
        (lambda folder: [path.unlink() for path in (folder / "records").iterdir()], "no record in it"),
        (lambda folder: (folder / "suite-smoke.json").write_text("{"), "suite-smoke.json: cannot be read"),
        (lambda folder: (folder.parent / "out.zip").write_bytes(b"thesis"), "is there already"),
        (
            lambda folder: spoil(folder, lambda r: r["provenance"]["bench"].update(protocol=PROTOCOL + 1)),
            f"protocols {PROTOCOL}, {PROTOCOL + 1}",
        ),
        (lambda folder: spoil(folder, lambda r: summary(r)["asr"].update(value=0.5)), "would not pass its check"),
        (lambda folder: next((folder / "records").iterdir()).rename(folder / "records/a.json"), "another id"),
    ],
)
def test_nothing_half_written(run: Path, tmp_path: Path, prepare: Callable[[Path], Any], message: str) -> None:
    shutil.copytree(run, tmp_path / "run")
    prepare(tmp_path / "run")
    with pytest.raises(BenchError, match=message) as caught:
        export(tmp_path / "run", tmp_path / "out.zip")
    assert "\n" not in str(caught.value)
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert left in ({}, {"out.zip": b"thesis"})


def spoil(folder: Path, edit: Edit, attack: str = "cpl") -> None:
    record = one_of(folder, attack=attack)
    records.record_path(folder, record.id).write_text(text_of(record, edit))


def summary(content: dict[str, Any]) -> dict[str, Any]:
    part: dict[str, Any] = content["result"]["summary"]
    return part


def test_a_record_that_is_there_stays(run: Path, submission: Path, tmp_path: Path) -> None:
    board_ = tmp_path / "board"
    import_(submission, board_)
    mine = one_of(board_)
    slower = replace(mine, cost=replace(mine.cost, wall_seconds=99.0))  # the same result, made elsewhere
    records.record_path(board_, mine.id).write_text(text_of(slower))
    assert mine.id in import_(submission, board_).same
    records.record_path(board_, mine.id).write_text(text_of(hidden(mine)))
    before = records.record_path(board_, mine.id).read_bytes()
    for _ in range(2):
        assert import_(submission, board_).aside == [mine.id]
        assert records.record_path(board_, mine.id).read_bytes() == before
        kept = list((board_ / "kept").iterdir())
        assert [path.read_bytes() for path in kept] == [records.record_path(run, mine.id).read_bytes()]


def test_suites_are_ranked_together_or_not_at_all(run: Path, tmp_path: Path) -> None:
    said = {"suite": "smoke", "protocol": 1, "bench": "0.1.0", "ranked": True, "why_not": []}
    for name, ranked in (("a", True), ("b", False)):
        shutil.copytree(run, tmp_path / name)
        one = {**said, "ranked": ranked, "why_not": [] if ranked else ["--scale changes what the suite runs"]}
        (tmp_path / name / "suite-smoke.json").write_text(json.dumps(one))
        export(tmp_path / name, tmp_path / f"{name}.zip", arrays=False)
    import_(tmp_path / "a.zip", tmp_path / "board")
    assert json.loads((tmp_path / "board/suite-smoke.json").read_text()) == said
    found = import_(tmp_path / "b.zip", tmp_path / "board")
    assert found.suites == ["suite smoke, protocol 1: --scale changes what the suite runs"]
    assert not json.loads((tmp_path / "board/suite-smoke.json").read_text())["ranked"]
    evil = forged(tmp_path / "a.zip", tmp_path / "evil.zip", {}, suites=[{**said, "suite": "../../evil"}])
    assert "suites.0.suite" in check(evil).findings[0]


# --- lies in a record, the manifest made to fit --------------------------------------------------------------


def of_example(**fields: Any) -> Edit:
    return lambda content: content["result"]["readings"][0]["examples"][0].update(fields)


def of_result(**fields: Any) -> Edit:
    return lambda content: content["result"].update(fields)


def top(**fields: Any) -> Edit:
    return lambda content: content.update(fields)


EDITS: dict[str, tuple[Edit, str]] = {
    "asr": (lambda r: summary(r)["asr"].update(value=0.125), "summary.asr.value is 0.125, its examples give"),
    "interval": (lambda r: summary(r)["asr"].update(high=0.99), "summary.asr.high is 0.99"),
    "median": (lambda r: summary(r)["medians"].update(psnr_db=1.0), "summary.medians.psnr_db is 1.0"),
    "prior": (lambda r: summary(r)["priors"]["mean"].update(psnr_db_median=40.0), "summary.priors.mean.psnr_db_median"),
    "no prior": (lambda r: summary(r)["priors"].pop("mean"), "summary.priors.mean is None"),
    "distortion": (lambda r: r["result"]["distortion"].update(snr_db_least=3.0), "distortion.snr_db_least is 3.0"),
    "distorted without a defense": (
        lambda r: r["result"]["readings"][0].update(snr_db=20.0),
        "its SNR is 20 dB, and no defense distorts nothing",
    ),
    "no share": (lambda r: summary(r).pop("asr"), "summary.asr: field required"),
    "no summary": (of_result(summary=None), "has no summary"),
    "chance": (lambda r: summary(r).update(identification_chance=0.9), "identification_chance is 0.9, "),
    "success": (of_example(success=True), "success is True, its figures give False"),
    "psnr": (of_example(psnr_db=3.0), "its figures give"),
    "prior of an example": (of_example(prior_db=3.0), "prior_db is 3.0"),
    "truth value": (of_example(success=0), "should be a valid boolean"),
    "text for a number": (of_example(rmse="0.1"), "valid number"),
    "infinite": (of_example(rmse=float("inf")), "not a record"),
    "leaked": (lambda r: r["result"]["readings"][0].update(leaked=True), "leaked is True"),
    "fewer readings": (lambda r: r["result"]["readings"].pop(), "5 readings, its cell has 6"),
    "more examples": (
        lambda r: r["result"]["readings"][0]["examples"].append(r["result"]["readings"][1]["examples"][0]),
        "2 examples",
    ),
    "no readings": (of_result(readings=[]), "0 readings, its cell has 6"),
    "readings no list": (of_result(readings={"a": 1}), "valid"),
    "crashed with results": (top(status="crashed", reason="why"), "has a result or no reason"),
    "absent without reason": (top(status="n/a", result=None), "has a result or no reason"),
    "done without result": (top(result=None), "has no result of its attack cell"),
    "cell under its old id": (lambda r: r["cell"].update(evaluations=9), "not the hash of its cell"),
    "no cell": (lambda r: r["cell"].update(point=3), "cell.attack.point"),
    "cell of no kind": (lambda r: r["cell"].update(kind="x\x1b[31m"), "not a record: cell"),
    "id": (top(id="0" * 64), "not the hash of its cell"),
    "id as path": (top(id="../../etc/passwd"), "'../../etc/passwd' or its arrays is no content hash"),
    "schema": (top(schema=3), "schema 3, this bench reads 2"),
    "field": (top(more=1), "more: unexpected"),
    "arrays as path": (of_result(arrays="../" * 21 + "x"), "no content hash"),
    "protocol": (lambda r: r["provenance"]["bench"].update(protocol=7), f"is not of protocol {PROTOCOL}"),
    "provenance no table": (top(provenance=[]), "not a record: provenance"),
    "letters": (lambda r: r["environment"].update(torch="x" * 10**5), "100000 letters"),
    "controls": (lambda r: r["result"]["notes"].append("\x1b]0;evil\x07"), "unprintable letters"),
    "direction": (lambda r: r["environment"].update(torch="\u202egnp.exe"), "unprintable letters"),
    "surrogate": (lambda r: r["environment"].update(torch="\ud800"), "not a record"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_record_is_found(small: Path, tmp_path: Path, edit: str) -> None:
    change, finding = EDITS[edit]
    found = check(edited(small, tmp_path / "evil.zip", change, attack="prior-mean"))
    assert any(finding in line for line in found.findings), found.findings
    for line in found.findings:
        assert line.isprintable() and len(line) < 400
    with pytest.raises(FailedCheck, match="does not pass its check") as caught:
        import_(tmp_path / "evil.zip", tmp_path / "board")
    assert str(caught.value).isprintable()
    assert not (tmp_path / "board").exists()


TEXTS: dict[str, Callable[[str], str]] = {
    "a key twice": lambda text: text.replace('{\n "cell"', '{\n "status": "done",\n "cell"', 1),
    "other spaces": lambda text: text + "\n",
    "no number": lambda text: text.replace('"nan_share": 0.0', '"nan_share": NaN'),
    "deep": lambda text: "[" * 10**5,
    "no text": lambda text: "\x00",
    "a list": lambda text: "[]",
    "many digits": lambda text: text.replace('"nan_share": 0.0', f'"nan_share": {"9" * 9999}'),
}


@pytest.mark.parametrize("change", TEXTS)
def test_a_record_is_as_bench_writes_it(small: Path, tmp_path: Path, change: str) -> None:
    (name,) = (name for name in contents(small) if name.startswith("records/"))
    text = TEXTS[change](contents(small)[name].decode())
    found = check(forged(small, tmp_path / "evil.zip", {name: text.encode()}))
    assert text != contents(small)[name].decode()
    assert not found.ok and all(line.startswith(("records/", "arrays/")) for line in found.findings)


def test_hashes_and_the_list_must_agree(small: Path, tmp_path: Path) -> None:
    inside = contents(small)
    name = next(name for name in inside if name.startswith("records/"))
    renamed: dict[str, bytes | None] = {name: None, f"records/{HASH}.json": inside[name]}
    moved = forged(small, tmp_path / "moved.zip", renamed)
    assert any("calls itself by another id" in line for line in check(moved).findings)
    listed = parsed(inside["manifest.json"]).model_dump(mode="json")["files"]
    other = {**listed, name: {**listed[name], "sha256": "0" * 64}}
    assert check(forged(small, tmp_path / "a.zip", {}, files=other)).findings == (
        f"{name}: not the content that the manifest has the hash of",
    )
    more = check(forged(small, tmp_path / "b.zip", {}, files={**listed, "../x": listed[name]}))
    assert "../x: in the manifest, not in the file" in more.findings
    del other[name]
    fewer = check(forged(small, tmp_path / "c.zip", {}, files=other))
    assert f"{name}: in the file, not in the manifest" in fewer.findings
    for field, value in (
        ("record_schema", 3),
        ("name", "x\ny"),
        ("url", "javascript:alert()"),
        ("name", "x" * 301),
        ("version", 2),
        ("format", "zip"),
        ("protocol", "1"),
        ("more", 1),
        ("left_out", {"x": "private"}),
    ):
        assert not check(forged(small, tmp_path / f"{field}-{len(str(value))}.zip", {}, **{field: value})).ok


# --- lies in arrays -----------------------------------------------------------------------------------------


def packed(**content: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=True, **content)
    return buffer.getvalue()


def test_arrays_are_what_the_record_says(run: Path, small: Path, tmp_path: Path) -> None:
    record = one_of(run, attack="prior-mean")
    name = f"arrays/{record.arrays}.npz"
    true = records.read_arrays(run, str(record.arrays))
    assert records.arrays_hash(true) == record.arrays

    def found(label: str, members: dict[str, Any], **fields: Any) -> str:
        return " | ".join(check(forged(small, tmp_path / f"{label}.zip", members, **fields)).findings)

    assert "no content" not in found("same", {})
    assert "not there, and not said to be left out" in found("gone", {name: None})
    assert found("said", {name: None}, left_out={record.id: "not asked for"}) == ""
    assert "said to be left out" in found("both", {}, left_out={record.id: "private"})
    assert "no record of the file names it" in found("orphan", {f"arrays/{'a' * 64}.npz": packed(truth=true["truth"])})
    better = {**true, "reconstruction": 1 - true["reconstruction"]}
    assert "not the hash of its content" in found("other", {name: packed(**better)})
    for label, content, finding in (
        ("better", better, "its arrays give"),
        ("shape", {**true, "reconstruction": true["reconstruction"][:-1]}, "have shapes"),
        ("range", {**true, "truth": true["truth"] + 1}, "no truth"),
        ("nan", {**true, "truth": true["truth"] * np.float32(np.nan)}, "no truth"),
        ("blank", {**true, "reconstruction": true["reconstruction"] * np.float32(np.nan)}, "its arrays give"),
        ("dtype", {**true, "truth": true["truth"].astype(np.float64)}, "not float32"),
        ("names", {"truth": true["truth"]}, "not truth and reconstruction"),
        ("trajectory", {**true, "trajectory": true["truth"][None]}, "its trajectory has shape"),
        ("unknown", {**true, "trail": true["truth"][None]}, "not truth and reconstruction"),
    ):
        sha256 = records.arrays_hash(content)
        moved = with_result(record, arrays=sha256)
        members = {
            name: None,
            f"arrays/{sha256}.npz": packed(**content),
            f"records/{record.id}.json": text_of(moved).encode(),
        }
        assert finding in found(label, members), label


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("unpickled",))


def test_no_pickle_and_no_bomb_in_arrays(
    run: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = one_of(run, attack="prior-mean")
    name = f"arrays/{record.arrays}.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**12,)})
    false = io.BytesIO()
    with zipfile.ZipFile(false, "w") as inner:
        inner.writestr("truth.npy", header.getvalue() + b"\0" * 64)
    up = io.BytesIO()
    with zipfile.ZipFile(up, "w") as inner:
        inner.writestr("../truth.npy", b"")
    monkeypatch.setattr(arrays, "UNPACKED", 2**20)
    for label, content, finding in (
        ("pickle", packed(truth=np.array([Evil()], object)), "object"),
        ("bare", b"cprint\n(S'unpickled'\ntR.", "no .npz"),
        ("false", false.getvalue(), "its header says"),
        ("up", up.getvalue(), "is no array's name"),
        ("bomb", packed(truth=np.zeros((2**20,), np.float32)), "declares"),
    ):
        found = check(forged(small, tmp_path / f"{label}.zip", {name: content}))
        assert any(finding in line for line in found.findings), (label, found.findings)
    assert "unpickled" not in capsys.readouterr().out


# --- lies in the zip ----------------------------------------------------------------------------------------


def zipped(path: Path, entries: list[tuple[zipfile.ZipInfo, bytes]]) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns of names that are in it twice
        with zipfile.ZipFile(path, "w") as out:
            for info, content in entries:
                out.writestr(info, content)
    return path


def entry(name: str, **fields: Any) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("x", (1980, 1, 1, 0, 0, 0))
    info.filename, info.create_system, info.external_attr = name, 3, (stat.S_IFREG | 0o644) << 16
    for key, value in fields.items():
        setattr(info, key, value)
    return info


HASH = "a" * 64
BAD_ENTRIES: dict[str, list[zipfile.ZipInfo]] = {
    "up": [entry("../evil.json")],
    "up inside": [entry(f"records/../../{HASH}.json")],
    "absolute": [entry("/etc/passwd")],
    "drive": [entry("C:\\evil.json")],
    "backslash": [entry(f"records\\{HASH}.json")],
    "nul": [entry(f"records/{HASH}.json\0.exe")],
    "newline": [entry(f"records/{HASH}.json\n")],
    "upper case": [entry(f"records/{HASH.upper()}.json")],
    "short": [entry("records/abc.json")],
    "folder": [entry("records/")],
    "deeper": [entry(f"records/x/{HASH}.json")],
    "long": [entry("x" * 60_000)],
    "terminal": [entry("\x1b]0;evil\x07.json")],
    "twice": [entry(f"records/{HASH}.json"), entry(f"records/{HASH}.json")],
    "link": [entry(f"records/{HASH}.json", external_attr=(stat.S_IFLNK | 0o777) << 16)],
    "device": [entry(f"records/{HASH}.json", external_attr=(stat.S_IFCHR | 0o644) << 16)],
    "dos folder": [entry(f"records/{HASH}.json", external_attr=0x10)],
    "packed otherwise": [entry(f"records/{HASH}.json", compress_type=zipfile.ZIP_BZIP2)],
    "extra": [entry(f"records/{HASH}.json", extra=b"\xfe\xca\x04\x00evil")],
    "comment": [entry(f"records/{HASH}.json", comment=b"evil")],
}


@pytest.mark.parametrize("which", BAD_ENTRIES)
def test_bad_entries_are_refused(tmp_path: Path, small: Path, which: str) -> None:
    inside = contents(small)
    good = [(entry(name), content) for name, content in inside.items()]
    assert check(zipped(tmp_path / "good.zip", good)).ok
    found = check(zipped(tmp_path / "evil.zip", [*good, *((info, b"{}") for info in BAD_ENTRIES[which])]))
    assert len(found.findings) == 1
    assert found.findings[0].isprintable() and len(found.findings[0]) < 300


def test_the_file_is_the_zip_and_nothing_else(small: Path, tmp_path: Path) -> None:
    whole = small.read_bytes()
    start = struct.unpack("<4s4H2LH", whole[-22:])[6]

    def moved(extra: bytes) -> bytes:
        tail = bytearray(whole[-22:])
        struct.pack_into("<L", tail, 16, start + len(extra))
        return whole[:start] + extra + whole[start:-22] + tail

    cases = {
        "before": b"MZ" + whole,
        "after": whole + b"\0",
        "between": moved(b"hidden examples"),
        "comment": whole[:-2] + b"\x04\0evil",
        "empty": b"",
        "text": b"hello" * 99,
        "bare": b"PK\x05\x06" + b"\0" * 18,
        "locator": moved(b"")[:-42] + b"PK\x06\x07" + whole[-38:],
    }
    for name, content in cases.items():
        path = tmp_path / f"{name}.zip"
        path.write_bytes(content)
        found = check(path)
        assert not found.ok and len(found.findings) == 1, name
    with pytest.raises(RecordError, match="no such file"):
        check(tmp_path / "none.zip")
    with pytest.raises(RecordError, match="no such file"):
        check(tmp_path)


def test_sizes_are_bounded_before_anything_is_read(small: Path, tmp_path: Path) -> None:
    inside = contents(small)
    largest = max(len(content) for name, content in inside.items() if name.startswith("records/"))
    for name in ("file", "directory", "entries", "manifest", "record", "records", "array", "unpacked"):
        found = check(small, replace(archive.LIMITS, **{name: 2}))
        assert len(found.findings) == 1 and found.manifest is None, name
    assert check(small, replace(archive.LIMITS, record=largest)).ok
    bomb = zipped(
        tmp_path / "bomb.zip",
        [(entry("manifest.json", compress_type=zipfile.ZIP_DEFLATED), b"\0" * (archive.LIMITS.manifest + 1))],
    )
    assert bomb.stat().st_size < 2**15
    assert "bytes unpacked, at most" in check(bomb).findings[0]


@pytest.mark.parametrize(("count", "directory"), [(65_001, 0), (65_535, 2**24), (3, 2**24), (3, 2000)])
def test_too_many_entries_are_refused_before_the_directory_is_read(
    count: int, directory: int, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory of 16 MiB takes `zipfile` a minute."""
    whole = bytearray(small.read_bytes())
    whole[-22:] = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, directory, 0, 0)
    (tmp_path / "evil.zip").write_bytes(whole)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    (finding,) = check(tmp_path / "evil.zip").findings
    assert f"{count} entries in a directory of {directory} bytes" in finding


def test_a_false_size_unpacks_no_more_than_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zipped(tmp_path / "false.zip", [(entry("manifest.json", compress_type=zipfile.ZIP_DEFLATED), b"\0" * 2**26)])
    content = path.read_bytes().replace(struct.pack("<L", 2**26), struct.pack("<L", 100))
    path.write_bytes(content)
    most = []
    read = zipfile.ZipExtFile.read
    monkeypatch.setattr(
        zipfile.ZipExtFile,
        "read",
        lambda self, n=-1: most.append(n) or read(self, n),  # type: ignore[func-returns-value]
    )
    assert "damaged" in check(path).findings[0]
    assert set(most) == {2**20}  # never "all there is"


def test_overlapping_entries_are_refused(small: Path, tmp_path: Path) -> None:
    whole = bytearray(small.read_bytes())
    start = struct.unpack("<4s4H2LH", whole[-22:])[6]
    second = whole.index(b"PK\x01\x02", start + 4)
    struct.pack_into("<L", whole, second + 42, 0)  # its offset: that of the first
    (tmp_path / "evil.zip").write_bytes(whole)
    assert "overlap" in check(tmp_path / "evil.zip").findings[0]


@SLOW
@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_refused(small: Path, tmp_path: Path, cut: float) -> None:
    whole = small.read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[: int(cut * len(whole))])
    assert len(check(tmp_path / "cut.zip").findings) == 1


@SLOW
@given(content=st.binary(max_size=400), head=st.sampled_from([b"", b"PK\x03\x04", b"PK\x05\x06"]))
def test_any_bytes_are_one_finding(tmp_path: Path, content: bytes, head: bytes) -> None:
    (tmp_path / "any.zip").write_bytes(head + content)
    assert len(check(tmp_path / "any.zip").findings) == 1


@SLOW
@given(where=st.floats(0, 1, exclude_max=True), value=st.integers(1, 255))
def test_a_changed_byte_is_found_or_changes_nothing(small: Path, tmp_path: Path, where: float, value: int) -> None:
    whole = bytearray(small.read_bytes())
    whole[int(where * len(whole))] ^= value
    (tmp_path / "bit.zip").write_bytes(whole)
    found, true = check(tmp_path / "bit.zip"), check(small)
    assert found.findings or (found.records, found.manifest) == (true.records, true.manifest)


# --- figures, draws, intervals --------------------------------------------------------------------------------


@given(
    a=st.tuples(st.integers(0, 40), st.integers(1, 40)).filter(lambda t: t[0] <= t[1]),
    b=st.tuples(st.integers(0, 40), st.integers(1, 40)).filter(lambda t: t[0] <= t[1]),
)
def test_the_difference_of_two_shares(a: tuple[int, int], b: tuple[int, int]) -> None:
    one, other = (
        verdicts.Rate(leaked=hits, examples=count, interval=wilson(hits, count), seeds=(hits / count,))
        for hits, count in (a, b)
    )
    low, high = verdicts.difference(one, other, 0.95)
    assert -1 <= low <= one.value - other.value <= high <= 1
    assert verdicts.difference(other, one, 0.95) == pytest.approx((-high, -low))
    spread = replace(one, seeds=(0.0, one.value, 1.0))
    wide = verdicts.difference(spread, other, 0.95)
    assert wide[0] <= low and high <= wide[1] and wide != (low, high)


def test_student_over_seeds() -> None:
    """As scipy's two-sample t-test of the rates, where it is wider than what examples alone say."""
    one = verdicts.Rate(leaked=0, examples=9, interval=(0.0, 0.0), seeds=(0.1, 0.5, 0.3))
    other = verdicts.Rate(leaked=0, examples=9, interval=(0.0, 0.0), seeds=(0.2, 0.3))
    wanted = ttest_ind(one.seeds, other.seeds).confidence_interval(0.9)
    low, high = verdicts.difference(one, other, 0.9)
    assert high - low == pytest.approx(wanted.high - wanted.low)


def test_newcombe_1998() -> None:
    """His example (a): 56/70 and 48/80, method 10: 0.0524 to 0.3339."""
    one = verdicts.Rate(leaked=56, examples=70, interval=wilson(56, 70), seeds=(0.8,))
    other = verdicts.Rate(leaked=48, examples=80, interval=wilson(48, 80), seeds=(0.6,))
    assert verdicts.difference(one, other, 0.95) == pytest.approx((0.0524, 0.3339), abs=5e-5)


@given(cells=st.integers(1, 40), seed=st.integers(0, 2**48))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_draws_are_fresh_and_repeat(run: Path, cells: int, seed: int) -> None:
    among = draw.groups(list(records.records(run)))
    found = draw.draw(among, cells, seed)
    assert sum(len(drawn.seeds) for drawn in found) == cells
    assert not {fresh for drawn in found for fresh in drawn.seeds} & {0, 1}
    assert all(drawn.record in drawn.group.records for drawn in found)
    assert len({id(drawn.group) for drawn in found}) == len(found)
    assert draw.draw(draw.groups(list(records.records(run))[::-1]), cells, seed) == found
    assert draw.draw([], cells, seed) == []
    weights = [drawn.group.weight for drawn in found]
    assert weights[0] == "reference" and (len(weights) < 2 or weights[1] == "top")


# --- cells run again ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fresh(run: Path, submission: Path) -> tuple[Path, verdicts.Verification]:
    """The honest submission, verified; the folder has the new records, so that they need not run again."""
    out = run.parent / "fresh"
    found = verify(submission, cells=28, seed=1, out=out, weights=run.parent / "theirs")
    return out, found


def test_an_honest_submission_agrees(run: Path, fresh: tuple[Path, verdicts.Verification]) -> None:
    out, found = fresh
    assert found.groups == len(found.verdicts) == 7
    told = {one.outcome for one in found.verdicts if not one.setting.startswith("npz")}
    assert told == {"agrees"}, list(found.lines())
    private = next(one for one in found.verdicts if one.setting.startswith("npz"))
    assert private.outcome == "inconclusive" and "the submitter's own" in private.reason
    assert [one.outcome for one in found.verdicts].count("inconclusive") == 1
    assert (found.outcome, found.exit_code) == ("inconclusive", 3)
    assert found.level == pytest.approx(1 - 0.05 / 7)
    assert any("was run again, and came to the same weights" in note for note in found.notes)
    leaky = next(one for one in found.verdicts if one.attack.startswith("cpl") and one.defense == "none")
    assert leaky.submitted and leaky.here and leaky.submitted.value > 0.8 and leaky.here.examples == 24
    seeds = {record.cell.seed for record in records.records(out)}
    assert set(found.seeds) <= seeds and not set(found.seeds) & {0, 1}
    assert all(line.isprintable() for line in found.lines())


def again(file: Path, run: Path, out: Path) -> verdicts.Verification:
    """The verification repeated, from the records of the first."""
    return verify(file, cells=28, seed=1, out=out, weights=run.parent / "theirs")


def test_a_claim_that_nothing_leaks_differs(
    run: Path, submission: Path, fresh: tuple[Path, verdicts.Verification], tmp_path: Path
) -> None:
    """Both seeds of cpl edited in every figure that depends on it, without arrays that could tell."""
    folder = tmp_path / "lie"
    import_(submission, folder)
    for record in list(records.records(folder)):
        if isinstance(record.cell, AttackCell) and record.cell.attack.name == "cpl":
            records.record_path(folder, record.id).write_text(text_of(hidden(record)))
    export(folder, tmp_path / "lie.zip", arrays=False)
    found = again(tmp_path / "lie.zip", run, fresh[0])
    lie = next(one for one in found.verdicts if one.attack.startswith("cpl") and one.defense == "none")
    assert (lie.outcome, found.outcome, found.exit_code) == ("differs", "differs", 1)
    assert lie.interval is not None and lie.interval[1] < 0
    assert lie.submitted is not None and lie.submitted.value == 0
    assert [one.outcome for one in found.verdicts].count("differs") == 1
    # With its arrays the lie would not have passed the check.
    with pytest.raises(BenchError, match="its arrays give"):
        export(folder, tmp_path / "x.zip")


def test_other_lies_and_obstacles(
    run: Path, submission: Path, fresh: tuple[Path, verdicts.Verification], tmp_path: Path
) -> None:
    def told(label: str, edit: Edit, **which: str) -> verdicts.GroupVerdict:
        file = edited(submission, tmp_path / f"{label}.zip", edit, **which)
        found = again(file, run, fresh[0])
        (one,) = (one for one in found.verdicts if one.cell == one_of(tmp_path / f"{label}-run", **which).id)
        return one

    noisy = {"defense": "fed-cdp"}
    found = told("epsilon", lambda r: r["result"]["privacy"].update(epsilon=1e-3), **noisy)
    assert found.outcome == "differs" and "ε 0.001 was submitted" in found.reason
    code = {"origin": "theirs.py", "plugin": True, "sha256": "0" * 64, "protocol": None, "version": None}
    found = told("code", lambda r: r["provenance"].update(defense=code), **noisy)
    assert found.outcome == "inconclusive"
    assert found.reason == "its defense is other code here than was submitted"
    assert found.here is not None  # the figures are shown all the same


def test_what_is_not_here_is_inconclusive(
    run: Path,
    submission: Path,
    fresh: tuple[Path, verdicts.Verification],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "more"
    import_(submission, folder)
    record = one_of(folder, attack="prior-mean")
    for fields in ({"defense": Entry(name="theirs")}, {"weights": FileWeights(sha256="0" * 64, path="/dev/zero")}):
        cell = record.cell.model_copy(update=fields)
        records.write(folder, replace(record, id=cell.id, cell=cell))
    export(folder, tmp_path / "more.zip")
    found = verify(tmp_path / "more.zip", cells=36, seed=1, out=fresh[0], weights=run.parent / "theirs")
    told = {one.reason for one in found.verdicts if one.outcome == "inconclusive"}
    assert "defense 'theirs' is not here; give its file by --plugin" in told
    assert any("weights file 00000000 is not here" in why for why in told)
    assert len(told) == 3 and found.exit_code == 3
    monkeypatch.setattr("bench.submission.verify.PROTOCOL", PROTOCOL + 1)
    found = verify(submission, cells=2, seed=1)
    assert [one.outcome for one in found.verdicts] == ["inconclusive"]
    assert f"it is of protocol {PROTOCOL}, this bench has {PROTOCOL + 1}" in found.verdicts[0].reason
    with pytest.raises(BenchError, match="at least 1, got 0"):
        verify(submission, cells=0)


@pytest.fixture(scope="module")
def labelled(run: Path) -> Path:
    """A run of one record whose attacker was granted labels."""
    folder = run.parent / "labelled"
    cell = one_of(run, attack="prior-mean").cell
    assert isinstance(cell, AttackCell)
    cell = cell.model_copy(update={"grants": Grants(labels=True), "weights": InitialWeights()})
    records.write(folder, run_cell(cell, RunContext(run=folder), Memory()))
    return folder


def test_examples_of_an_honest_submission_are_those_of_the_data_set(submission: Path, labelled: Path) -> None:
    assert list(truth.findings(submission, check(submission).records, None)) == []
    export(labelled, labelled.parent / "labelled.zip")
    file = labelled.parent / "labelled.zip"
    assert list(truth.findings(file, check(file).records, None)) == []


def mirrored(folder: Path) -> None:
    """Truth and reconstruction turned about: as far apart as they were."""
    (record,) = records.records(folder)
    turned = {name: array[..., ::-1] for name, array in records.read_arrays(folder, str(record.arrays)).items()}
    (folder / "arrays" / f"{record.arrays}.npz").unlink()
    spoil(folder, of_result(arrays=records.write_arrays(folder, turned)), "prior-mean")


@pytest.mark.parametrize(
    ("lie", "finding"),
    [
        (mirrored, "what its arrays call the truth is not in the data set at its indices"),
        (
            lambda folder: spoil(folder, lambda r: r["result"]["readings"][0].update(indices=[3]), "prior-mean"),
            "its examples are not those that its seed draws",
        ),
        (
            lambda folder: spoil(folder, lambda r: summary(r).update(identification_chance=0.5), "prior-mean"),
            "its identification_chance is 0.5, its cell's is 0.1",
        ),
    ],
)
def test_a_lie_that_passes_every_check_is_found_by_the_data(
    labelled: Path, tmp_path: Path, lie: Callable[[Path], None], finding: str
) -> None:
    folder, file = tmp_path / "lie", tmp_path / "lie.zip"
    shutil.copytree(labelled, folder)
    lie(folder)
    export(folder, file)
    assert check(file).ok
    (told,) = truth.findings(file, check(file).records, None)
    assert finding in told
    found = verify(file, cells=1, seed=1)
    assert (found.outcome, found.exit_code) == ("differs", 1) and finding in next(iter(found.lines()))


def test_not_applicable_is_a_claim_too(run: Path, fresh: tuple[Path, verdicts.Verification]) -> None:
    listed = list(records.records(run))
    refused = next(record for record in listed if record.status == "n/a")
    group = draw.RecordGroup("", [refused])
    drawn = draw.Draw(group=group, record=refused, seeds=(7,))
    assert verdicts.verdict(drawn, [refused], "", 0.95).outcome == "agrees"
    assert verdicts.verdict(drawn, [one_of(run)], "", 0.95).outcome == "differs"
    crashed = replace(refused, status="crashed")
    assert verdicts.verdict(drawn, [crashed], "", 0.95).outcome == "inconclusive"
    assert draw.groups([crashed]) == []
    whole = one_of(run)
    assert whole.attack is not None
    tiny = with_result(whole, readings=whole.attack.readings[:1])
    few = draw.Draw(group=draw.RecordGroup("", [tiny]), record=tiny, seeds=(7,))
    assert "too few examples" in verdicts.verdict(few, [tiny], "", 0.99).reason


# --- commands -------------------------------------------------------------------------------------------------


def invoke(command: Any, *arguments: Any) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_commands(run: Path, fresh: tuple[Path, verdicts.Verification], tmp_path: Path) -> None:
    file = tmp_path / "mine.zip"
    result = invoke(commands.export, run, file, "--name", "J. Doe", "--url", "https://example.org")
    assert result.exit_code == 0, result.output
    assert "9 records, 5 files of arrays; 1 without (private)" in result.output
    assert "from J. Doe · https://example.org" in result.output
    assert invoke(commands.check, file).exit_code == 0
    assert json.loads(invoke(commands.check, file, "--json").stdout)["ok"]
    result = invoke(commands.import_command, file, tmp_path / "board")
    assert (result.exit_code, "9 records new" in result.output) == (0, True)
    arguments = ("--cells", 28, "--seed", 1, "--out", fresh[0], "--weights", run.parent / "theirs")
    result = invoke(commands.verify, file, *arguments, "--device", "cpu", "--jobs", 1)
    assert result.exit_code == 3, result.output
    assert "it is inconclusive: 7 of 7 groups drawn" in result.output
    assert "--seed 1 draws the same again" in result.output


def test_commands_say_no(small: Path, tmp_path: Path) -> None:
    evil = edited(small, tmp_path / "evil.zip", EDITS["asr"][0], attack="prior-mean")
    for command, more in (
        (commands.check, ()),
        (commands.import_command, (tmp_path / "board",)),
        (commands.verify, ()),
    ):
        result = invoke(command, evil, *more)
        assert (result.exit_code, "finding  records/" in result.output) == (1, True), result.output
        assert not json.loads(invoke(command, evil, *more, "--json").stdout)["ok"]
    assert not (tmp_path / "board").exists()
    result = invoke(commands.export, tmp_path / "nowhere", tmp_path / "x.zip")
    assert isinstance(result.exception, BenchError) and "\n" not in str(result.exception)
    assert isinstance(invoke(commands.check, tmp_path / "nowhere").exception, RecordError)
