"""MLflow's own server on a store, for this machine's eyes only, and the addresses of its pages."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from bench.errors import BenchError
from bench.tracking import charts, rows, store

HOST = "127.0.0.1"
START_SECONDS = 180.0  # 11 s warm, 20 s cold on two cores; a busy machine takes longer
_COMPARED = 12  # runs in the compare view: as many as it was seen to draw well
_ENVIRONMENT = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # half the memory, and nothing here uses it
    "MLFLOW_ENABLE_AI_GATEWAY": "false",
}
# The columns of the table of runs: MLflow's own are a data set and a source that no record fills.
_COLUMNS = (
    "metrics.`leak/asr`", "metrics.`leak/psnr_db_median`", "metrics.`utility/accuracy`",
    "tags.`bench.defense`", "tags.`bench.attack`", "tags.`bench.point`", "tags.`bench.knowledge`",
    "tags.`bench.reason`",
)  # fmt: skip
_VIEW, _CHARTS = "bench", "bench-charts"
_WITH_IMAGES = "mlflow.loggedImages"  # MLflow's own tag of a run with pictures for its grid
# A proxy has no business between this process and this machine.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port(wanted: int) -> int:
    """`wanted`, or the next port after it that nothing listens on; raises `BenchError` for none."""
    for port in range(wanted, min(wanted + 100, 65536)):
        with socket.socket() as probe:
            # As servers do: a connection of the last minute does not make a port taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((HOST, port))
                return port
    raise BenchError(f"no free port from {wanted} on; give another --port")


@contextmanager
def serving(uri: str, port: int, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """MLflow's server on loopback, answering; ended with all its children on the way out.

    It refuses every other Host (its default lets private networks in, and with them a web page that
    rebinds its name), executes no jobs, sends no telemetry, and reads artifacts only through runs.
    Raises `BenchError` where it does not start.
    """
    command = [
        sys.executable, "-P", "-m", "mlflow", "server",
        "--backend-store-uri", uri,
        "--default-artifact-root", (log.parent / "mlartifacts").as_uri(),
        "--no-serve-artifacts",
        "--host", HOST, "--port", str(port), "--workers", "1",
        "--allowed-hosts", f"{HOST}:{port},localhost:{port}",
    ]  # fmt: skip
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=log.parent,
            env=os.environ | store.ENVIRONMENT | _ENVIRONMENT,
            start_new_session=True,  # one group to end, which a Ctrl-C does not reach first
        )
    try:
        _wait(server, port, log)
        yield server
    finally:
        _end(server)


def runs_page(port: int, experiment: str) -> str:
    """The experiment's table of cells; without `workflowType` MLflow shows an empty page on traces.

    Its columns are kept in the store as one of MLflow's shared views, a tag of the experiment.
    """
    number = _experiment_id(port, experiment)
    if number is None:
        return f"http://{HOST}:{port}/"
    shown = {
        "searchFilter": f"tags.`bench.kind` != '{rows.KIND}'",
        "selectedColumns": _COLUMNS,
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
    }
    _share(port, number, _VIEW, json.dumps(shown))
    chosen = f"workflowType=machine_learning&viewStateShareKey={_VIEW}"
    return f"http://{HOST}:{port}/#/experiments/{number}/runs?{chosen}"


def charts_page(port: int, experiment: str) -> str | None:
    """The run's rows in prepared charts: parallel coordinates, scatter, curves, pictures.

    None where there are fewer than two rows, or where the server does not take the view.
    """
    number = _experiment_id(port, experiment)
    if number is None:
        return None
    condition = f"tags.`bench.kind` = '{rows.KIND}' and attributes.status = 'FINISHED'"
    asked = {"experiment_ids": [number], "filter": condition, "max_results": 1000}
    try:
        found = _call(port, "runs/search", asked).get("runs", [])
        if len(found) < 2:
            return None
        measured = [{metric["key"] for metric in run["data"].get("metrics", [])} for run in found]
        drawn = any(tag["key"] == _WITH_IMAGES for run in found for tag in run["data"].get("tags", []))
        state = charts.comparison(measured, grid_key=rows.GRID_KEY if drawn else None)
        _share(port, number, _CHARTS, charts.named(charts.NAME, state, int(time.time() * 1000)))
    except urllib.error.HTTPError:
        return None
    chosen = f"workflowType=machine_learning&compareRunsMode=CHART&viewStateShareKey={_CHARTS}"
    return f"http://{HOST}:{port}/#/experiments/{number}/runs?{chosen}"


def compare_page(port: int, experiment: str) -> str | None:
    """Finished runs side by side, or None where there are fewer than two.

    First, for each defense at each point, the attack that leaked most; the rest where there is room.
    """
    number = _experiment_id(port, experiment)
    if number is None:
        return None
    found = _call(
        port,
        "runs/search",
        {
            "experiment_ids": [number],
            "filter": "attributes.status = 'FINISHED'",
            "max_results": 500,
            "order_by": ["metrics.`leak/asr` DESC", "attributes.start_time DESC"],
        },
    ).get("runs", [])
    current = [
        run["info"]
        for run in found
        if all(
            tag["key"] != "bench.superseded" and (tag["key"], tag["value"]) != ("bench.kind", rows.KIND)
            for tag in run["data"].get("tags", [])
        )
    ]
    worst: dict[str, str] = {}  # by what stands after the attack in a run's name
    for info in current:
        worst.setdefault(info.get("run_name", "").partition(" × ")[2], info["run_id"])
    chosen = list(dict.fromkeys([*worst.values(), *(info["run_id"] for info in current)]))[:_COMPARED]
    if len(chosen) < 2:
        return None
    query = urlencode({"runs": json.dumps(chosen), "experiments": json.dumps([number])}, quote_via=quote)
    return f"http://{HOST}:{port}/#/compare-runs?{query}&workflowType=machine_learning"


def _share(port: int, experiment: str, key: str, value: str) -> None:
    """Keep a state of MLflow's page in the store, to be opened by its key."""
    tag = {"experiment_id": experiment, "key": f"mlflow.sharedViewState.{key}", "value": value}
    _call(port, "experiments/set-experiment-tag", tag)


def _experiment_id(port: int, name: str) -> str | None:
    try:
        found = _call(port, f"experiments/get-by-name?{urlencode({'experiment_name': name})}")
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise
    return str(found["experiment"]["experiment_id"])


def _call(port: int, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://{HOST}:{port}/api/2.0/mlflow/{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with _direct.open(request, timeout=30) as answer:
        content: dict[str, Any] = json.load(answer)
    return content


def _wait(server: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise BenchError(f"MLflow's server did not start ({server.returncode}); see {log}")
        with contextlib.suppress(OSError), _direct.open(f"http://{HOST}:{port}/health", timeout=2):
            return
        time.sleep(0.2)
    raise BenchError(f"MLflow's server did not answer in {START_SECONDS:g} s; see {log}")


def _end(server: "subprocess.Popen[bytes]") -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(10)
            if not _group_alive(server.pid):
                return


def _group_alive(group: int) -> bool:
    """Whether a process of the group lives on; a moment's grace, as children end after their parent."""
    for _ in range(20):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    return True
