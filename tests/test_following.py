"""The upload beside a run: no cell waits for it, nothing it does stops a run, nothing is left behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests import runs
from tests.records import write

from bench.cli.sync import command as sync
from bench.errors import BenchError
from bench.record.folder import locked
from bench.tracking import store
from bench.tracking.following import Follower


@pytest.fixture
def run(store_folder: Path, tmp_path: Path) -> Path:
    folder = store_folder / tmp_path.name
    for cell_id in ("a1", "a2"):
        write(folder, cell_id)
    return folder


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def started(run: Path, program: str) -> Follower:
    """A follower whose process is this program, started."""
    follower = Follower(run)
    follower._command = [sys.executable, "-P", "-c", program]
    follower.start()
    return follower


def process_gone(follower: Follower) -> bool:
    return follower._process is not None and gone(follower._process.pid)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:  # one that ended but that nobody collected, in a container without an init, is gone as well
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_what_comes_and_what_was_there_besides_is_uploaded(run: Path) -> None:
    with locked(run), closing(Follower(run)) as follower:
        follower.start()
        write(run, "a3")
        assert follower.finish() is None
        assert follower.finish() is None
    assert follower.uploaded == store.UploadResult(count=3, rows=1)
    assert store.unsynced(run, store.default_uri(run)) == 0
    assert follower._process is not None and follower._process.returncode == 0
    assert follower.log.read_text() == ""


def test_an_address_that_is_no_store_is_refused_before_the_run(run: Path) -> None:
    with pytest.raises(BenchError, match="tracking uri must be"):
        Follower(run, "mlruns")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit(3)", "`bench sync` ended early (3); see"),
        ("import os; os.kill(os.getpid(), 9)", "`bench sync` ended early (-9); see"),
        ("print('not json')", "ended early (0)"),
        ("print('[]')", "ended early (0)"),
        ("print('{\"count\": 1}')", "ended early (0)"),
    ],
)
def test_a_process_that_fails_disturbs_nothing(run: Path, program: str, reason: str) -> None:
    line = started(run, program).finish()
    assert line is not None and "\n" not in line
    assert line.startswith("2 records wait (") and reason in line
    assert line.endswith(f"`bench sync {run}` tries again")


def test_no_interpreter_is_a_reason_and_no_error(run: Path) -> None:
    follower = Follower(run)
    follower._command = ["/nowhere/python"]
    follower.start()
    assert "2 records wait (`bench sync --follow` did not start" in str(follower.finish())


def test_no_cell_waits_for_a_process_that_hangs(run: Path) -> None:
    """A bounded wait for progress at the end, and it is killed."""
    begin = time.monotonic()
    follower = started(run, "import time; time.sleep(600)")
    assert "2 records wait (no progress in 0.5 s)" in str(follower.finish(0.5))
    assert time.monotonic() - begin < 300
    assert process_gone(follower)


def test_patience_is_for_progress_not_for_the_whole(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = json.dumps({"count": 2, "skipped": 0, "failed": 0, "left": 0, "rows": 0, "reason": None})
    beats, over = count(1), run / "over"

    def heartbeat(run: Path) -> int:
        beat = next(beats)
        if beat == 8:
            over.touch()
        return beat

    monkeypatch.setattr(store, "heartbeat", heartbeat)
    wait = f"while not pathlib.Path({str(over)!r}).exists(): time.sleep(0.01)"
    program = f"import pathlib, time\n{wait}\nprint({result!r})"
    assert started(run, program).finish(0.0) is None


def test_an_interrupted_run_ends_its_process(run: Path) -> None:
    with pytest.raises(KeyboardInterrupt), closing(started(run, "import sys; sys.stdin.read()")) as follower:
        raise KeyboardInterrupt
    assert follower.uploaded == store.UploadResult(left=2, reason="the run was interrupted")
    assert process_gone(follower)


def test_interrupted_while_it_waits_it_ends_its_process(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(run: Path) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "heartbeat", interrupted)
    follower = started(run, "import sys; sys.stdin.read()")
    with pytest.raises(KeyboardInterrupt):
        follower.finish()
    assert process_gone(follower)


def test_the_runner_needs_no_mlflow() -> None:
    program = "import sys, bench.tracking.following, bench.tracking.sync; print('mlflow' in sys.modules)"
    output = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert output.stdout == "False\n"


def test_by_hand_it_follows_for_as_long_as_the_folder_is_held(run: Path) -> None:
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(run):
            held.set()
            runs.until(lambda: len(list((run / "synced").glob("a*.json"))) == 2)
            write(run, "a3")
            let_go.wait(0.2)

    runner = threading.Thread(target=hold)
    runner.start()
    assert held.wait(60)
    result = CliRunner().invoke(sync, [str(run), "--follow"])
    runner.join()
    assert result.exit_code == 0, result.output
    assert "3 uploaded, 0 there already, 0 failed, 0 left; 1 rows" in result.output


@pytest.mark.slow
def test_a_server_that_hangs_holds_nothing_up_for_long(
    run: Path, silent_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    follower = Follower(run, silent_server)
    follower.start()
    begin = time.monotonic()
    line = follower.finish()
    assert time.monotonic() - begin < 60
    assert line is not None and line.startswith("2 records wait") and silent_server in line
    assert follower.uploaded is not None and follower.uploaded.count == 0


_PARENT = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's & has it ignored
from bench.tracking.following import Follower
follower = Follower(Path(sys.argv[1]), sys.argv[2])
follower.start()
print(follower._process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("after_seconds", [0, 6])
def test_no_process_outlives_its_parent(run: Path, silent_server: str, number: int, after_seconds: float) -> None:
    """While it imports mlflow, or while it waits for a server that hangs."""
    command = [sys.executable, "-P", "-c", _PARENT, str(run), silent_server]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(after_seconds)
        assert not gone(pid)
        parent.send_signal(number)
        parent.wait(60)
    runs.until(lambda: gone(pid))
    assert all(json.loads(path.read_text()) for path in (run / "records").glob("*.json"))
