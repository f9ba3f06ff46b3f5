"""A pool of long-lived worker processes on this machine, each with a thread; idle cores help trainings.

A dead worker loses its cell and is replaced.  A worker whose parent process died ends itself.  With several GPUs, each
worker uses a single GPU."""

import multiprocessing
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from bench.answer.context import Memory, RunContext, TrainingProgress, many_rows
from bench.cell import AnyCell
from bench.errors import StorageError
from bench.isolation.isolation import Isolation
from bench.isolation.process import end_with, prepare_environment, single_threaded, timeout_reason, trace_path
from bench.record.schema import Record
from bench.record.store import write
from bench.sweep.pool import Event, WorkerLost, run_within_limits


@dataclass(slots=True)
class _LocalWorker:
    process: BaseProcess
    pipe: "Connection[Any, Any]"
    cell: AnyCell | None = None


class ProcessPool:
    """Pool of `jobs` worker processes on this machine (`bench.sweep.pool.WorkerPool`), the usual pool of a run. A
    process starts with its first cell (experiment). Cores without a cell serve as threads for running trainings."""

    def __init__(self, context: RunContext, *, jobs: int, plugins: Sequence[str] = ()) -> None:
        self._context, self._jobs, self._plugins = context, jobs, tuple(plugins)
        self._names = tuple(str(number) for number in range(1, jobs + 1))
        self._workers: dict[str, _LocalWorker] = {}

    def workers(self) -> tuple[str, ...]:
        return self._names

    def submit(self, worker: str, cell: AnyCell, *, demand: int, company: tuple[AnyCell, ...] = ()) -> None:
        trace_path(self._context.run, cell.id).unlink(missing_ok=True)  # from an earlier run
        process = self._workers.get(worker)
        if process is None or not process.process.is_alive():  # may have died while idle
            device = device_of(self._context.device, self._names.index(worker))
            process = self._workers[worker] = _start(replace(self._context, device=device), self._plugins)
        process.cell = cell
        with suppress(OSError):  # died meanwhile: `events` will notice
            beside = company if many_rows(self._context) else ()
            process.pipe.send((cell, self._jobs // min(self._jobs, demand), beside))

    def events(self) -> list[tuple[str, Event]]:
        busy = {name: worker for name, worker in self._workers.items() if worker.cell is not None}
        ready = wait([w.pipe for w in busy.values()] + [w.process.sentinel for w in busy.values()])
        return [
            (name, self._event(name, worker, worker.cell))
            for name, worker in busy.items()
            if worker.cell is not None and (worker.pipe in ready or worker.process.sentinel in ready)
        ]

    def close(self) -> None:
        for worker in self._workers.values():
            worker.pipe.close()
            if worker.cell is not None:
                worker.process.terminate()
        for worker in self._workers.values():
            worker.process.join(10)
            if worker.process.is_alive():  # hangs, and ignores signals
                worker.process.kill()
                worker.process.join(10)
        self._workers.clear()

    def _event(self, name: str, worker: _LocalWorker, cell: AnyCell) -> Event:
        try:
            message: TrainingProgress | Record | StorageError = worker.pipe.recv()
        except (EOFError, OSError):
            del self._workers[name]
            return self._lost(worker, cell)
        if isinstance(message, StorageError):
            raise message
        if isinstance(message, Record):
            worker.cell = None
        return message

    def _lost(self, worker: _LocalWorker, cell: AnyCell) -> WorkerLost:
        worker.process.join(10)
        worker.pipe.close()
        limit, trace = self._context.time_limit, trace_path(self._context.run, cell.id)
        if limit is not None and trace.exists() and trace.stat().st_size:
            return WorkerLost(reason=timeout_reason(limit, trace), retry=False)
        trace.unlink(missing_ok=True)
        return WorkerLost(reason=f"its worker process died (exit code {worker.process.exitcode})")


def device_of(device: str, number: int) -> str:
    """Return the torch device of worker `number` (from 0), such as "cuda:1". With `device` "cuda" and several GPUs, the
    workers take the GPUs in turn; otherwise the result is `device`."""
    count = torch.cuda.device_count() if device == "cuda" else 0
    return f"cuda:{number % count}" if count > 1 else device


def _start(context: RunContext, plugins: Sequence[str]) -> _LocalWorker:
    prepare_environment()
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_work, args=(theirs, context, tuple(plugins), os.getpid()), daemon=True)
    process.start()
    theirs.close()
    return _LocalWorker(process=process, pipe=ours)


def _work(pipe: "Connection[Any, Any]", context: RunContext, plugins: tuple[str, ...], parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    single_threaded()
    # before this process has other threads or true examples
    memory, isolation = Memory(), Isolation(plugins, context.device, fork=True)
    end_with(parent)
    while True:
        try:
            cell, threads, company = pipe.recv()
        except EOFError:
            isolation.close()
            return
        try:
            record = run_within_limits(
                cell, replace(context, threads=threads), memory, partial(_send, pipe), isolation, company
            )
            write(context.run, record)
        except StorageError as error:
            pipe.send(error)
            return
        pipe.send(record)


def _send(pipe: "Connection[Any, Any]", progress: TrainingProgress) -> None:
    """Send progress to the parent process; without a parent, end this process: so no cell counts as failed."""
    try:
        pipe.send(progress)
    except OSError:
        os._exit(1)
