"""A run from plan to records: settle what cannot run, hand out the rest, tell whoever watches."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench import records
from bench.errors import BenchError
from bench.executor import AnyCell, lost, run_cells
from bench.plan import Schedule
from bench.records import Record
from bench.runner import Place, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a run tells: a cell begins, a training is so far, a record is on disk."""

    started: Callable[[AnyCell], None] = lambda cell: None
    stepped: Callable[[AnyCell, Step], None] = lambda cell, step: None
    finished: Callable[[Record], None] = lambda record: None


def carry_out(
    schedule: Schedule, place: Place, *, jobs: int, plugins: Sequence[str] = (), watch: Watch | None = None
) -> None:
    """Run what the schedule has waiting; every cell leaves a record, whatever happens to it."""
    watch = watch or Watch()
    for cell, reason in schedule.impossible:
        record = lost(cell, place, reason, status="n/a")
        records.write(place.run, record)
        watch.finished(record)
    for phase in schedule.phases:
        run_cells(
            phase, place, jobs=jobs, plugins=plugins, started=watch.started, stepped=watch.stepped,
            finished=watch.finished,
        )  # fmt: skip


def default_jobs() -> int:
    """One worker per core that this process may use."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def chosen_device(wanted: str) -> str:
    """`auto` takes a CUDA device where there is one; raises `BenchError` where `cuda` has none."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise BenchError("--device cuda: torch sees no CUDA device; say --device cpu, or see `bench doctor`")
    return wanted


def open_run(run: Path) -> Path:
    """The run folder, made where it is not; raises `BenchError` where it cannot be written."""
    try:
        (run / "records").mkdir(parents=True, exist_ok=True)
        probe = run / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise BenchError(f"{run}: cannot be written ({error.strerror}); choose another --out") from None
    return run
