"""Cell → record.  Whatever goes wrong inside is a status of the record, with its reason."""

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from bench import __version__
from bench.answer.attack import attack
from bench.answer.company import attack_together
from bench.answer.context import Memory, RunContext
from bench.answer.elsewhere import Elsewhere, Usage
from bench.answer.provenance import provenance
from bench.answer.train import OnProgress, train_cell
from bench.cell import AnyCell, AttackCell, TrainingCell
from bench.device import name_of, tf32
from bench.errors import BenchError, DataError, NotApplicable, StorageError, with_place
from bench.record.schema import AttackResult, Cost, Environment, Record, Status, TrainingResult


def run(
    cell: AttackCell | TrainingCell,
    context: RunContext,
    memory: Memory,
    on_progress: OnProgress = lambda progress: None,
    isolation: Elsewhere | None = None,
    company: Sequence[AnyCell] = (),
) -> Record:
    """Run one cell to a record; `on_progress` hears of every round of a training.

    With `isolation` the code of plug-ins runs in processes of its own.  `company` are cells that come next: where there
    is room, they are attacked beside it.
    Raises `StorageError` where the run folder cannot be written, and `DataError` where the context says so:
    those are no fault of the cell's.
    """
    together = [other for other in (cell, *company) if isolation is None or not isolation.concerns(other)]
    if company and cell in together:
        attack_together(cell, together[1:], context, memory)
    began, cpu = time.perf_counter(), time.process_time()
    status: Status = "crashed"
    result: AttackResult | TrainingResult | None = None
    reason, cost = None, Cost()
    try:
        result, cost = _result(cell, context, memory, on_progress, isolation)
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
    elsewhere = isolation.usage() if isolation else Usage()
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
    """The record of a cell without a result, with the reason."""
    return Record(
        id=cell.id,
        status=status,
        reason=reason,
        cell=cell,
        provenance=provenance(cell, context.run),
        environment=environment(context),
    )


def _result(
    cell: AttackCell | TrainingCell,
    context: RunContext,
    memory: Memory,
    on_progress: OnProgress,
    isolation: Elsewhere | None,
) -> tuple[AttackResult | TrainingResult, Cost]:
    if isinstance(cell, TrainingCell):
        isolated = isolation is not None and isolation.concerns(cell)
        train = isolation.train if isolation is not None and isolated else train_cell
        trained, cost = train(cell, context, memory, on_progress)
        return trained, Cost(training=cost)
    attacked, attempt = attack(cell, context, memory, isolation)
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
    """The machine, and the versions that answered."""
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
