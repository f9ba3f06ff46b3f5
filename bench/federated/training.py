"""Training over rounds with the defense active: accuracy curve, checkpoints, and a state for bit-exact resumption.

A round's clients are divided into chunks that fit the processor caches.  Chunks run on several threads and are joined
in client order, so results are independent of the threads."""

import math
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
from bench.defenses.base import Tensors
from bench.federated import bayesian
from bench.federated.batches import Batches, local_batches, positions
from bench.federated.clients import Network, local_updates, network
from bench.federated.draws import StreamDraws
from bench.federated.pipeline import server_step
from bench.federated.spots import looked_at, spot
from bench.federated.stacks import Stack
from bench.federated.stages import DrawKey, Stages
from bench.kinds.texts import lengths
from bench.points import UPDATE_STAGES, Stage
from bench.record.checkpoints import outside_precision
from bench.record.schema import Spot
from bench.training import predicts_tokens

CHUNK = 10  # clients at once: more exceed the caches, fewer cost more calls (BENCHMARKS.md)
_ON_GPU = 2048  # examples of a local step at once: fewer launches for a round
_HELD = 0.25  # largest share of a GPU's free memory for the data set


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """State of a training between two rounds, from which the training continues: weights, the defense's memory, and
    results so far."""

    round: int
    """Number of finished rounds."""
    weights: dict[str, Tensor]
    """Global weights, name → (*shape)."""
    stages: Stages
    """The defense's stages with their states."""
    curve: tuple[tuple[int, float], ...] = ()
    """Pairs (round, test accuracy) of the tests so far."""
    checkpoints: Mapping[int, dict[str, Tensor]] = field(default_factory=dict)
    """Saved weights by round."""
    diverged: bool = False
    """True if the weights are no longer finite."""
    # costs for Bayesian accounting, if the cell requests it: level → (round, order)
    costs: Mapping[str, Tensor] = field(default_factory=dict)
    """Privacy costs of the Bayesian accountant, level → (round, order)."""
    spots: tuple[Spot, ...] = ()
    """Changes that the defense made to a client's update, measured in some rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """Inputs of a training that stay the same in all rounds: configuration, data, model, device."""

    cell: TrainingCell
    """Configuration of the training."""
    data: Data
    """Data set with its splits."""
    clients: NDArray[np.int64]
    """Each client's examples, (client, example), as positions in the training split."""
    model: nn.Module
    """Model; its parameters are not used."""
    device: torch.device = torch.device("cpu")
    """Device of the training."""
    chunk: int = CHUNK
    """Number of clients trained together."""
    threads: int = 1
    """Number of threads; each trains a chunk."""
    held: "Held | None" = None
    """The data on the device; None: each round copies its batches from the host."""

    @property
    def at_once(self) -> int:
        """Number of clients whose local training runs together in a batch on this device, at most; a round with more
        clients is split into chunks."""
        return self.chunk if self.device.type == "cpu" else max(self.chunk, _ON_GPU // self.cell.federated.batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A data set copied to the GPU of a training, so that its rounds need no copies from the host."""

    inputs: Tensor
    """Inputs of the training split, (example, *shape)."""
    labels: Tensor
    """Labels of the training split, (example,)."""
    test: Tensor
    """Inputs of the test split, (example, *shape)."""


def held(data: Data, device: torch.device) -> Held | None:
    """Return `data` on the GPU `device`; None on a CPU, or if the data set takes more than a quarter of the GPU's free
    memory."""
    if device.type == "cpu":
        return None
    size = 4 * math.prod(data.shape) * (len(data.training) + len(data.test))
    if size > _HELD * torch.cuda.mem_get_info(device)[0]:
        return None
    training, test = (torch.from_numpy(split.floats()).to(device) for split in (data.training, data.test))
    return Held(inputs=training, labels=torch.from_numpy(data.training.labels).to(device), test=test)


def begin(job: TrainingJob, weights: Tensors, stages: Stages) -> Progress:
    """Return the progress of a training before round 0. `job` holds the training's configuration and data, `weights`
    are the initial weights, name → (*shape), and `stages` the defense's stages with initial states. The progress
    includes the test accuracy of `weights`."""
    cell = job.cell
    job.model.to(job.device)
    current = {name: value.to(job.device) for name, value in weights.items()}
    return Progress(
        round=0,
        weights=current,
        stages=stages.to(job.device),
        curve=((0, _accuracy(job, current)),),
        checkpoints={0: current} if 0 in cell.checkpoints else {},
    )


def train(job: TrainingJob, start: Progress, proceed: Callable[[Progress], bool] = lambda progress: True) -> Progress:
    """Run the remaining rounds of a training; return its progress at the end (weights, states, accuracies). Test
    accuracies are measured every `test_every` rounds of the cell (experiment) and at the end.

    - `job`: configuration, data and model of the training; `start`: its progress so far.
    - `proceed`: called with the progress after every round; the training stops if the result is False.

    Weights outside single precision end the training with `Progress.diverged`, without an error."""
    cell, now, net = job.cell, start, network(job.model)
    accountant, examples = None, len(job.data.training)
    if cell.bayesian is not None:
        accountant = bayesian.accountant(cell.bayesian, cell.federated, start.stages, examples=examples)
    while now.round < cell.last_round and not now.diverged:
        now = _tested(job, _round(job, net, accountant, now))
        if not proceed(now):
            break
    return now if now.diverged or now.curve[-1][0] == now.round else _with_accuracy(job, now)


def _tested(job: TrainingJob, now: Progress) -> Progress:
    cell = job.cell
    if any(len(outside_precision(value)) for value in now.weights.values()):
        return replace(now, diverged=True)
    if now.round in cell.checkpoints:
        now = replace(now, checkpoints={**now.checkpoints, now.round: now.weights})
    if now.round % cell.test_every == 0 or now.round == cell.last_round:
        now = _with_accuracy(job, now)
    return now


def _with_accuracy(job: TrainingJob, now: Progress) -> Progress:
    return replace(now, curve=(*now.curve, (now.round, _accuracy(job, now.weights))))


def _accuracy(job: TrainingJob, weights: Tensors) -> float:
    inputs = None if job.held is None else job.held.test
    return accuracy(job.model, weights, job.data.test, job.cell.test_examples, inputs)


def _round(job: TrainingJob, net: Network, accountant: bayesian.Accountant | None, before: Progress) -> Progress:
    cell = job.cell
    chosen = participants(cell, before.round)
    draw_key = DrawKey(seed=cell.seed, draw=0, round=before.round)
    update, stages = updates(job, net, before, chosen, draw_key)
    costs = before.costs
    if accountant is not None:
        of_round = accountant.costs(
            net,
            bayesian.Round(
                weights=before.weights,
                stages=before.stages,
                draw_key=draw_key,
                batches=_batches(job, chosen, before.round),
                update=update,
            ),
        )
        costs = {
            level: torch.cat([costs.get(level, cost.new_empty(0, len(cost))), cost[None]])
            for level, cost in of_round.items()
        }
    shown: dict[Stage, dict[str, Tensor]] = {}
    for stage in UPDATE_STAGES:
        update, stages = stages.apply(stage, update, draw_key, chosen, weights=before.weights)
        shown[stage] = update
    mean = {name: value.mean(0) for name, value in update.items()}
    shown["aggregate"], stages = stages.apply("aggregate", mean, draw_key, weights=before.weights)
    weights = server_step(before.weights, shown["aggregate"], cell.federated)
    spots = before.spots
    if before.round in looked_at(cell.seed, cell.rounds):
        bare = replace(before, stages=before.stages.undefended)
        undefended, _ = updates(job, net, bare, chosen[:1], draw_key)
        seen = spot(before.round, undefended, shown, mean, cell.federated.unit)
        spots = spots if seen is None else (*spots, seen)
    return replace(before, round=before.round + 1, weights=weights, stages=stages, costs=costs, spots=spots)


def participants(cell: TrainingCell, round_: int) -> tuple[int, ...]:
    """Return the numbers of the clients in round `round_` of a training, in ascending order; they are drawn with the
    seed of `cell`."""
    drawn = rng.generator(cell.seed, "participants", round_).permutation(cell.federated.clients)
    return tuple(int(client) for client in np.sort(drawn[: cell.federated.per_round]))


def updates(
    job: TrainingJob, net: Network, before: Progress, chosen: tuple[int, ...], draw_key: DrawKey
) -> tuple[dict[str, Tensor], Stages]:
    """Return the updates of the clients `chosen` before stage `client` (the first stage after local training), name →
    (client, *shape), and the defense's stages with their states.

    - `job`: configuration and data of the training; `before`: its progress at the start of the round.
    - `net`: computes the gradients for many clients.
    - `draw_key`: key of the defense's random draws."""

    def part(clients: tuple[int, ...]) -> tuple[dict[str, Tensor], Stages]:
        draws = StreamDraws.of(draw_key.seed, draw_key.draw, draw_key.round, clients, job.device)
        return local_updates(
            net,
            job.model,
            before.weights,
            _batches(job, clients, before.round),
            job.cell.federated,
            before.stages.of(clients),
            draw_key,
            draws,
            classes=job.data.classes,
        )

    chunks = [chosen[start : start + job.at_once] for start in range(0, len(chosen), job.at_once)]
    # `torch.func` swaps weights into the shared module, so only a single thread may run
    single = job.device.type != "cpu" or not isinstance(net, Stack)
    with _threads(1 if single else job.threads) as many:
        parts = list(many(part, chunks))
    update = {name: torch.cat([sent[name] for sent, _ in parts]) for name in before.weights}
    return update, before.stages.joined(tuple(stages for _, stages in parts))


def _batches(job: TrainingJob, clients: tuple[int, ...], round_: int) -> Batches:
    if job.held is None:
        return local_batches(job.cell, job.data, job.clients, clients, round_)[0].to(job.device)
    at = torch.from_numpy(positions(job.cell, job.data, job.clients, clients, round_)).to(job.device)
    return Batches(clients=clients, inputs=job.held.inputs[at], labels=job.held.labels[at])


@contextmanager
def _threads(count: int) -> Iterator[Callable[..., Iterator[tuple[dict[str, Tensor], Stages]]]]:
    """Yield a `map` that runs each chunk in a thread. PyTorch uses a single thread meanwhile: its division of a product
    among threads affects the last bit."""
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


def accuracy(model: nn.Module, weights: Tensors, test: Split, examples: int, inputs: Tensor | None = None) -> float:
    """Return the share of test examples that a model classifies correctly, in [0, 1]; for a language model, the mean
    share of a text's next tokens that are predicted right.

    - `model`: computes the classes, with `weights` (name → (*shape)) instead of its own parameters.
    - `test`: the test split; only its first `examples` examples are used.
    - `inputs`: the split's inputs on the device of `weights`, (example, *shape); None: copied from `test`."""
    outputs, labels = _outputs(model, weights, test, examples, inputs)
    if predicts_tokens(model):
        return float(outputs[:, 1].double().mean())
    return int((outputs.argmax(-1) == labels).sum()) / len(labels)


def perplexity(model: nn.Module, weights: Tensors, test: Split, examples: int) -> float | None:
    """Return a language model's perplexity on test texts: exp of the mean cross entropy (natural logarithm) over all
    their next tokens, each text's end included. 1 means certain and right; equal chances for all tokens give the
    vocabulary's size. None for a classifier.

    - `model`: computes each text's mean loss, with `weights` (name → (*shape)) instead of its own parameters.
    - `test`: the test split; only its first `examples` texts are used."""
    if not predicts_tokens(model):
        return None
    losses = _outputs(model, weights, test, examples, None)[0][:, 0].double().cpu()
    tokens = torch.from_numpy(lengths(test.floats(slice(0, len(losses))))).double()
    return float((losses @ tokens / tokens.sum()).exp())


def _outputs(
    model: nn.Module, weights: Tensors, test: Split, examples: int, inputs: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the model's outputs (example, class) and the labels (example,) of the first test examples."""
    count, device = min(examples, len(test)), next(iter(weights.values())).device
    if inputs is None:
        inputs = torch.from_numpy(test.floats(slice(0, count))).to(device)
    with torch.no_grad():
        parts = [functional_call(model, dict(weights), (some,)) for some in inputs[:count].split(500)]
    return torch.cat(parts), torch.from_numpy(test.labels[:count]).to(device)
