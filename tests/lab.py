"""A Dask cluster of this machine's processes, for tests: a scheduler, and workers that come and go."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.machines import Machine

DASK = [sys.executable, "-P", "-m", "dask"]
HERE = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HERE, 0))
        return int(listener.getsockname()[1])


class Lab:
    """A scheduler and workers, each a process; a supervisor's work is the test's.

    `host` is where the scheduler listens, `settings` are environment variables of all.
    """

    def __init__(self, folder: Path, host: str = HERE, settings: Mapping[str, str] | None = None) -> None:
        self.folder, self.host, self.settings = folder, host, dict(settings or {})
        self.port, self.started = free_port(), 0
        self.workers: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._schedule()

    @property
    def address(self) -> str:
        return f"dask://{HERE}:{self.port}"

    @property
    def alive(self) -> int:
        return sum(worker.poll() is None for worker in self.workers)

    def add_worker(
        self, scratch: Path | None = None, machine: Machine | None = None, hidden: Path | None = None
    ) -> "subprocess.Popen[bytes]":
        """A worker of one thread, on a machine of its own where one is given, which does not see `hidden`."""
        self.started += 1
        where = scratch or self.folder / f"scratch-{self.started}"
        where.mkdir(exist_ok=True)
        head, address = (HERE, HERE) if machine is None else (machine.here, machine.address)
        worker = self._start(
            [] if machine is None else machine.inside(hidden),
            "worker",
            f"tcp://{head}:{self.port}",
            "--nthreads",
            "1",
            "--no-nanny",
            "--host",
            address,
            "--local-directory",
            str(where),
        )
        self.workers.append(worker)
        return worker

    def staff(self, count: int) -> None:
        """So many workers, whatever was done to those of before."""
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) > count:
            self.dismiss(self.workers[0])
        while len(self.workers) < count:
            self.add_worker()

    def dismiss(self, worker: "subprocess.Popen[bytes]") -> None:
        worker.kill()
        worker.wait()
        self.workers.remove(worker)

    def restart(self) -> None:
        """The scheduler dies without a word, its workers end, and all come up again."""
        self.scheduler.kill()
        self.scheduler.wait()
        count = len(self.workers)
        self.staff(0)
        self.scheduler = self._schedule()
        self.staff(count)

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()

    def logged(self, words: str) -> int:
        """How often the scheduler and the workers said this."""
        return (self.folder / "lab.log").read_text(errors="replace").count(words)

    def _schedule(self) -> "subprocess.Popen[bytes]":
        return self._start([], "scheduler", "--host", self.host, "--port", str(self.port))

    def _start(self, inside: list[str], *arguments: str) -> "subprocess.Popen[bytes]":
        with (self.folder / "lab.log").open("ab") as log:
            return subprocess.Popen(
                [*inside, *DASK, *arguments, "--no-dashboard"],
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | self.settings,
            )
