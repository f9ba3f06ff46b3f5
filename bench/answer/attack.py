"""One attack cell, answered: the trip.

victims → reading → attacker → reconstruction → scores, with checks beside them → result
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.answer.checks import Diagnosis, finite
from bench.answer.context import Memory, RunContext
from bench.answer.elsewhere import Elsewhere
from bench.answer.gallery import granted_gallery, naming, of_first
from bench.answer.observation import observe_cell
from bench.answer.reconstruct import Attempt, reconstruct
from bench.answer.setup import prepare_source
from bench.answer.victims import Truth, draw_victims, originals_at, scored_once
from bench.cell import AttackCell
from bench.datasets.base import Data
from bench.points import point as point_of
from bench.record.cascade import NOTHING_LEFT, left
from bench.record.schema import AttackResult, ReadingScore, Trajectory
from bench.record.store import write_arrays
from bench.registry.mixing import EITHER, originals
from bench.scoring.assign import in_order
from bench.scoring.identify import Naming
from bench.scoring.lpips_metric import lpips_for
from bench.scoring.prior_only import prior_only_baselines
from bench.scoring.score import Scores, score
from bench.trip import TRACED, Reconstruction, Victims

GALLERY = 1000


def attack(
    cell: AttackCell, context: RunContext, memory: Memory, isolation: Elsewhere | None = None
) -> tuple[AttackResult, Attempt | None]:
    """Answer an attack cell: its result and the attempt that it cost, None where a cascade left it nothing.

    Raises `NotApplicable` where it cannot be run.

    With `isolation`, round and attack of a cell with a plug-in run in processes of their own; truth and scores are made
    here.
    """
    point = point_of(cell.point)
    apart = isolation if isolation is not None and isolation.concerns(cell) else None
    if apart is not None:
        apart.provide_data(cell, context, memory)
    source = prepare_source(cell, context, memory)
    rows = left(cell, context.run)
    if not rows:
        return AttackResult(readings=(), private=source.data.private, notes=(NOTHING_LEFT,)), None
    victims = draw_victims(cell, source, point)  # the truth: for the harness alone
    truth, *others = originals_at(cell, victims, point)
    gallery = granted_gallery(cell, source.data, truth)
    if apart is not None:
        diagnosis, attempt = apart.attacked(cell, context, memory)
    else:
        beside = memory.attacked.pop(cell.id, None)  # another cell; a cell before it may have been made again since
        if beside is not None and beside[0].reading.indices == rows:
            observation, attempt = beside
        else:
            observation = observe_cell(cell, context, memory)
            attempt = reconstruct(observation.reading, cell, context, memory)
        diagnosis = observation.diagnosis
    truth = scored_once(truth.of(rows), attempt.reconstruction.inputs.shape[1])
    named = None
    if gallery is not None:
        named = naming(gallery, truth, attempt.reconstruction, labels=cell.grants.labels)
        if named is not None and diagnosis.places is not None:
            named = replace(named, places=of_first(diagnosis.places, named.hits))
    scores = _score(cell, source.data, truth, attempt.reconstruction, named)
    scored = truth
    for other in others:
        both = truth, other.of(rows)
        scored, scores = _either(cell, source.data, both, scores, attempt.reconstruction, named)
    arrays = _save_arrays(context.run, scored, attempt.reconstruction, scores)
    result = AttackResult(
        readings=_readings(scores, diagnosis, truth, victims, rows),
        summary=scores.summary,
        distortion=diagnosis.of(rows),
        self_check=diagnosis.self_check,
        conditions=diagnosis.conditions,
        privacy=diagnosis.privacy,
        reference_db=diagnosis.reference_db,
        trajectory=_losses(attempt.reconstruction),
        private=source.data.private,
        lpips_absent=scores.lpips_absent,
        arrays=arrays,
        notes=(*attempt.reconstruction.notes, *[EITHER] * (originals(cell) > 1)),
    )
    return result, attempt


def _score(cell: AttackCell, data: Data, truth: Truth, reconstruction: Reconstruction, named: Naming | None) -> Scores:
    """The prior-only baselines know the labels, granted or not: the bar is the same for every attack and defense."""
    lpips, absent = lpips_for(data.kind)
    scores = score(
        truth.inputs.numpy(),
        truth.labels.numpy(),
        reconstruction,
        kind=data.kind,
        groups=data.groups,
        priors=prior_only_baselines(data.public.floats(), data.public.labels, truth.labels.numpy()),
        gallery=data.gallery.floats(slice(0, GALLERY)),
        lpips=lpips,
        named=named,
        gallery_labels=data.gallery.labels[:GALLERY] if cell.grants.labels else None,
    )
    return replace(scores, lpips_absent=absent)


def _either(
    cell: AttackCell,
    data: Data,
    truths: tuple[Truth, Truth],
    first: Scores,
    reconstruction: Reconstruction,
    named: Naming | None,
) -> tuple[Truth, Scores]:
    """What each reading of one mixed example is scored against, and the scores: of its two originals the one that
    leaked by the rule of every example, else the nearer; `first` are the scores against the first of them.

    A blind guess has two examples to hit: its chance is twice as large.
    """
    second = _score(cell, data, truths[1], reconstruction, named)
    moved = torch.tensor([_rank(b) > _rank(a) for a, b in zip(first.readings, second.readings, strict=True)])
    truth = truths[0].or_else(truths[1], moved)
    scores = _score(cell, data, truth, reconstruction, named)
    chance = first.summary.identification_chance
    doubled = None if chance is None else min(1.0, 2 * chance)
    return truth, replace(scores, summary=replace(scores.summary, identification_chance=doubled))


def _rank(reading: ReadingScore) -> tuple[bool, float]:
    """What orders the originals of one example: whether it leaked, then how near it came."""
    (example,) = reading.examples
    return example.success, -math.inf if example.psnr_db is None else example.psnr_db


def _readings(
    scores: Scores, diagnosis: Diagnosis, truth: Truth, victims: Victims, rows: tuple[int, ...]
) -> tuple[ReadingScore, ...]:
    """The scores of the readings that were attacked, with their distortion and whose examples they are of."""
    whole = len(rows) == len(victims)
    return tuple(
        replace(
            reading,
            snr_db=diagnosis.snr_db[n],
            cosine=diagnosis.cosine[n],
            clients=tuple(victims.clients[n]),
            indices=tuple(indices.flatten().tolist()),
            number=None if whole else n,
        )
        for n, reading, indices in zip(rows, scores.readings, truth.indices, strict=True)
    )


def _save_arrays(run: Path, truth: Truth, reconstruction: Reconstruction, scores: Scores) -> str:
    """Write truth, reconstruction and trajectory; the hash of their file.

    Every mark of a trajectory is paired as the end is: an example keeps its row from the start to the truth.
    """
    arrays: dict[str, NDArray[Any]] = {
        "truth": truth.inputs.numpy(),
        "reconstruction": in_order(reconstruction.inputs.numpy(), scores.order),
    }
    if reconstruction.trajectory is not None and reconstruction.history:
        way = reconstruction.trajectory[:, :TRACED].cpu().numpy()
        arrays["trajectory"] = np.stack([in_order(mark, scores.order[: way.shape[1]]) for mark in way])
    return write_arrays(run, arrays)


def _losses(reconstruction: Reconstruction) -> Trajectory | None:
    """The least losses at each mark; None where no trajectory was kept."""
    if reconstruction.trajectory is None or not reconstruction.history:
        return None
    return Trajectory(
        evaluations=tuple(mark for mark, _ in reconstruction.history),
        losses=tuple(finite(float(np.median(losses))) for _, losses in reconstruction.history),
    )
