"""Long-lived worker processes on this machine, one thread each.

A worker that dies loses its cell and is replaced.  A worker whose parent dies ends itself.  Where there are
several GPUs each worker has one of them.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from bench.answer.run import Memory, Place, Step
from bench.cell import AnyCell
from bench.errors import StorageError
from bench.record.store import Record, write
from bench.registry import entries as registry
from bench.sweep.pool import Lost, News, answer, hung, steady, too_long

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# glibc hands large blocks back to the system after each use, and gets them page by page again: let it keep them.
_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: "Connection[Any, Any]"
    busy: AnyCell | None = None


class Processes:
    """A crew of `jobs` processes (`bench.sweep.pool.Crew`); each is started when it gets its first cell.

    Cores that no cell is there for go to the others' trainings as threads.
    """

    def __init__(self, place: Place, *, jobs: int, plugins: Sequence[str] = ()) -> None:
        self._place, self._jobs, self._plugins = place, jobs, tuple(plugins)
        self._names = tuple(str(number) for number in range(1, jobs + 1))
        self._workers: dict[str, _Worker] = {}

    def members(self) -> tuple[str, ...]:
        return self._names

    def give(self, worker: str, cell: AnyCell, *, demand: int) -> None:
        hung(self._place.run, cell).unlink(missing_ok=True)  # of an earlier run
        found = self._workers.get(worker)
        if found is None or not found.process.is_alive():  # it may have died while it had nothing to do
            place = replace(self._place, device=device_of(self._place.device, self._names.index(worker)))
            found = self._workers[worker] = _start(place, self._plugins)
        found.busy = cell
        with suppress(OSError):  # it died since: `news` finds out
            found.pipe.send((cell, self._jobs // min(self._jobs, demand)))

    def news(self) -> list[tuple[str, News]]:
        busy = {name: worker for name, worker in self._workers.items() if worker.busy is not None}
        ready = wait([w.pipe for w in busy.values()] + [w.process.sentinel for w in busy.values()])
        return [
            (name, self._collect(name))
            for name, worker in busy.items()
            if worker.pipe in ready or worker.process.sentinel in ready
        ]

    def close(self) -> None:
        for worker in self._workers.values():
            worker.pipe.close()
            if worker.busy is not None:
                worker.process.terminate()
        for worker in self._workers.values():
            worker.process.join(10)
            if worker.process.is_alive():  # it hangs where no signal is heard
                worker.process.kill()
                worker.process.join(10)
        self._workers.clear()

    def _collect(self, name: str) -> News:
        """What a worker has to say.  Raises the `StorageError` of one that cannot write."""
        worker = self._workers[name]
        assert worker.busy is not None
        try:
            found: Step | Record | StorageError = worker.pipe.recv()
        except (EOFError, OSError):
            return self._buried(name)
        if isinstance(found, StorageError):
            raise found
        if isinstance(found, Record):
            worker.busy = None
        return found

    def _buried(self, name: str) -> Lost:
        worker = self._workers.pop(name)
        worker.process.join(10)
        worker.pipe.close()
        assert worker.busy is not None
        trace = hung(self._place.run, worker.busy)
        if self._place.limit is not None and trace.exists() and trace.stat().st_size:
            return Lost(reason=f"{too_long(self._place)} (where it was: {trace})", again=False)
        trace.unlink(missing_ok=True)
        return Lost(reason=f"its worker process died (exit code {worker.process.exitcode})")


def device_of(device: str, number: int) -> str:
    """The device of the worker of this number, counted from 0: GPUs go round."""
    count = torch.cuda.device_count() if device == "cuda" else 0
    return f"cuda:{number % count}" if count > 1 else device


def _start(place: Place, plugins: Sequence[str]) -> _Worker:
    for name in _THREADS:  # read when the worker imports its numerical libraries
        os.environ[name] = "1"
    for name, size in _MEMORY.items():
        os.environ.setdefault(name, size)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, place, tuple(plugins), os.getpid()), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process=process, pipe=ours)


def _work(pipe: "Connection[Any, Any]", place: Place, plugins: tuple[str, ...], parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    steady(place.device)
    for plugin in plugins:
        registry.add_plugin(plugin)
    memory = Memory()
    while True:
        try:
            cell, count = pipe.recv()
        except EOFError:
            return
        try:
            record = answer(cell, replace(place, threads=count), memory, told=partial(_tell, pipe))
            write(place.run, record)
        except StorageError as error:
            pipe.send(error)
            return
        pipe.send(record)


def _tell(pipe: "Connection[Any, Any]", step: Step) -> None:
    """Tell the parent; without one there is nobody to work for, and what would follow is no fault of the cell's."""
    try:
        pipe.send(step)
    except OSError:
        os._exit(1)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
