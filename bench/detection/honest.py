"""Honest received models: initial, early and late rounds of small federations, with and without defenses."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.answer.context import Memory, RunContext
from bench.answer.setup import Setup, prepare_training
from bench.cell import AttackCell, Entry, TrainingCell
from bench.detectors.base import ReceivedModel
from bench.federated.training import TrainingJob, begin, train
from bench.gradients import one_hot
from bench.models.base import Model
from bench.parameters import values
from bench.registry import entries as registry
from bench.rng import generator
from bench.trip import Tensors

EARLY, LATE = 1, 20
AGES = (EARLY, 2, 6, LATE)  # finished rounds of models after the first round
_DEFENSES: tuple[tuple[str, dict[str, float]], ...] = (
    ("none", {}),
    ("dp-sgd", {"clip": 0.5, "sigma": 0.3}),
    ("gaussian", {"variance": 1e-5}),
)
_SENDERS, _BATCH = 4, 32  # of a training, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Honest:
    """Model that an honest server sends to its clients at the start of a round. Detectors should give no alarm for it;
    in a trial of an attack, the attack's weights take its place."""

    training: TrainingCell
    """Configuration of the federation's training."""
    setup: Setup
    """Data set, clients, model and defense of the federation that trains the model."""
    weights: Tensors
    """Weights that the server sends to the clients, name → (*shape)."""
    previous: Tensors
    """Weights at the start of the round before, name → (*shape). In the first round: initial weights that a client
    draws for comparison."""
    seed: int
    """Seed of the federation's training."""
    age: int
    """Number of finished rounds of the training."""


def honest_models(
    cell: AttackCell, seeds: Iterable[int], ages: tuple[int, ...], context: RunContext, memory: Memory
) -> Iterator[Honest]:
    """Train a small federation for each of the `seeds`, and yield the model that its honest server sends after each
    number of finished rounds in `ages`; models after a divergence are left out. The federations have the defenses none,
    `dp-sgd` and `gaussian` in turn.

    - `cell`: attack experiment that gives data set, model and federated setting.
    - `context`: the run's folders and device.
    - `memory`: keeps loaded data sets between calls."""
    federated = cell.federated
    per_round = min(_SENDERS, federated.per_round)
    small = federated.model_copy(update={"per_round": per_round, "batch": min(_BATCH, federated.batch)})
    for seed in seeds:
        name, params = _DEFENSES[seed % len(_DEFENSES)]
        training = TrainingCell(
            dataset=cell.dataset,
            model=cell.model,
            federated=small,
            defense=Entry(name=name, params=values(registry.instance("defenses", name, params))),
            rounds=max(1, *ages),
            seed=seed,
            checkpoints=tuple(sorted({max(0, round_) for age in ages for round_ in (age - 1, age)})),
            test_every=max(1, *ages),
            test_examples=1,
        )
        setup = prepare_training(training, context, memory)
        job = TrainingJob(cell=training, data=setup.data, clients=setup.clients, model=setup.model)
        start = begin(job, setup.weights, setup.stages)
        kept = (train(job, start) if max(ages) else start).checkpoints
        for age in ages:
            if age in kept:  # absent after a divergence
                before = kept[age - 1] if age else own_draw(cell, setup, seed)
                yield Honest(training=training, setup=setup, weights=kept[age], previous=before, seed=seed, age=age)


def later(
    sent: Honest, model: nn.Module, weights: Tensors, rounds: int, examples: int, *, every: int
) -> tuple[tuple[int, float], ...]:
    """Continue a federation honestly from the given weights, to see how long an attacked round lowers the accuracy.
    Return pairs (number of further rounds, test accuracy in [0, 1]); a training that diverges ends without a further
    pair.

    - `sent`: the honest model, whose federation trains; its defense starts anew.
    - `model`, `weights`: the trained module, with start weights, name → (*shape), such as those of an attack.
    - `rounds`: number of further rounds.
    - `examples`: largest number of test examples.
    - `every`: number of rounds between two measurements."""
    changes = {"rounds": rounds, "checkpoints": (), "test_every": every, "test_examples": examples}
    job = TrainingJob(
        cell=sent.training.model_copy(update=changes), data=sent.setup.data, clients=sent.setup.clients, model=model
    )
    return train(job, begin(job, weights, sent.setup.stages)).curve


def own_draw(cell: AttackCell, setup: Setup, seed: int) -> Tensors:
    """Return initial weights that a client draws itself, name → (*shape). In the first round, the client's detectors
    compare the received weights with these, in place of the weights of the round before.

    - `cell`, `setup`: attack experiment, and the values of its round, which give the model.
    - `seed`: seed of the federation, from which the client's draw follows; the server's initial weights differ."""
    architecture: Model = registry.of("models", cell.model)
    return architecture.initial(setup.model, int(generator(seed, "a client's own draw").integers(2**31)))


def received(cell: AttackCell, sent: Honest) -> ReceivedModel:
    """Return the knowledge of a random client of the federation after the client received the honest model `sent`: the
    weights of this round and of the round before, and the client's examples. The batch size of the experiment `cell` is
    the number of these examples."""
    draw = generator(sent.seed, "a client that looks", sent.age)
    client = sent.setup.clients[draw.integers(len(sent.setup.clients))]
    at = draw.permutation(client)[: cell.federated.batch]
    data = sent.setup.data.training
    return seen(sent, sent.weights, torch.from_numpy(data.floats(at)), torch.from_numpy(data.labels[at]))


def seen(sent: Honest, weights: Tensors, inputs: Tensor, labels: Tensor) -> ReceivedModel:
    """Return the knowledge of a client that received `weights`, name → (*shape), in place of the weights of the honest
    model `sent`. `inputs` (example, *shape) and `labels` (example,) are the client's examples."""
    return ReceivedModel(
        model=sent.setup.model,
        weights=weights,
        previous=sent.previous,
        inputs=inputs,
        targets=one_hot(labels, sent.setup.data.classes, inputs.dtype),
    )
