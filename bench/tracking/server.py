"""MLflow's server on a store, reachable only from this machine."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.errors import BenchError
from bench.tracking import store

HOST = "127.0.0.1"
START_SECONDS = 180.0  # 11 s warm, 20 s cold on two cores; a busy machine takes longer
_ENVIRONMENT = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # halves the memory; no job is used here
    "MLFLOW_ENABLE_AI_GATEWAY": "false",
}
# No proxy between this process and this machine.
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port(wanted: int) -> int:
    """Return port `wanted`, or the next free port up to 99 above; raises `BenchError` if all are taken."""
    for port in range(wanted, min(wanted + 100, 65536)):
        with socket.socket() as probe:
            # As servers do: a recently closed connection does not occupy a port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((HOST, port))
                return port
    raise BenchError(f"no free port from {wanted} on; give another --port")


@contextmanager
def serving(uri: str, port: int, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run MLflow's server for the store `uri` on the loopback address inside a `with` statement; at its end, the server
    and its children are stopped. The server listens on `port` and writes to the file `log`. It refuses requests that
    name another host, executes no jobs and sends no telemetry. Raises `BenchError` if the server does not start."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "mlflow",
        "server",
        "--backend-store-uri",
        uri,
        "--default-artifact-root",
        (log.parent / "mlartifacts").as_uri(),
        "--no-serve-artifacts",
        "--host",
        HOST,
        "--port",
        str(port),
        "--workers",
        "1",
        "--allowed-hosts",
        f"{HOST}:{port},localhost:{port}",
    ]
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=log.parent,
            env=os.environ | store.ENVIRONMENT | _ENVIRONMENT,
            start_new_session=True,  # a process group to stop at the end; Ctrl-C does not reach it first
        )
    try:
        _wait(server, port, log)
        yield server
    finally:
        _end(server)


def _wait(server: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise BenchError(f"MLflow's server did not start ({server.returncode}); see {log}")
        with contextlib.suppress(OSError), direct.open(f"http://{HOST}:{port}/health", timeout=2):
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
    for _ in range(20):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    return True
