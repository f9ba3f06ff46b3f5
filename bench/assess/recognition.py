"""Recognition of a client's examples behind a defense, measured as by `bench calibrate`.

The client sends the gradient over its examples. The attacker knows the defense, the labels and all examples except the
first, and ranks candidates by likelihood."""

from dataclasses import replace

import torch
from torch import Tensor

from bench import rng
from bench.assess.client import Client
from bench.assess.result import Figure
from bench.attacks.base import Attack
from bench.ceilings.by_epsilon import ceiling
from bench.cell import Federated
from bench.defenses.base import Defense, Public, Setting
from bench.errors import BenchError
from bench.federated.batches import Batches
from bench.federated.describe import describe, untouched
from bench.federated.pipeline import run_round
from bench.federated.privacy import at_point
from bench.federated.setting import setting_of
from bench.federated.stages import DrawKey, Stages, stages
from bench.points import point
from bench.registry import entries as registry
from bench.rng import Key
from bench.scoring.summary import share
from bench.trip import Budget, Reading

SERVER = point("type-0")
CLIENTS, SENDERS = 400, 10  # of the board's federation
_VICTIMS = 16
TRIALS = 32  # draws of the defense, over the victims
_CANDIDATES = 1000
_MOST_CHANCE = 0.3  # a larger share is named by chance: no figure
_NUMBERS = 5e7  # in a step's example gradients, at most


def examples_behind(client: Client) -> int:
    """Return the number of the client's examples behind the gradient (a mean) that the attacker sees in a trial of
    `recognised`: all examples, but at most 128, and fewer for large models because of memory."""
    size = sum(value.numel() for value in client.weights.values())
    return int(min(client.labels.shape[1], 128, max(2, _NUMBERS // size)))


def recognised(client: Client, defense: Defense, *, trials: int = TRIALS, seed: int = 0) -> Figure:
    """Measure the share of trials in which an attacker picks the true example among candidates; the other candidates
    are public examples. The attacker sees the gradient after `defense`, a mean over `examples_behind` examples of the
    client. The attacker knows the defense, the labels and all other examples behind the gradient.

    - `trials`: number of trials, each with new draws of the defense. Up to 16 examples of the client are victims in
      turn.
    - `seed`: seed of the trials.

    Raises `BenchError` without enough public examples with labels, and for a defense that cannot act on this model."""
    if client.public is None or client.public_labels is None:
        raise BenchError("recognition needs strangers: give public examples with labels")
    count = examples_behind(client)
    inputs, labels = client.inputs[0, :count], client.labels[0, :count]
    strangers = client.public[: _CANDIDATES - 1], client.public_labels[: _CANDIDATES - 1]
    victims = [trial % min(count, _VICTIMS) for trial in range(trials)]
    chances = [1 / (1 + int((strangers[1] == labels[victim]).sum())) for victim in victims]
    chance = sum(chances) / len(chances)
    if reason := too_few(chance):
        raise BenchError(reason)
    federated = Federated(clients=CLIENTS, per_round=SENDERS, batch=count, client_examples=count, rate=1.0)
    setting = _setting(client, federated)
    made = _stages(client, defense, setting)
    whole = made.first_mixing_stage is not None and SERVER.sees(made.first_mixing_stage)
    hits = []
    gallery: Attack = registry.instance("attacks", "gallery", {})
    for trial, victim in enumerate(victims):
        first = torch.tensor([victim, *(at for at in range(count) if at != victim)])
        batches = _round(client, inputs[first], labels[first], victim, whole=whole, seed=seed)
        order = torch.from_numpy(rng.generator(seed, "assess", "candidates", victim).permutation(1 + len(strangers[0])))
        candidates = (
            torch.cat([inputs[victim : victim + 1], strangers[0]])[order],
            torch.cat([labels[victim : victim + 1], strangers[1]])[order],
        )
        reading = _reading(client, batches, federated, made, DrawKey(seed=seed, draw=trial, round=0), candidates)
        found = gallery.reconstruct(reading, Budget(evaluations=1), Key.of_attacker(seed))
        assert found.named is not None
        hits.append(int(order[found.named[0, 0]]) == 0)
    spent, _ = at_point(
        defense,
        setting,
        SERVER,
        tensors=len(client.weights),
        coordinates=sum(value.numel() for value in client.weights.values()),
        round_=0,
        observations=1,
    )
    return Figure(share=share(hits, victims), of=len(hits), chance=chance, ceiling=ceiling(spent, chance))


def too_few(chance: float) -> str | None:
    """Return the reason, a line of text, why recognition is not measured if few strangers (other candidates) exist: a
    blind guess already picks the share `chance` of the true examples. None if `chance` is small enough for a
    measurement."""
    if chance <= _MOST_CHANCE:
        return None
    return f"too few strangers: chance names {chance:.0%}; give more public examples of the client's classes"


def _setting(client: Client, federated: Federated) -> Setting:
    assert client.public is not None and client.public_labels is not None
    public = Public(
        model=client.model,
        weights=client.weights,
        inputs=client.public,
        labels=client.public_labels,
        classes=client.classes,
    )
    return setting_of(federated, rounds=1, client_examples=federated.batch, public=public)


def _stages(client: Client, defense: Defense, setting: Setting) -> Stages:
    shapes = {name: tuple(value.shape) for name, value in client.weights.items()}
    try:
        return stages(defense, setting, shapes)
    except (ValueError, TypeError) as error:
        raise BenchError(f"{type(defense).__name__} cannot act on this model: {error}") from None


def _round(client: Client, inputs: Tensor, labels: Tensor, victim: int, *, whole: bool, seed: int) -> Batches:
    """Return the client's batch under its own number for each victim, and nine clients with public examples where the
    defense mixes a round's clients."""
    clients, rows, marks = [victim], [inputs], [labels]
    if whole:
        assert client.public is not None and client.public_labels is not None
        generator = rng.generator(seed, "assess", "others", victim)
        for other in range(1, SENDERS):
            drawn = torch.from_numpy(generator.integers(len(client.public), size=len(labels)))
            clients.append(CLIENTS - other)
            rows.append(client.public[drawn])
            marks.append(client.public_labels[drawn])
    return Batches(clients=tuple(clients), inputs=torch.stack(rows)[:, None], labels=torch.stack(marks)[:, None])


def _reading(
    client: Client,
    batches: Batches,
    federated: Federated,
    made: Stages,
    draws: DrawKey,
    candidates: tuple[Tensor, Tensor],
) -> Reading:
    assert client.public is not None and client.public_labels is not None
    taps = run_round(client.model, client.weights, batches, federated, made, draws, classes=client.classes)
    values = {name: value[:1, None] for name, value in taps.shown[SERVER.after].items()}
    labels = batches.labels[0, 0]
    reading = Reading(
        point=SERVER,
        linked="coordinate" if made.unlinked(SERVER) else "vector",
        values=values,
        weights={name: value[None] for name, value in client.weights.items()},
        rounds=(0,),
        indices=(0,),
        model=client.model,
        kind=client.kind,
        shape=client.shape,
        value_range=client.value_range,
        classes=client.classes,
        batch=federated.batch,
        steps=1,
        rate=federated.rate,
        unit=1.0,
        client_examples=federated.batch,
        senders=1,
        public_mean=client.public.mean(0),
        public_inputs=client.public,
        public_labels=client.public_labels,
        labels=labels[None, :1],
        gallery_inputs=candidates[0],
        gallery_labels=candidates[1],
        mates_inputs=batches.inputs[:1, 0, 1:],
        mates_labels=batches.labels[:1, 0, 1:],
    )
    if untouched(made, SERVER):
        return reading
    description = describe(
        made,
        SERVER,
        round_=0,
        unit=1.0,
        probe={name: value[0, 0] for name, value in values.items()},
        weights=client.weights,
        colluders=0.0,
    )
    return replace(reading, description=description)
