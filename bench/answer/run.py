"""Run a cell and return its record; a failure becomes the record's status, with a reason."""

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from bench import __version__
from bench.answer.attack import attack
from bench.answer.context import Memory, RunContext
from bench.answer.place import HERE, Place, Usage
from bench.answer.provenance import provenance
from bench.answer.train import OnProgress
from bench.cell import AnyCell, AttackCell, TrainingCell
from bench.device import name_of, tf32
from bench.errors import BenchError, DataError, NotApplicable, StorageError, with_place
from bench.record.schema import AttackResult, Cost, Environment, Record, Status, TrainingResult


def run(
    cell: AttackCell | TrainingCell,
    context: RunContext,
    memory: Memory,
    on_progress: OnProgress = lambda progress: None,
    place: Place = HERE,
    company: Sequence[AnyCell] = (),
) -> Record:
    """Run a cell (an experiment) and return its record. A failure becomes the record's status (`n/a` or `crashed`).

    - `context`: the run's folders, device and limits.
    - `memory`: data sets and results that the worker process keeps between cells.
    - `on_progress`: function that gets the progress after every training round.
    - `place`: runner of the cell's code: this process (`HERE`), or separate processes for a plug-in.
    - `company`: the run's next cells, which may be attacked in the same batch; their reconstructions then wait in
      `memory`.

    Raises `StorageError` if the run folder cannot be written. Raises `DataError` for missing data, unless
    `context.data_errors_fail_cell` makes it the cell's failure."""
    place.attack_together(cell, company, context, memory)
    began, cpu = time.perf_counter(), time.process_time()
    status: Status = "crashed"
    result: AttackResult | TrainingResult | None = None
    reason, cost = None, Cost()
    try:
        result, cost = _result(cell, context, memory, on_progress, place)
        status = "done"
    except NotApplicable as error:
        status, reason = "n/a", str(error)
    except StorageError:
        raise
    except DataError as error:
        if not context.data_errors_fail_cell:
            raise
        reason = str(error)
    except BenchError as error:
        reason = str(error)
    except Exception as error:
        reason = with_place(error)
    elsewhere = place.usage()
    cost = replace(
        cost,
        wall_seconds=round(cost.wall_seconds + time.perf_counter() - began, 4),
        cpu_seconds=round(cost.cpu_seconds + time.process_time() - cpu + elsewhere.cpu_seconds, 4),
        peak_mb=round(max(Usage.here().peak_mb, elsewhere.peak_mb), 1),
    )
    return replace(record_without_result(cell, context, status, reason), result=result, cost=cost)


def record_without_result(
    cell: AttackCell | TrainingCell, context: RunContext, status: Status, reason: str | None
) -> Record:
    """Return the record of a cell (an experiment) without a result, with its `status` (such as `crashed`) and the
    `reason`. `context` gives the run folder and the device, which the record notes."""
    return Record(
        id=cell.id,
        status=status,
        reason=reason,
        cell=cell,
        provenance=provenance(cell, context.run),
        environment=environment(context),
    )


def _result(
    cell: AttackCell | TrainingCell, context: RunContext, memory: Memory, on_progress: OnProgress, place: Place
) -> tuple[AttackResult | TrainingResult, Cost]:
    if isinstance(cell, TrainingCell):
        trained, cost = place.train(cell, context, memory, on_progress)
        return trained, Cost(training=cost)
    attacked, attempt = attack(cell, context, memory, place)
    if attempt is None:
        return attacked, Cost()
    return attacked, Cost(
        attack_seconds=attempt.seconds,
        reused_from=attempt.reused_from,
        simulations=attempt.simulations,
        simulation_seconds=attempt.simulation_seconds,
        company=attempt.company,
        wall_seconds=attempt.earlier_wall,
        cpu_seconds=attempt.earlier_cpu,
    )


def environment(context: RunContext) -> Environment:
    """Return a description of this machine with the device of `context`, and the versions of Python and packages, for a
    record."""
    device = torch.device(context.device)
    return Environment(
        bench=__version__,
        torch=torch.__version__,
        numpy=np.__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        device=device.type,
        threads=context.threads,
        cores=os.cpu_count(),
        tf32=tf32(device),
        device_name=name_of(device),
    )
