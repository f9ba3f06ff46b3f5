"""Train a model for a training cell, or resume from the state that an interrupted run with the same code saved."""

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch

from bench import __version__
from bench.answer.checks import privacy
from bench.answer.context import Memory, RunContext, TrainingProgress
from bench.answer.provenance import provenance
from bench.answer.setup import prepare_training
from bench.cell import TrainingCell
from bench.defenses.accounting.mechanism import Mechanism
from bench.device import repeatable
from bench.federated import bayesian, resume
from bench.federated.cost import step_cost
from bench.federated.privacy import Account, account
from bench.federated.training import Progress, TrainingJob, begin, held, perplexity, train
from bench.record.checkpoints import checkpoint_path, write_weights
from bench.record.schema import BayesianResult, Privacy, TrainingCost, TrainingResult

OnProgress = Callable[[TrainingProgress], None]


def train_cell(
    cell: TrainingCell, context: RunContext, memory: Memory, on_progress: OnProgress
) -> tuple[TrainingResult, TrainingCost]:
    """Train the model of a training cell (an experiment); return the result (such as accuracy and ε by round) and the
    cost (times per round and step). An interrupted training resumes from its saved state. `context` gives the run's
    folders, device and limits, and `memory` keeps loaded data sets. `on_progress` is called after every round."""
    with repeatable(context.device):
        return _trained(cell, context, memory, on_progress)


def _trained(
    cell: TrainingCell, context: RunContext, memory: Memory, on_progress: OnProgress
) -> tuple[TrainingResult, TrainingCost]:
    setup, device = prepare_training(cell, context, memory), torch.device(context.device)
    job = TrainingJob(
        cell=cell,
        data=setup.data,
        clients=setup.clients,
        model=setup.model,
        device=device,
        threads=context.threads,
        held=held(setup.data, device),
    )
    accounting = account(
        setup.defense,
        setup.setting,
        tensors=len(setup.weights),
        coordinates=setup.coordinates,
        examples=len(setup.data.training),
    )
    began = time.perf_counter()
    code, kept = asdict(provenance(cell, context.run)), resume.place(context.run, cell.id)
    start = resume.load(kept, begin(job, setup.weights, setup.stages), code, cell.checkpoints)
    saved = began

    def after(now: Progress) -> bool:
        nonlocal saved
        goes_on = _goes_on(cell, accounting, now)
        at = time.perf_counter()
        if goes_on and not now.diverged and at - saved > context.save_every:
            resume.save(kept, now, code)
            saved = at
        each = (at - began) / (now.round - start.round)
        on_progress(
            TrainingProgress(
                round=now.round,
                rounds=cell.last_round,
                accuracy=now.curve[-1][1],
                epsilon=accounting.so_far(now.round) if accounting else None,
                seconds_left=each * (cell.last_round - now.round),
            )
        )
        return goes_on

    end = train(job, start, after) if _goes_on(cell, accounting, start) else start
    seconds = time.perf_counter() - began
    checkpoints = {}
    for round_, tensors in sorted(end.checkpoints.items()):
        path = checkpoint_path(context.run, cell.id, round_)
        checkpoints[round_] = write_weights(path, tensors, _about(cell, round_, end))
    result = TrainingResult(
        accuracy=end.curve[-1][1] if not end.diverged else 0.0,
        curve=tuple(end.curve),
        perplexity=None if end.diverged else perplexity(job.model, end.weights, job.data.test, cell.test_examples),
        rounds=end.round,
        diverged=end.diverged,
        checkpoints=checkpoints,
        privacy=privacy((), None, setup.defense.no_epsilon) if accounting is None else _privacy(accounting, end),
        bayesian=_bayesian(cell, job, end, accounting),
        private=setup.data.private,
        upload_bytes=sum(value.numel() * value.element_size() for value in setup.weights.values()),
        spots=end.spots,
    )
    kept.unlink(missing_ok=True)
    each = round(seconds / max(1, end.round - start.round), 4)
    return result, replace(step_cost(job, start), seconds_per_round=each)


def _goes_on(cell: TrainingCell, accounting: Account | None, now: Progress) -> bool:
    if cell.until_accuracy is not None and now.curve[-1][1] >= cell.until_accuracy:
        return False
    if cell.until_epsilon is None or accounting is None:
        return True
    return accounting.so_far(now.round + 1) <= cell.until_epsilon


def _privacy(accounting: Account, end: Progress) -> Privacy:
    """Return ε by all accounting conventions; the main figure is the first with the convention `valid`."""
    if not end.round:
        return privacy((), None, "no round ran: the first would pass the limit")
    figures = accounting.released(end.round)
    return privacy(figures, next(figure for figure in figures if figure.convention == "valid"), None)


def _bayesian(cell: TrainingCell, job: TrainingJob, end: Progress, accounting: Account | None) -> BayesianResult | None:
    """Return ε by the Bayesian and the moments accountant after each tested round; None if `cell.bayesian` is None."""
    if cell.bayesian is None:
        return None
    accountant = bayesian.accountant(cell.bayesian, cell.federated, end.stages, examples=len(job.data.training))
    mechanism = accounting.mechanism if accounting and isinstance(accounting.mechanism, Mechanism) else None
    by_round = accountant.by_round(end.costs, mechanism, [round_ for round_, _ in end.curve])
    reports = accountant.reports(end.costs, end.round)
    return BayesianResult(by_round=by_round, spent=reports, absent=dict(accountant.absent))


def _about(cell: TrainingCell, round_: int, end: Progress) -> dict[str, Any]:
    return {
        "training": cell.id,
        "round": round_,
        "seed": cell.seed,
        "accuracy": dict(end.curve).get(round_),
        "dataset": cell.dataset.name,
        "data_sha256": cell.dataset.sha256,
        "bench": __version__,
    }
