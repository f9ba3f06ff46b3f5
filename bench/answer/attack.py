"""Run an attack cell: draw the true examples, observe the federated round, attack the readings (observed updates),
score the reconstruction."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.answer.context import Memory, RunContext
from bench.answer.originals import EITHER
from bench.answer.place import HERE, Place
from bench.answer.scores import Scored, score_truth
from bench.answer.truth import CellTruth, draw_truth
from bench.answer.values import Attempt, Diagnosis, finite
from bench.cell import AttackCell
from bench.record.cascade import NOTHING_LEFT
from bench.record.schema import AttackResult, ReadingScore, Trajectory
from bench.record.store import write_arrays
from bench.registry.mixing import originals
from bench.scoring.assign import in_order
from bench.trip import TRACED, Reconstruction


def attack(
    cell: AttackCell, context: RunContext, memory: Memory, place: Place = HERE
) -> tuple[AttackResult, Attempt | None]:
    """Run an attack cell (an experiment); return its result for the record, and the attack's reconstruction with its
    cost. In a cascade (attacks one after the other), readings (observed updates) whose examples all leaked to earlier
    cells are skipped; if no reading remains, the reconstruction is None. Raises `NotApplicable` for a cell that cannot
    run.

    - `context`: the run's folders, device and limits.
    - `memory`: data sets and results that the worker process keeps between cells.
    - `place`: runner of the round and of the attack, in this process or in others; the true examples stay here."""
    truth = draw_truth(cell, place.data(cell, context, memory), context.run)
    if not truth.rows:
        return AttackResult(readings=(), private=truth.source.data.private, notes=(NOTHING_LEFT,)), None
    diagnosis, attempt = place.attacked(cell, truth, context, memory)
    claim = attempt.reconstruction
    scored = score_truth(cell, truth, claim, diagnosis)
    arrays = _save_arrays(context.run, scored, claim)
    return _result(cell, truth, diagnosis, scored, claim, arrays), attempt


def _result(
    cell: AttackCell, truth: CellTruth, diagnosis: Diagnosis, scored: Scored, claim: Reconstruction, arrays: str
) -> AttackResult:
    return AttackResult(
        data=truth.source.data.kind.name,
        readings=_readings(truth, scored, diagnosis),
        summary=scored.scores.summary,
        distortion=diagnosis.distortion,
        self_check=diagnosis.self_check,
        conditions=diagnosis.conditions,
        privacy=diagnosis.privacy,
        reference_db=diagnosis.reference_db,
        trajectory=_losses(claim),
        private=truth.source.data.private,
        lpips_absent=scored.scores.lpips_absent,
        st_lpips_absent=scored.scores.st_lpips_absent,
        arrays=arrays,
        notes=(*claim.notes, *((EITHER,) if originals(cell) > 1 else ())),
    )


def _readings(truth: CellTruth, scored: Scored, diagnosis: Diagnosis) -> tuple[ReadingScore, ...]:
    whole = len(truth.rows) == len(truth.victims)
    return tuple(
        replace(
            reading,
            snr_db=snr_db,
            cosine=cosine,
            clients=tuple(truth.victims.clients[n]),
            indices=tuple(indices.flatten().tolist()),
            number=None if whole else n,
        )
        for n, reading, indices, snr_db, cosine in zip(
            truth.rows, scored.scores.readings, scored.truth.indices, diagnosis.snr_db, diagnosis.cosine, strict=True
        )
    )


def _save_arrays(run: Path, scored: Scored, claim: Reconstruction) -> str:
    order = scored.scores.order
    arrays: dict[str, NDArray[Any]] = {
        "truth": scored.truth.inputs.numpy(),
        "reconstruction": in_order(claim.inputs.numpy(), order),
    }
    if claim.trajectory is not None and claim.history:  # all marks use the final matching: an example keeps its row
        way = claim.trajectory[:, :TRACED].cpu().numpy()
        arrays["trajectory"] = np.stack([in_order(mark, order[: way.shape[1]]) for mark in way])
    return write_arrays(run, arrays)


def _losses(claim: Reconstruction) -> Trajectory | None:
    if claim.trajectory is None or not claim.history:
        return None
    return Trajectory(
        evaluations=tuple(mark for mark, _ in claim.history),
        losses=tuple(finite(float(np.median(losses))) for _, losses in claim.history),
    )
