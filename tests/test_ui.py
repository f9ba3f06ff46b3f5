"""`bench ui`: the right store's pages, for this machine alone, and nothing left when it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests import runs
from tests.records import cell_ids, write

from bench.cli.ui import command as ui
from bench.errors import BenchError
from bench.tracking import server, store, upload
from bench.tracking.pictures import GRID

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def test_without_a_store_it_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "r" / "records").mkdir(parents=True)
    result = CliRunner().invoke(ui, [str(tmp_path / "r"), "--no-browser"])
    assert isinstance(result.exception, BenchError)
    assert "no store there yet; `bench sync" in str(result.exception)


def test_a_taken_port_gives_the_next() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert server.free_port(port) > port
    assert server.free_port(port) == port
    with pytest.raises(BenchError, match="give another --port"):
        server.free_port(65536)


def send(run: Path, uri: str | None = None) -> store.UploadResult:
    """The cells of a run, without its rows."""
    return upload.send(upload.open_target(run, uri), run, cell_ids(run))


class Opened:
    """A running `bench ui`: what it printed, and its port."""

    def __init__(self, process: "subprocess.Popen[str]", wanted: int) -> None:
        self.process, self.wanted, self.said = process, wanted, ""
        assert process.stdout is not None
        for line in process.stdout:
            self.said += line
            if line.startswith("Ctrl-C"):
                break
        assert "cells:" in self.said, self.said
        self.page = next(line.split()[1] for line in self.said.splitlines() if line.startswith("cells:"))
        self.port = int(self.page.split(":")[2].split("/")[0])

    def get(self, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **headers},
        )
        try:
            with _DIRECT.open(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()


@contextmanager
def opening(folder: Path) -> Iterator[Opened]:
    """`bench ui` on the newest of two runs, one record of which was not uploaded, at a port that is taken."""
    for name, ids in (("other", ("a1", "a2")), ("r", ("b1", "b2"))):
        for cell_id in ids:
            write(folder / "runs" / name, cell_id)
        send(folder / "runs" / name)
    write(folder / "runs" / "r", "b3")
    os.utime(folder / "runs" / "other" / "records", (1, 1))
    program = "from bench.cli.main import main; main()"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = taken.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", program, "ui", "--no-browser", "--port", str(wanted)],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        try:
            yield Opened(process, wanted)
        finally:
            process.terminate()  # not killed: it has a server to end
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    with opening(tmp_path_factory.mktemp("ui")) as found:
        yield found


@pytest.mark.slow
def test_the_page_of_the_newest_run_answers(opened: Opened) -> None:
    assert f"port {opened.wanted} is taken; using {opened.port}" in opened.said
    assert "1 of runs/r's records are not in the store; `bench sync runs/r`" in opened.said
    assert opened.page.endswith("/runs?workflowType=machine_learning")
    status, page = opened.get("/")
    assert status == 200 and b"<html" in page.lower()
    number = opened.page.split("/experiments/")[1].split("/")[0]
    status, found = opened.get("/api/2.0/mlflow/runs/search", {"experiment_ids": [number]})
    assert status == 200
    cells = {
        tag["value"] for run in json.loads(found)["runs"] for tag in run["data"]["tags"] if tag["key"] == "bench.cell"
    }
    assert cells == {"b1", "b2"}
    assert "no board yet; `bench sync runs/r` writes it" in opened.said


@pytest.mark.slow
def test_pictures_show(opened: Opened) -> None:
    number = opened.page.split("/experiments/")[1].split("/")[0]
    _, found = opened.get("/api/2.0/mlflow/runs/search", {"experiment_ids": [number]})
    run_id = json.loads(found)["runs"][0]["info"]["run_id"]
    status, picture = opened.get(f"/get-artifact?path={GRID}&run_uuid={run_id}")
    assert status == 200 and picture.startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("host", ["evil.example", "10.1.2.3", "192.168.0.9:5077", "127.0.0.1.evil.example"])
def test_other_hosts_are_refused(opened: Opened, host: str) -> None:
    assert opened.get("/", Host=host)[0] == 403
    assert opened.get("/", Host=f"localhost:{opened.port}")[0] == 200


@pytest.mark.slow
def test_other_origins_are_refused(opened: Opened) -> None:
    create, name = "/api/2.0/mlflow/experiments/create", {"name": "from elsewhere"}
    assert opened.get(create, name, Origin="http://evil.example")[0] == 403
    missing = opened.get("/api/2.0/mlflow/experiments/get-by-name?experiment_name=from%20elsewhere")
    assert missing[0] == 404


@pytest.mark.slow
def test_it_sends_no_telemetry(opened: Opened) -> None:
    status, answer = opened.get("/ajax-api/3.0/mlflow/ui-telemetry")
    assert status == 200 and json.loads(answer)["disable_ui_telemetry"] is True


@pytest.mark.slow
def test_it_listens_on_loopback_alone(opened: Opened) -> None:
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    if not tables[0].exists():
        pytest.skip("no /proc/net/tcp on this system")
    rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == opened.port]
    assert [address.split(":")[0] for address in listening] == ["0100007F"]


@pytest.mark.slow
def test_a_server_takes_records_as_a_file_does(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    write(tmp_path / "remote", "a1")
    uri = f"http://127.0.0.1:{opened.port}"
    assert send(tmp_path / "remote", uri) == store.UploadResult(count=1)
    assert send(tmp_path / "remote", uri) == store.UploadResult(skipped=1)
    assert capfd.readouterr().out == "", "mlflow prints addresses, amid what is JSON for somebody"
    (note,) = json.loads((tmp_path / "remote" / "synced" / "a1.json").read_text()).values()
    status, picture = opened.get(f"/get-artifact?path={GRID}&run_uuid={note['run']}")
    assert status == 200 and picture.startswith(b"\x89PNG")


def family_of(pid: int) -> set[int]:
    """A process and all below it."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout.split()
    parents = dict(zip(map(int, table[::2]), map(int, table[1::2]), strict=True))
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return family


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_exit_0_and_leaves_nothing(tmp_path: Path, number: int) -> None:
    with opening(tmp_path) as opened:
        family = family_of(opened.process.pid)
        assert len(family) >= 2
        opened.process.send_signal(number)
        assert opened.process.wait(60) == 0
        runs.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))
        with pytest.raises(urllib.error.URLError):
            opened.get("/")
