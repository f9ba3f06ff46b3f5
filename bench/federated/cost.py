"""The time that a defense costs: a client's step with and without it, in turn in one process."""

import time
from dataclasses import dataclass, replace
from statistics import median, quantiles

from bench.federated.clients import network
from bench.federated.stages import Moment, Stages
from bench.federated.training import Course, Progress, participants, updates
from bench.points import SENT

PAIRS = 7
STEPS = 10  # local steps at most: enough to be steady, few beside a training's


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Milliseconds of one client's local step, medians over pairs; `ratio` of the pairs, `low` and `high` its
    quartiles.  The time of stages after the steps is divided among the steps."""

    milliseconds: float
    undefended: float
    ratio: float
    low: float
    high: float


def cost(course: Course, start: Progress) -> Cost:
    """The cost on one chunk of clients and one thread; the training itself is unchanged."""
    federated = course.cell.federated
    steps = min(STEPS, federated.steps)
    short = course.cell.model_copy(update={"federated": federated.model_copy(update={"steps": steps})})
    alone = replace(course, cell=short, threads=1)
    clients = participants(short, 0)[: course.chunk]
    net = network(course.model)
    bare = replace(start, stages=Stages(setting=start.stages.setting, transforms={}, states={}))

    def once(progress: Progress) -> float:
        began = time.perf_counter()
        moment = Moment(seed=short.seed, draw=0, round=0)
        sent, stages = updates(alone, net, progress, clients, moment)
        for stage in SENT:
            sent, stages = stages.apply(stage, sent, moment, clients, weights=progress.weights)
        return (time.perf_counter() - began) / len(clients) / steps * 1e3

    once(bare), once(start)  # the first calls of the library are slow
    pairs = [(once(bare), once(start)) for _ in range(PAIRS)]
    ratios = [defended / undefended for undefended, defended in pairs]
    low, _, high = quantiles(ratios, n=4)
    return Cost(
        milliseconds=median(defended for _, defended in pairs), undefended=median(pair[0] for pair in pairs),
        ratio=median(ratios), low=low, high=high,
    )  # fmt: skip
