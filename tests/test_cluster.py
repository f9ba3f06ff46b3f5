"""Against a real Dask cluster on this machine: workers killed, the scheduler restarted, a disk full.  Every cell has
one record, whole, and equal to one process's."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests import runs
from tests.cells import answer, attack
from tests.lab import Lab, free_port

from bench.answer.context import RunContext
from bench.answer.provenance import provenance
from bench.cell import FileWeights
from bench.cli.main import cli
from bench.errors import BenchError, RecordError
from bench.record import store as records
from bench.record.checkpoints import file_sha256
from bench.sweep import cluster
from bench.sweep.bundle import admit, inputs
from bench.sweep.cluster import ClusterPool
from bench.sweep.pool import CellReturned, WorkerGone, WorkerLost

pytestmark = pytest.mark.cluster
pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab"))
    yield lab
    lab.close()


@pytest.fixture
def lab(built: Lab) -> Lab:
    """Two workers that served no run before: one that did answers from memory, and waits at no gate."""
    built.staff(0)
    built.staff(2)
    return built


def test_two_workers_give_what_one_process_gives(
    lab: Lab, gate: runs.Gate, gated: list[object], gated_alone: Path, tmp_path: Path
) -> None:
    runs.ran(*gated, "--executor", lab.address, "--out", tmp_path / "run")
    runs.assert_equal(tmp_path / "run", gated_alone)


def test_a_worker_killed_in_a_cell_and_one_that_comes_late(
    lab: Lab, gate: runs.Gate, gated: list[object], gated_alone: Path, tmp_path: Path
) -> None:
    def disturb() -> None:
        lab.workers[0].kill()
        lab.add_worker()

    runs.disturbed(gate, [*gated, "--executor", lab.address, "--out", tmp_path / "run"], disturb)
    runs.assert_equal(tmp_path / "run", gated_alone)


def test_the_head_killed_and_started_again(
    lab: Lab, gate: runs.Gate, gated: list[object], gated_alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    gate.close(at=5)
    with runs.bench(*gated, "--executor", lab.address, "--out", run) as bench:
        bench.until(lambda: gate.waiting() == 2)
        bench.kill()
    gate.open()
    before = {id_: record.cost for id_, record in runs.whole(run).items()}
    assert before
    runs.ran(*gated, "--executor", lab.address, "--out", run)
    runs.assert_equal(run, gated_alone)
    assert {id_: runs.whole(run)[id_].cost for id_ in before} == before  # none was run twice


def test_the_scheduler_restarted(
    lab: Lab, gate: runs.Gate, gated: list[object], gated_alone: Path, tmp_path: Path
) -> None:
    runs.disturbed(gate, [*gated, "--executor", lab.address, "--out", tmp_path / "run"], lab.restart)
    runs.assert_equal(tmp_path / "run", gated_alone)


def test_a_full_disk_on_one_worker(
    lab: Lab, gate: runs.Gate, gated: list[object], gated_alone: Path, tmp_path: Path
) -> None:
    lab.staff(1)
    gate.close(at=1)  # so that the other worker cannot do it all before this one has a cell
    with runs.tiny_disk(tmp_path / "tiny", "256k") as tiny:
        full = lab.add_worker(scratch=tiny)
        runs.until(lambda: any(tiny.iterdir()))
        (tiny / "ballast").write_bytes(b"x" * (240 << 10))
        with runs.bench(*gated, "--executor", lab.address, "--out", tmp_path / "run") as bench:
            # its first cell is an attack, which waits, or a training, whose weights have no room at once
            bench.until(lambda: gate.waiting() == 2 or "gets no more cells" in bench.output)
            gate.open()
            output = bench.ended()
        lab.dismiss(full)
    assert "gets no more cells" in output
    assert "No space left on device" in output
    runs.assert_equal(tmp_path / "run", gated_alone)


def test_a_cell_that_hangs_is_stopped_and_the_others_go_on(lab: Lab, tmp_path: Path) -> None:
    hangs = runs.plugin(tmp_path, "Hangs", "time.sleep(3600 if reading.point.name == 'type-1' else 0)")
    path = runs.matrix(tmp_path, "hangs", "labels-only")
    path.write_text(path.read_text().replace(', "prune"', ""))
    run, arguments = tmp_path / "run", runs.arguments(path, hangs)
    with runs.bench(*arguments, "--executor", lab.address, "--out", run, "--time-limit", "20s") as bench:
        bench.ended(code=1)
    assert lab.alive == 2  # a plug-in that hangs takes its own process along, and no worker
    crashed = [record for record in runs.whole(run).values() if record.status == "crashed"]
    assert len(crashed) == 2
    assert {record.reason for record in crashed} == {
        "took longer than the time limit of 20 s; give --time-limit more, or mend what hangs"
    }


def test_nobody_at_the_address_is_one_line(tmp_path: Path) -> None:
    nobody = f"dask://127.0.0.1:{free_port()}"
    arguments = [*runs.arguments(runs.matrix(tmp_path, "labels-only")), "--executor", nobody]
    error = CliRunner().invoke(cli, [*map(str, arguments), "--out", str(tmp_path / "run")]).exception
    assert isinstance(error, BenchError)
    assert "no Dask scheduler answers there" in str(error)
    assert "\n" not in str(error)


class _Worker:
    address = "tcp://here"

    def __init__(self, folder: Path) -> None:
        self.local_directory = str(folder)


def _context(run: Path) -> RunContext:
    return RunContext(run=run, data_errors_fail_cell=False)


def test_a_worker_with_other_code_or_data_is_excluded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributed.get_worker", lambda: _Worker(tmp_path))
    cell = attack()
    here = provenance(cell, tmp_path)
    job = cluster.Job(cell=cell.model_dump_json(), files={}, provenance=here, plugins={}, context=_context(tmp_path))
    other = replace(here, bench=replace(here.bench, sha256="0" * 64))
    result = cluster.work(replace(job, provenance=other))
    assert isinstance(result, cluster.Exclusion)
    assert "other code than the head's: bench: the files of" in result.reason
    elsewhere = cell.model_copy(update={"dataset": cell.dataset.model_copy(update={"sha256": "0" * 64})})
    result = cluster.work(replace(job, cell=elsewhere.model_dump_json()))
    assert isinstance(result, cluster.Exclusion)
    assert "its content changed" in result.reason
    assert not list(tmp_path.iterdir())  # its folder is gone


@pytest.mark.parametrize("name", ["w.PTH", "w", "w.p t", "gone.pt"])
def test_a_cell_that_cannot_be_answered_takes_no_worker_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Weights of a kind that nobody reads, or that are gone by now: any worker would say the same of them."""
    monkeypatch.setattr("distributed.get_worker", lambda: _Worker(tmp_path / "worker"))
    for folder in ("worker", "run"):
        (tmp_path / folder).mkdir()
    path = tmp_path / name
    path.write_bytes(b"weights")
    cell = attack(FileWeights(sha256=file_sha256(path), path=str(path)))
    if name.startswith("gone"):
        path.unlink()
    job = cluster.Job(
        cell=cell.model_dump_json(),
        files=inputs(cell, tmp_path / "run"),
        provenance=provenance(cell, tmp_path),
        plugins={},
        context=_context(tmp_path),
    )
    files = cluster.work(job)
    assert isinstance(files, dict), files
    record = admit(tmp_path / "run", files, cell.id)
    assert record.status == "crashed"
    assert "unknown format" in str(record.reason) or "cannot be read" in str(record.reason)
    monkeypatch.setattr(cluster, "outputs", lambda run, sent: 1 // 0)
    assert isinstance(cluster.work(job), WorkerLost)


def test_what_comes_back_stays_in_the_run_folder(tmp_path: Path) -> None:
    cell, run = attack(), tmp_path / "run"
    content = records.write(tmp_path, answer(cell, tmp_path)).read_bytes()
    name = f"{cell.id}.json"
    for wrong in ("../escaped", "/etc/escaped", "records/../../escaped", "weights/x/round-1.safetensors"):
        with pytest.raises(RecordError, match="not a file of a run folder|2 records came back"):
            admit(run, {f"records/{name}": content, wrong: b"x"}, cell.id)
    with pytest.raises(RecordError, match="0 records came back"):
        admit(run, {}, cell.id)
    with pytest.raises(RecordError, match="the answer to 00000000 is of"):
        admit(run, {f"records/{name}": content}, "0" * 64)
    assert not run.exists()


class _Future:
    """A future of a task whose worker died."""

    status = "error"

    def add_done_callback(self, callback: Callable[["_Future"], None]) -> None:
        self.callback = callback

    def exception(self) -> Exception:
        return type("KilledWorker", (Exception,), {})()


class _Client:
    """A client whose scheduler answers with `present`, or not at all (None)."""

    def __init__(self) -> None:
        self.status = "running"
        self.present: dict[str, int] | None = {"a": 1, "b": 1}
        self.futures: list[_Future] = []

    def scheduler_info(self, n_workers: int) -> dict[str, dict[str, dict[str, int]]]:
        if self.present is None:
            raise TimeoutError
        return {"workers": {name: {"nthreads": threads} for name, threads in self.present.items()}}

    def submit(self, *arguments: object, **settings: object) -> _Future:
        self.futures.append(_Future())
        return self.futures[-1]

    def cancel(self, futures: list[_Future], force: bool) -> None: ...

    def close(self, timeout: float) -> None: ...


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterPool:
    client = _Client()
    monkeypatch.setattr(ClusterPool, "_connected", lambda self, seconds: client)
    monkeypatch.setattr(cluster, "_LOOK", 0.01)
    made = ClusterPool("dask://host:1", _context(tmp_path))
    assert made.events() == []
    assert made.workers() == ("a", "b")
    return made


def test_a_scheduler_that_does_not_answer_blames_no_worker(pool: ClusterPool) -> None:
    cell = attack()
    pool.submit("a", cell, demand=1)
    pool._client.present = None
    assert pool.events() == []
    assert pool.workers() == ("a", "b")
    pool._client.status = "closed"  # now the scheduler is lost: both cells go back, and no worker is blamed
    assert sorted(pool.events(), key=lambda event: event[0]) == [("a", CellReturned()), ("b", WorkerGone())]


def test_a_dead_worker_gets_its_cell_back_in_no_order_of_the_news(pool: ClusterPool) -> None:
    """Dask tells of the lost task before its list of workers is asked again."""
    pool.submit("a", attack(), demand=1)
    (future,) = pool._client.futures
    pool._looked = time.monotonic() + 60  # no look at the list in between
    future.callback(future)
    assert pool.events() == [("a", WorkerLost(reason="its worker died"))]
    assert pool.workers() == ("b",)
    pool._looked = 0.0
    assert pool.events() == []
    assert pool.workers() == ("a", "b")  # the list still shows the worker: it lives


@pytest.mark.parametrize("wrong", ["dask://", "dask://host", "ray://host:1", "host:8786", "dask://host:x"])
def test_an_address_is_checked(wrong: str) -> None:
    with pytest.raises(BenchError, match="must be dask://HOST:PORT"):
        cluster._checked(wrong)
