"""Time cost of a defense: a client's step with and without the defense, alternating in a single process."""

import time
from dataclasses import replace
from statistics import median, quantiles

from bench.device import synchronize
from bench.federated.clients import network
from bench.federated.stages import DrawKey
from bench.federated.training import Progress, TrainingJob, participants, updates
from bench.points import UPDATE_STAGES
from bench.record.schema import TrainingCost

PAIRS = 7
STEPS = 10  # maximum number of local steps: enough for stable figures, few compared to a training


def step_cost(job: TrainingJob, start: Progress) -> TrainingCost:
    """Measure the time that a defense costs: milliseconds per client and local step with and without the defense, and
    the ratio with quartiles. `job` holds the training's configuration and data. `start` holds the weights and states at
    which steps are timed; it stays unchanged.

    Figures are medians over pairs of short runs, for a few clients in a single thread. A run's time includes the stages
    after local training, divided among the steps."""
    federated = job.cell.federated
    steps = min(STEPS, federated.steps)
    short = job.cell.model_copy(update={"federated": federated.model_copy(update={"steps": steps})})
    alone = replace(job, cell=short, threads=1)
    clients = participants(short, 0)[: job.chunk]
    net = network(job.model)
    bare = replace(start, stages=start.stages.undefended)

    def once(progress: Progress) -> float:
        synchronize(job.device)
        began = time.perf_counter()
        draw_key = DrawKey(seed=short.seed, draw=0, round=0)
        sent, stages = updates(alone, net, progress, clients, draw_key)
        for stage in UPDATE_STAGES:
            sent, stages = stages.apply(stage, sent, draw_key, clients, weights=progress.weights)
        synchronize(job.device)
        return (time.perf_counter() - began) / len(clients) / steps * 1e3

    once(bare), once(start)  # warm-up: the library's first calls are slow
    if not any(start.stages.transforms.values()):  # no defense: the baseline of the comparison
        alike = round(median(once(bare) for _ in range(PAIRS)), 4)
        return TrainingCost(
            milliseconds_per_step=alike,
            undefended_milliseconds_per_step=alike,
            overhead=1.0,
            overhead_quartiles=(1.0, 1.0),
        )
    pairs = [(once(bare), once(start)) for _ in range(PAIRS)]
    ratios = [defended / undefended for undefended, defended in pairs]
    low, _, high = quantiles(ratios, n=4)
    return TrainingCost(
        milliseconds_per_step=round(median(defended for _, defended in pairs), 4),
        undefended_milliseconds_per_step=round(median(undefended for undefended, _ in pairs), 4),
        overhead=round(median(ratios), 3),
        overhead_quartiles=(round(low, 3), round(high, 3)),
    )
