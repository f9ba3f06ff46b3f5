"""A whole run, from schedule to records: impossible cells are recorded as n/a, the others run on a worker pool."""

import os
from collections.abc import Callable, Sequence
from contextlib import closing

import torch

from bench.answer.context import RunContext
from bench.answer.run import record_without_result
from bench.errors import BenchError
from bench.record.store import write
from bench.sweep.dispatch import dispatch
from bench.sweep.observer import Observer
from bench.sweep.plan import RunSchedule
from bench.sweep.pool import WorkerPool
from bench.sweep.scheduler import Scheduler


def run_schedule(
    schedule: RunSchedule, context: RunContext, start_pool: Callable[[], WorkerPool], *observers: Observer
) -> None:
    """Run the remaining cells (experiments) of a schedule, so that every cell gets a record; impossible cells get a
    record `n/a`.

    - `context`: the run's folders, device and limits. The caller must lock `context.run` (`record.folder.locked`).
    - `start_pool`: function that starts the workers; called only if cells can run.
    - `observers`: receive every event.

    Raises `StorageError` for a failed write, and `BenchError` if no worker is left."""
    _record_impossible(schedule, context, observers)
    if schedule.groups:
        with closing(start_pool()) as pool:
            _dispatch(schedule, context, pool, observers)


def run_on(pool: WorkerPool, schedule: RunSchedule, context: RunContext, *observers: Observer) -> None:
    """Run the remaining cells (experiments) of a schedule on a `pool` of workers, which stays open. `context` has the
    run's folders, device and limits; `observers` receive every event. Raises `StorageError` for a failed write, and
    `BenchError` if no worker is left."""
    _record_impossible(schedule, context, observers)
    if schedule.groups:
        _dispatch(schedule, context, pool, observers)


def _record_impossible(schedule: RunSchedule, context: RunContext, observers: Sequence[Observer]) -> None:
    for cell, reason in schedule.impossible:
        record = record_without_result(cell, context, "n/a", reason)
        write(context.run, record)
        for observer in observers:
            observer.on_record(record)


def _dispatch(schedule: RunSchedule, context: RunContext, pool: WorkerPool, observers: Sequence[Observer]) -> None:
    estimates = schedule.estimates
    scheduler = Scheduler(schedule.groups, estimates.seconds, lambda: estimates.seen)
    dispatch(scheduler, pool, context, observers, estimates.learn)


def default_jobs(device: str = "cpu") -> int:
    """Return the default number of workers: the usable cores, or for `cuda` the GPUs."""
    if device == "cuda":
        return max(1, torch.cuda.device_count())
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def chosen_device(device: str) -> str:
    """Replace `auto` by `cuda` or, without a CUDA device, `cpu`; raises `BenchError` if `cuda` is not available."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise BenchError("--device cuda: torch sees no CUDA device; say --device cpu, or see `bench doctor`")
    return device
