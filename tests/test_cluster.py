"""Against a real Dask cluster on this machine: workers killed, the scheduler restarted, a disk full, and every
cell's record there once, whole, and equal to one process's."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests import runs
from tests.lab import Lab, free_port
from tests.test_plan import attack

from bench.answer.run import answering
from bench.cell import FileWeights
from bench.cli.main import cli
from bench.errors import BenchError, RecordError
from bench.record import store as records
from bench.record.checkpoints import file_sha256
from bench.sweep import cluster
from bench.sweep.bundle import admit, needed
from bench.sweep.pool import Lost

pytestmark = pytest.mark.cluster
pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    found = Lab(tmp_path_factory.mktemp("lab"))
    yield found
    found.close()


@pytest.fixture
def lab(built: Lab) -> Lab:
    """Two workers; some may have served other runs before, as a lab's do."""
    built.staff(2)
    return built


def disturbed(lab: Lab, asked: list[object], run: Path, disturb: Callable[[], None]) -> None:
    """A run to its end, with this done to it once it has some records."""
    with runs.bench(*asked, "--executor", lab.address, "--out", run) as process:
        runs.until(lambda: runs.settled(run) >= 5)
        disturb()
        code, told = runs.ended(process)
    assert code == 0, told


def test_two_workers_give_what_one_process_gives(
    lab: Lab, slow_asked: list[object], slow_alone: Path, tmp_path: Path
) -> None:
    code, told = runs.ran(*slow_asked, "--executor", lab.address, "--out", tmp_path / "run")
    assert code == 0, told
    runs.assert_equal(tmp_path / "run", slow_alone)


def test_a_worker_killed_in_a_cell_and_one_that_comes_late(
    lab: Lab, slow_asked: list[object], slow_alone: Path, tmp_path: Path
) -> None:
    def disturb() -> None:
        lab.workers[0].kill()
        lab.add_worker()

    disturbed(lab, slow_asked, tmp_path / "run", disturb)
    runs.assert_equal(tmp_path / "run", slow_alone)


def test_the_head_killed_and_asked_again(
    lab: Lab, slow_asked: list[object], slow_alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with runs.bench(*slow_asked, "--executor", lab.address, "--out", run) as process:
        runs.until(lambda: runs.settled(run) >= 5)
        runs.kill(process)
    before = {id_: record.cost for id_, record in runs.whole(run).items()}
    code, told = runs.ran(*slow_asked, "--executor", lab.address, "--out", run)
    assert code == 0, told
    runs.assert_equal(run, slow_alone)
    assert {id_: runs.whole(run)[id_].cost for id_ in before} == before  # none was run twice


def test_the_scheduler_restarted(
    lab: Lab, slow_asked: list[object], slow_alone: Path, tmp_path: Path
) -> None:
    disturbed(lab, slow_asked, tmp_path / "run", lab.restart)
    runs.assert_equal(tmp_path / "run", slow_alone)


def test_a_full_disk_on_one_worker(
    lab: Lab, slow_asked: list[object], slow_alone: Path, tmp_path: Path
) -> None:
    lab.staff(1)
    with runs.tiny_disk(tmp_path / "tiny", "256k") as tiny:
        full = lab.add_worker(scratch=tiny)
        runs.until(lambda: any(tiny.iterdir()))
        (tiny / "ballast").write_bytes(b"x" * (240 << 10))
        code, told = runs.ran(*slow_asked, "--executor", lab.address, "--out", tmp_path / "run")
        lab.dismiss(full)
    assert code == 0, told
    assert "gets no more cells" in told
    assert "No space left on device" in told
    runs.assert_equal(tmp_path / "run", slow_alone)


def test_a_cell_that_hangs_is_stopped_and_the_others_go_on(lab: Lab, tmp_path: Path) -> None:
    hangs = runs.plugin(tmp_path, "Hangs", "time.sleep(3600 if reading.point.name == 'type-1' else 0)")
    path = runs.matrix(tmp_path, "hangs", "labels-only")
    path.write_text(path.read_text().replace(', "prune"', ""))
    asked = runs.asked(path, hangs)
    run = tmp_path / "run"
    with runs.bench(*asked, "--executor", lab.address, "--out", run, "--time-limit", "4s") as process:
        for _ in range(2):  # each cell that hangs takes its worker along
            runs.until(lambda: lab.alive < 2)
            lab.add_worker()
        code, told = runs.ended(process)
    assert code == 1, told
    crashed = [record for record in runs.whole(run).values() if record.status == "crashed"]
    assert len(crashed) == 2
    assert {record.reason for record in crashed} == {
        "took longer than the time limit of 4 s; give --time-limit more, or mend what hangs"
    }


def test_nobody_at_the_address_is_one_line(tmp_path: Path) -> None:
    asked = runs.asked(runs.matrix(tmp_path, "labels-only"))
    nobody = f"dask://127.0.0.1:{free_port()}"
    arguments = [str(one) for one in (*asked, "--executor", nobody, "--out", tmp_path / "run")]
    said = CliRunner().invoke(cli, arguments).exception
    assert isinstance(said, BenchError)
    assert "no Dask scheduler answers there" in str(said)
    assert "\n" not in str(said)


def _plain(record: records.Record) -> bool:
    cell = record.cell
    return cell["kind"] == "attack" and cell["weights"]["kind"] == "init" and cell["attack"]["name"] == "cpl"


class _Worker:
    address = "tcp://here"

    def __init__(self, folder: Path) -> None:
        self.local_directory = str(folder)


def test_a_worker_with_other_code_or_data_is_unfit(
    slow_alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributed.get_worker", lambda: _Worker(tmp_path))
    record = next(one for one in records.records(slow_alone) if _plain(one))
    cell = records.cell_of(record)
    job: dict[str, Any] = {
        "cell": cell.model_dump_json(), "files": {}, "source": record.source, "plugins": {}, "device": "cpu",
        "data_dir": None, "threads": 1, "limit": None,
    }  # fmt: skip
    other = {**record.source, "bench": {**record.source["bench"], "sha256": "0" * 64}}
    found = cluster.work(cluster.Job(**job | {"source": other}))
    assert isinstance(found, cluster.Unfit)
    assert "other code than the head's: bench: the files of bench changed" in found.reason
    elsewhere = cell.model_copy(update={"dataset": cell.dataset.model_copy(update={"sha256": "0" * 64})})
    found = cluster.work(cluster.Job(**job | {"cell": elsewhere.model_dump_json()}))
    assert isinstance(found, cluster.Unfit)
    assert "its content changed" in found.reason
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
        cell=cell.model_dump_json(), files=needed(cell, tmp_path / "run"), source=answering(cell, tmp_path),
        plugins={}, device="cpu", data_dir=None, threads=1, limit=None,
    )  # fmt: skip
    files = cluster.work(job)
    assert isinstance(files, dict), files
    found = admit(tmp_path / "run", files, cell.id)
    assert found.status == "crashed"
    assert "unknown format" in str(found.reason) or "cannot be read" in str(found.reason)
    monkeypatch.setattr(cluster, "left", lambda run, given: 1 // 0)
    assert isinstance(cluster.work(job), Lost)


def test_what_comes_back_stays_in_the_run_folder(slow_alone: Path, tmp_path: Path) -> None:
    name = next((slow_alone / "records").iterdir()).name
    content = (slow_alone / "records" / name).read_bytes()
    for wrong in ("../escaped", "/etc/escaped", "records/../../escaped", "weights/x/round-1.safetensors"):
        with pytest.raises(RecordError, match="not a file of a run folder|2 records came back"):
            admit(tmp_path, {f"records/{name}": content, wrong: b"x"}, Path(name).stem)
    with pytest.raises(RecordError, match="0 records came back"):
        admit(tmp_path, {}, Path(name).stem)
    with pytest.raises(RecordError, match="the answer to 00000000 is of"):
        admit(tmp_path, {f"records/{name}": content}, "0" * 64)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("wrong", ["dask://", "dask://host", "ray://host:1", "host:8786", "dask://host:x"])
def test_an_address_is_checked(wrong: str) -> None:
    with pytest.raises(BenchError, match="must be dask://HOST:PORT"):
        cluster._checked(wrong)
