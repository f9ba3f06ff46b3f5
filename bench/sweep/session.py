"""A run from plan to records: settle what cannot run, have a crew answer the rest, tell whoever watches."""

import os
from collections.abc import Callable

import torch

from bench.answer.run import Place, Step
from bench.cell import AnyCell
from bench.errors import BenchError
from bench.record import store as records
from bench.record.store import Record
from bench.sweep.dispatch import Watch, dispatch, lost
from bench.sweep.estimates import Remaining
from bench.sweep.plan import Schedule
from bench.sweep.pool import Crew
from bench.sweep.progress import Reporter
from bench.sweep.scheduler import Agenda


def carry_out(
    schedule: Schedule, place: Place, crew: Callable[[], Crew], *, watch: Watch | None = None, title: str = ""
) -> None:
    """Run what the schedule has waiting; every cell leaves a record, whatever happens to it.

    `place.run` is held by the caller (`record.folder.opened`); `crew` is asked for once there is something to run,
    and let go at the end.  Raises `StorageError` where the folder cannot be written, `BenchError` where no worker
    is left.
    """
    watch = watch or Watch()
    work = Remaining(schedule.waiting, schedule.estimates)
    total = len(schedule.done) + len(schedule.impossible) + len(schedule.waiting)
    reporter = Reporter(place.run, title=title, cells=total, settled=len(schedule.done), left=work.left)
    state = "stopped"
    try:
        _settle(schedule, place, _both(watch, reporter, work), crew)
        state = "finished"
    except BenchError as error:
        state = f"stopped: {error}"
        raise
    finally:
        reporter.close(state)


def _settle(schedule: Schedule, place: Place, watch: Watch, crew: Callable[[], Crew]) -> None:
    for cell, reason in schedule.impossible:
        record = lost(cell, place, reason, status="n/a")
        records.write(place.run, record)
        watch.finished(record)
    if not schedule.groups:
        return
    estimates = schedule.estimates
    workers = crew()
    try:
        agenda = Agenda(schedule.groups, estimates.seconds, lambda: estimates.seen)
        dispatch(agenda, workers, place, watch, estimates.learn)
    finally:
        workers.close()


def _both(watch: Watch, reporter: Reporter, work: Remaining) -> Watch:
    """What the run tells goes to the file first, then to who watches."""

    def started(cell: AnyCell, worker: str) -> None:
        reporter.started(cell, worker)
        watch.started(cell, worker)

    def stepped(cell: AnyCell, step: Step) -> None:
        reporter.stepped(cell, step)
        watch.stepped(cell, step)

    def finished(record: Record) -> None:
        work.settle(record.id)
        reporter.finished(record)
        watch.finished(record)

    return Watch(started=started, stepped=stepped, finished=finished)


def default_jobs(device: str = "cpu") -> int:
    """One worker per core that this process may use, or per GPU."""
    if device == "cuda":
        return max(1, torch.cuda.device_count())
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def chosen_device(wanted: str) -> str:
    """`auto` takes a CUDA device where there is one; raises `BenchError` where `cuda` has none."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise BenchError("--device cuda: torch sees no CUDA device; say --device cpu, or see `bench doctor`")
    return wanted
