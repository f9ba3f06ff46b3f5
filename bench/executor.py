"""Many cells: long-lived worker processes on this machine, one thread each.

The parent hands out one cell at a time; cells of one group (which may share data and equal
readings) go to the same worker in order.  A worker that dies loses its cell and is replaced.  A
worker whose parent dies ends itself.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from bench import registry
from bench.cell import AttackCell, TrainingCell
from bench.records import Record, write
from bench.runner import Memory, Place, Step, answering, environment, run_cell

AnyCell = AttackCell | TrainingCell
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# glibc hands large blocks back to the system after each use, and gets them page by page again: let it keep them.
_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: "Connection[Any, Any]"
    group: list[AnyCell] = field(default_factory=list)
    busy: AnyCell | None = None


def run_cells(
    groups: Iterable[Sequence[AnyCell]], place: Place, *, jobs: int, plugins: Sequence[str] = (),
    started: Callable[[AnyCell], None] = lambda cell: None,
    stepped: Callable[[AnyCell, Step], None] = lambda cell, step: None,
    finished: Callable[[Record], None] = lambda record: None,
) -> None:  # fmt: skip
    """Run every cell of every group, each to a record on disk; `finished` is told of each, `stepped` of how
    far a training is.  Cores that no group is left for go to the others' trainings as threads."""
    waiting = [list(group) for group in groups if group]
    count = min(jobs, len(waiting))
    place = replace(place, threads=jobs // count if count else 1)
    workers = [_start(place, plugins) for _ in range(count)]
    try:
        while True:
            for worker in workers:
                _feed(worker, waiting, started)
            busy = [worker for worker in workers if worker.busy is not None]
            if not busy:
                return
            ready = wait([w.pipe for w in busy] + [w.process.sentinel for w in busy])
            for worker in busy:
                if worker.pipe not in ready and worker.process.sentinel not in ready:
                    continue
                record = _collect(worker, place)
                if isinstance(record, Step):
                    assert worker.busy is not None
                    stepped(worker.busy, record)
                    continue
                worker.busy = None
                finished(record)
                if not worker.process.is_alive():
                    fresh = _start(place, plugins)
                    worker.process, worker.pipe = fresh.process, fresh.pipe
    finally:
        for worker in workers:
            worker.pipe.close()
            if worker.busy is not None:
                worker.process.terminate()
        for worker in workers:
            worker.process.join(10)


def _feed(worker: _Worker, waiting: list[list[AnyCell]], started: Callable[[AnyCell], None]) -> None:
    if worker.busy is not None:
        return
    if not worker.group and waiting:
        worker.group = waiting.pop(0)
    if worker.group:
        cell = worker.group.pop(0)
        worker.busy = cell
        started(cell)
        worker.pipe.send(cell)


def _collect(worker: _Worker, place: Place) -> Record | Step:
    assert worker.busy is not None
    try:
        record: Record | Step = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join(10)
        record = lost(worker.busy, place, f"its worker process died (exit code {worker.process.exitcode})")
        write(place.run, record)
    return record


def lost(cell: AnyCell, place: Place, reason: str, status: Any = "crashed") -> Record:
    """The record of a cell that could not run."""
    return Record(
        id=cell.id, status=status, reason=reason, cell=cell.model_dump(mode="json"),
        source=answering(cell, place.run), summary={}, victims=[], environment=environment(place), cost={},
    )  # fmt: skip


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
            cell = pipe.recv()
        except EOFError:
            return
        record = run_cell(cell, place, memory, told=pipe.send)
        write(place.run, record)
        pipe.send(record)


def steady(device: str) -> None:
    """What makes figures repeat bit for bit: one thread, and on a GPU deterministic algorithms."""
    torch.set_num_threads(1)
    if device != "cpu":
        torch.use_deterministic_algorithms(True)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
