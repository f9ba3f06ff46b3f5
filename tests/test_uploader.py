"""The writer beside a run: no cell waits for it, nothing it does stops a run, nothing is left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError
from bench.record import store as records
from bench.record.store import Record
from bench.tracking import store
from bench.tracking.uploader import Uploader


def write(run: Path, cell_id: str) -> None:
    parts: dict[str, Any] = {"cell": {}, "source": {}, "summary": {"asr": 0.5}, "environment": {}, "cost": {}}
    records.write(run, Record(id=cell_id, status="done", victims=[], **parts))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for cell_id in ("a1", "a2"):
        write(tmp_path / "runs" / "r", cell_id)
    return tmp_path / "runs" / "r"


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def with_writer(run: Path, program: str, *, patience_seconds: float = 30) -> Uploader:
    """An uploader whose writer is this program."""
    uploader = Uploader(run, patience_seconds=patience_seconds)
    uploader._command = [sys.executable, "-P", "-c", program]
    return uploader


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:  # one that ended but that nobody collected, in a container without an init, is gone as well
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


def test_uploads_what_is_named_and_what_is_there_besides(run: Path) -> None:
    with Uploader(run) as uploader:
        write(run, "a3")
        uploader.notify("a3")
        left: list[int] = []
        outcome = uploader.close(left.append)
    assert outcome == uploader.outcome == store.Uploaded(count=3)
    assert left and left[-1] == 0
    assert store.unsynced(run, store.default_uri(run)) == 0
    assert uploader._child is not None and uploader._child.returncode == 0
    assert uploader.log.read_text() == ""


def test_an_address_that_is_no_store_is_refused_before_the_run(run: Path) -> None:
    with pytest.raises(BenchError, match="tracking uri must be"):
        Uploader(run, "mlruns")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit(3)", "the writer ended early (3); see"),
        ("import os; os.kill(os.getpid(), 9)", "the writer ended early (-9); see"),
        (
            "print('not json'); print('[]'); print('{}'); print('{\"end\": true, \"x\": 1}')",
            "ended early (0)",
        ),
    ],
)
def test_a_writer_that_fails_disturbs_nothing(run: Path, program: str, reason: str) -> None:
    with with_writer(run, program) as uploader:
        for _ in range(3):
            uploader.notify("a1")
            time.sleep(0.1)
    assert uploader.outcome is not None
    assert uploader.outcome.left == 2
    assert reason in str(uploader.outcome.reason)


def test_no_interpreter_is_a_reason_and_no_error(run: Path) -> None:
    uploader = Uploader(run)
    uploader._command = ["/nowhere/python"]
    with uploader:
        uploader.notify("a1")
    assert uploader.outcome is not None
    assert uploader.outcome.left == 2
    assert "the writer did not start" in str(uploader.outcome.reason)


def test_no_cell_waits_for_a_writer_that_hangs(run: Path) -> None:
    """More names than its pipe holds, then a bounded wait for progress, and it is killed."""
    with with_writer(run, "import time; time.sleep(600)", patience_seconds=0.5) as uploader:
        start = time.monotonic()
        for number in range(5000):
            uploader.notify(f"{number:064x}")
        assert time.monotonic() - start < 2
        outcome = uploader.close()
        assert time.monotonic() - start < 10
    assert outcome.left == 2
    assert outcome.reason == "no progress in 0.5 s"
    assert uploader._child is not None and gone(uploader._child.pid)


def test_patience_is_for_progress_not_for_the_whole(run: Path) -> None:
    said = {"count": 0, "skipped": 0, "failed": 0, "left": 1, "reason": None}
    program = f"""
import json, time
for end in (False,) * 8 + (True,):
    time.sleep(0.25); print(json.dumps({said} | dict(end=end, left=int(not end))), flush=True)
"""
    with with_writer(run, program, patience_seconds=1.2) as uploader:
        assert uploader.close() == store.Uploaded()


def test_an_interrupted_run_ends_its_writer(run: Path) -> None:
    uploader = with_writer(run, "import sys; sys.stdin.read()")
    with pytest.raises(KeyboardInterrupt), uploader:
        raise KeyboardInterrupt
    assert uploader.outcome is not None
    assert (uploader.outcome.left, uploader.outcome.reason) == (2, "the run was interrupted")
    assert uploader._child is not None and gone(uploader._child.pid)


def test_the_runner_needs_no_mlflow(run: Path) -> None:
    modules = "bench.tracking.uploader, bench.tracking.store, bench.tracking.upload"
    program = f"import sys, {modules}; print('mlflow' in sys.modules)"
    said = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"


@pytest.mark.slow
def test_a_server_that_hangs_holds_nothing_up_for_long(
    run: Path, silent_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with Uploader(run, silent_server) as uploader:
        uploader.notify("a1")
        start = time.monotonic()
        outcome = uploader.close()
    assert time.monotonic() - start < 60
    assert (outcome.count, outcome.left) == (0, 2)
    assert silent_server in str(outcome.reason)


_PARENT = """
import sys, time
from pathlib import Path
from bench.tracking.uploader import Uploader
with Uploader(Path(sys.argv[1]), sys.argv[2]) as uploader:
    uploader.notify("a1")
    print(uploader._child.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("after_seconds", [0, 6])
def test_no_writer_outlives_its_parent(
    run: Path, silent_server: str, number: int, after_seconds: float
) -> None:
    """While it imports mlflow, or while it waits for a server that hangs."""
    command = [sys.executable, "-P", "-c", _PARENT, str(run), silent_server]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(after_seconds)
        assert not gone(pid)
        parent.send_signal(number)
        parent.wait(15)
    deadline = time.monotonic() + 10
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert gone(pid)
    assert all(json.loads(path.read_text()) for path in (run / "records").glob("*.json"))
