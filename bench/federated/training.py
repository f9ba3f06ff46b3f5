"""Multi-round training with the defense on: curve, checkpoints, and a state from which it goes on bit for bit.

A round's clients are cut into chunks that stay in the processor's caches; chunks run on several threads, and
are put together in the clients' order, so that no number depends on the threads.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from bench import rng
from bench.cell import TrainingCell
from bench.datasets.base import Data, Split
from bench.federated import bayesian
from bench.federated.batches import local_batches
from bench.federated.clients import Network, local_updates, network
from bench.federated.draws import StreamDraws
from bench.federated.pipeline import server_step
from bench.federated.stacks import Stack
from bench.federated.stages import Moment, Stages
from bench.points import SENT

Tensors = Mapping[str, Tensor]
CHUNK = 10  # clients at once: more spill out of the caches, fewer pay more calls (BENCHMARKS.md)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A training between two rounds: `round` rounds are done."""

    round: int
    weights: dict[str, Tensor]
    stages: Stages
    curve: tuple[tuple[int, float], ...] = ()
    checkpoints: Mapping[int, dict[str, Tensor]] = field(default_factory=dict)
    diverged: bool = False
    # of Bayesian accounting, where the cell asks: level → (round, order)
    costs: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a training is of: cell, data, who holds what (client, example), the model, and where it runs."""

    cell: TrainingCell
    data: Data
    clients: NDArray[np.int64]
    model: nn.Module
    device: torch.device = torch.device("cpu")
    chunk: int = CHUNK
    threads: int = 1


def begin(course: Course, weights: Tensors, stages: Stages) -> Progress:
    """Before round 0: the initial weights, tested."""
    cell = course.cell
    course.model.to(course.device)
    current = {name: value.to(course.device) for name, value in weights.items()}
    return Progress(
        round=0, weights=current, stages=stages,
        curve=((0, accuracy(course.model, current, course.data.test, cell.test_examples)),),
        checkpoints={0: current} if 0 in cell.checkpoints else {},
    )  # fmt: skip


def train(
    course: Course, start: Progress, told: Callable[[Progress], bool] = lambda progress: True
) -> Progress:
    """The rounds that are left, of K clients each; accuracy every `test_every` rounds and at the end.

    `told` hears of every round and says whether to go on.  Weights that are no longer finite end the
    training: that is a result, not a crash.
    """
    cell, now, of = course.cell, start, network(course.model)
    while now.round < cell.rounds and not now.diverged:
        now = _tested(course, _round(course, of, now))
        if not told(now):
            break
    return now if now.diverged or now.curve[-1][0] == now.round else _with_accuracy(course, now)


def _tested(course: Course, now: Progress) -> Progress:
    cell = course.cell
    if not all(bool(torch.isfinite(value).all()) for value in now.weights.values()):
        return replace(now, diverged=True)
    if now.round in cell.checkpoints:
        now = replace(now, checkpoints={**now.checkpoints, now.round: now.weights})
    if now.round % cell.test_every == 0 or now.round == cell.rounds:
        now = _with_accuracy(course, now)
    return now


def _with_accuracy(course: Course, now: Progress) -> Progress:
    found = accuracy(course.model, now.weights, course.data.test, course.cell.test_examples)
    return replace(now, curve=(*now.curve, (now.round, found)))


def _round(course: Course, of: Network, before: Progress) -> Progress:
    cell = course.cell
    chosen = participants(cell, before.round)
    moment = Moment(seed=cell.seed, draw=0, round=before.round)
    update, stages = updates(course, of, before, chosen, moment)
    costs = _with_costs(course, of, before, chosen, moment, update)
    for stage in SENT:
        update, stages = stages.apply(stage, update, moment, chosen, weights=before.weights)
    mean = {name: value.mean(0) for name, value in update.items()}
    mean, stages = stages.apply("aggregate", mean, moment, weights=before.weights)
    weights = server_step(before.weights, mean, cell.federated)
    return replace(before, round=before.round + 1, weights=weights, stages=stages, costs=costs)


def _with_costs(
    course: Course, of: Network, before: Progress, chosen: tuple[int, ...], moment: Moment, update: Tensors
) -> Mapping[str, Tensor]:
    """The costs so far with this round's, where the cell asks for Bayesian accounting."""
    cell = course.cell
    if cell.bayesian is None:
        return before.costs
    batches, _ = local_batches(cell, course.data, course.clients, chosen, before.round)
    of_round = bayesian.costs(
        cell.bayesian, of, cell.federated, len(course.data.training),
        bayesian.Round(
            weights=before.weights, stages=before.stages, moment=moment, batches=batches.to(course.device),
            update=update,
        ),
    )  # fmt: skip
    return {
        level: torch.cat([before.costs.get(level, value.new_empty(0, len(value))), value[None]])
        for level, value in of_round.items()
    }


def participants(cell: TrainingCell, round_: int) -> tuple[int, ...]:
    """The K clients of a round, by key, in ascending order."""
    drawn = rng.generator(cell.seed, "participants", round_).permutation(cell.federated.clients)
    return tuple(int(client) for client in np.sort(drawn[: cell.federated.per_round]))


def updates(
    course: Course, of: Network, before: Progress, chosen: tuple[int, ...], moment: Moment
) -> tuple[dict[str, Tensor], Stages]:
    """What the chosen clients would send before stage `client`, name → (client, *shape), and all states."""

    def part(clients: tuple[int, ...]) -> tuple[dict[str, Tensor], Stages]:
        batches, _ = local_batches(course.cell, course.data, course.clients, clients, before.round)
        draws = StreamDraws.of(moment.seed, moment.draw, moment.round, clients, course.device)
        return local_updates(
            of, course.model, before.weights, batches.to(course.device), course.cell.federated,
            before.stages.of(clients), moment, draws,
        )  # fmt: skip

    chunks = [chosen[start : start + course.chunk] for start in range(0, len(chosen), course.chunk)]
    # `torch.func` swaps weights into the one module there is: no two threads may do that at once
    alone = course.device.type != "cpu" or not isinstance(of, Stack)
    with _threads(1 if alone else course.threads) as many:
        found = list(many(part, chunks))
    update = {name: torch.cat([sent[name] for sent, _ in found]) for name in before.weights}
    return update, before.stages.joined(tuple(stages for _, stages in found))


@contextmanager
def _threads(count: int) -> Iterator[Callable[..., Iterator[tuple[dict[str, Tensor], Stages]]]]:
    """A `map` over chunks: each chunk is one thread's, and the library's own threads rest meanwhile, since
    how it shares out a product shows in the last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if count == 1:
            yield map
            return
        with ThreadPoolExecutor(count) as pool:
            yield pool.map
    finally:
        torch.set_num_threads(before)


def accuracy(model: nn.Module, weights: Tensors, test: Split, examples: int) -> float:
    """Share of the first `examples` test examples that are classified right."""
    count = min(examples, len(test))
    inputs = torch.from_numpy(test.floats(slice(0, count))).to(next(iter(weights.values())).device)
    right = 0
    with torch.no_grad():
        for start in range(0, count, 500):
            logits = functional_call(model, dict(weights), (inputs[start : start + 500],))
            right += int((logits.argmax(-1).cpu().numpy() == test.labels[start : start + len(logits)]).sum())
    return right / count
