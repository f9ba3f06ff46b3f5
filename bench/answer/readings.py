"""Run a federated round with the defense's stages, and observe it at the cell's interception point."""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor, nn

from bench.answer.public import known_public
from bench.answer.setup import Setup
from bench.answer.truth import CellTruth
from bench.cell import AttackCell
from bench.errors import PluginError
from bench.federated.batches import Batches
from bench.federated.describe import describe, untouched
from bench.federated.pipeline import run_round
from bench.federated.simulator import Kept, RoundSimulator, simulator_name, simulator_seed
from bench.federated.stages import DrawKey, Stages
from bench.points import Point, Scope
from bench.trip import Description, Reading, Server, Tensors

_MOST = 2048  # examples whose gradients are computed at once
_NUMBERS = 1 << 27  # in these gradients: half a GiB


def take_reading(
    cell: AttackCell,
    setup: Setup,
    truth: CellTruth,
    batches: Sequence[Batches],
    simulations: Kept | None = None,
    rounds: Sequence[Setup] = (),
    before: Reading | None = None,
) -> Reading:
    """Run the defended round of the cell (an experiment). Return the attacker's readings (observed updates) at the
    interception point, with everything else that the attacker knows.

    - `setup`: model, weights and defense of the round.
    - `truth`: true examples, for granted labels and other grants.
    - `batches`: the clients' batches in the round.
    - `simulations`: cache of simulated readings for black-box attackers; None for no cache.
    - `rounds`: values of each round if rounds differ: in the weights that an attacking server sends, or as rounds of a
      training; empty: all rounds have the values of `setup`.
    - `before`: readings of the first rounds in `rounds`, which are reused; None: all rounds are run."""
    point, gallery, mates = truth.point, truth.gallery, truth.mates
    data, grants, federated = setup.data, cell.grants, cell.federated
    several = [*rounds] or [setup] * grants.repeated_readings
    count, earlier = len(several), 0 if before is None else len(before.rounds)
    shown = [
        observe(cell, several[number], point, batches, several[number].stages, observation=number)
        for number in range(earlier, count)
    ]
    values = {name: torch.stack([one[name] for one in shown], 1) for name in setup.weights}
    if before is not None:
        values = {name: torch.cat([before.values[name], value], 1) for name, value in values.items()}
    unit = federated.unit if point.after_training else 1.0
    public, public_labels = known_public(data, grants.public)
    reading = Reading(
        point=point,
        linked="coordinate" if setup.stages.unlinked(point) else "vector",
        values=values,
        weights={
            name: torch.stack([each.weights[name] for each in rounds]) if rounds else value.expand(count, *value.shape)
            for name, value in setup.weights.items()
        },
        rounds=tuple(each.round for each in several),
        indices=tuple(range(cell.readings)),
        model=setup.model,
        kind=data.kind,
        shape=data.shape,
        value_range=(0.0, 1.0),
        classes=data.classes,
        batch=federated.batch,
        steps=federated.steps if point.after_training else 1,
        rate=federated.rate,
        unit=unit,
        client_examples=setup.setting.client_examples,
        senders=cell.senders,
        public_mean=data.kind.values.centre(public),
        public_inputs=public,
        public_labels=public_labels,
        labels=truth.examples.labels.sort(1).values if grants.labels else None,
        repeated_readings=count,
        gallery_inputs=None if gallery is None else gallery.inputs,
        gallery_labels=None if gallery is None else gallery.labels,
        mates_inputs=None if mates is None else mates.inputs,
        mates_labels=None if mates is None else mates.labels,
    )
    if cell.knowledge == "black-box":
        return replace(reading, simulator=simulator(cell, setup, point, reading, simulations))
    if cell.knowledge == "plain" or untouched(setup.stages, point):
        return reading

    def described(number: int, at: Setup) -> Description | None:
        return describe(
            at.stages,
            point,
            round_=at.round,
            unit=unit * reading.steps,
            probe={name: value[0, number] for name, value in reading.values.items()},
            weights=at.weights,
            colluders=grants.colluders,
        )

    if reading.several_rounds:  # the defense's noise and memory may differ
        each = [described(number, at) for number, at in enumerate(several)]
        known = tuple(one for one in each if one is not None)
        return replace(reading, description=known[0], descriptions=known) if len(known) == count else reading
    return replace(reading, description=described(0, setup))


def simulator(
    cell: AttackCell, setup: Setup, point: Point, reading: Reading, simulations: Kept | None = None
) -> RoundSimulator:
    """Return the defended round of the cell (an experiment) as a black box, for attackers without a description of the
    defense. It is a function that runs the round on examples which the attacker chooses, with random draws independent
    of the victims' draws.

    - `setup`, `point`: model, weights and defense of the round; the interception point.
    - `reading`: the attacker's readings (observed updates), for the number of observations and the public examples that
      fill a batch.
    - `simulations`: cache of simulated readings, shared by several cells; None: a cache for this cell only."""
    granted = cell.grants.model_dump(exclude={"labels"})  # all grants with an effect on the round
    return RoundSimulator(
        name=simulator_name(
            setup.stages,
            point,
            cell.federated,
            defense=cell.defense.model_dump_json(),
            data=f"{setup.data.sha256} {cell.model} {cell.seed} {setup.round} {granted}",
            weights=setup.weights,
        ),
        model=setup.model,
        weights=setup.weights,
        stages=setup.stages,
        federated=cell.federated,
        point=point,
        draw_key=DrawKey(seed=simulator_seed(cell.seed), draw=0, round=setup.round, colluders=cell.grants.colluders),
        classes=setup.data.classes,
        observations=len(reading.rounds),
        public_inputs=reading.public_inputs,
        public_labels=reading.public_labels,
        whole_round=setup.whole_round,
        kept={} if simulations is None else simulations,
    )


def observe(
    cell: AttackCell, setup: Setup, point: Point, batches: Sequence[Batches], stages: Stages, *, observation: int = 0
) -> dict[str, Tensor]:
    """Run the federated round of `cell` (an experiment), and return the gradients or updates that an attacker observes
    at the interception `point`, name → (reading, *shape).

    - `setup`: model and weights of the round.
    - `batches`: the observed clients' batches.
    - `stages`: the defense's transforms by stage, or those of an undefended round.
    - `observation`: number of a repeated observation of the same victims, from 0; each has new noise.

    Raises `PluginError` for a defense that writes to the weights or sends NaN or infinity."""
    draw_key = DrawKey(
        seed=cell.seed, draw=cell.draw, round=setup.round, observation=observation, colluders=cell.grants.colluders
    )
    federated, classes = cell.federated, setup.data.classes
    weights = {name: value.clone() for name, value in setup.weights.items()}
    apart = point.scope is not Scope.AGGREGATE and not setup.whole_round  # a client's reading needs no other client
    if apart:
        numbers = sum(value.numel() for value in weights.values())
        batches = [piece for batch in batches for piece in _pieces(batch, numbers)]
    shown = []
    for batch in batches:
        received = _silenced(weights, len(batch.clients)) if cell.grants.silences else None
        taps = run_round(setup.model, weights, batch, federated, stages, draw_key, classes=classes, received=received)
        factor = len(batch.clients) if cell.grants.silences else 1
        shown.append({name: factor * value for name, value in _plain(taps.shown[point.after]).items()})
    if any(not torch.equal(value, setup.weights[name]) for name, value in weights.items()):
        raise PluginError(f"defense {cell.defense.name} wrote to the round's weights; let it work on copies")
    if not all(bool(torch.isfinite(value).all()) for one in shown for value in one.values()):
        raise PluginError(f"defense {cell.defense.name} sends what is no number; mend it")
    if point.scope is Scope.AGGREGATE:
        return {name: torch.stack([one[name] for one in shown]) for name in setup.weights}
    if apart:
        return {name: torch.cat([one[name] for one in shown]) for name in setup.weights}
    # each entry is a reading's whole round, with the victim first
    return {name: torch.stack([one[name][0] for one in shown]) for name in setup.weights}


def _silenced(weights: Tensors, clients: int) -> dict[str, Tensor]:
    """Return the weights that a server sends to each of a round's `clients`, name → (client, *shape): `weights`, name →
    (*shape), to the first client, and zeros to the others. A layer above zero weights returns no gradient: only the
    last layer's gradient is not zero, and with ReLU only its bias."""
    first = torch.arange(clients) == 0
    return {
        name: value.where(first.reshape(-1, *[1] * value.dim()), torch.zeros_like(value))
        for name, value in weights.items()
    }


def _pieces(batch: Batches, parameters: int) -> list[Batches]:
    """Return the clients in pieces of at most `_MOST` examples, fewer for models with many `parameters`, a client at
    least: example gradients need memory."""
    clients, steps, examples = batch.labels.shape
    most = min(_MOST, _NUMBERS // parameters)
    size = max(1, most // (steps * examples))
    return [batch[slice(start, start + size)] for start in range(0, clients, size)]


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.as_subclass(Tensor) for name, value in tensors.items()}


def reading_hash(reading: Reading | Server) -> str:
    """Return the SHA-256 hash of everything that an attacker knows: all fields of `reading` (observed updates, or a
    server's knowledge before the round), except the name of the interception point. Readings with equal hashes are
    attacked once."""
    digest = hashlib.sha256()
    for field in fields(reading):
        value = reading.examples if field.name == "point" else getattr(reading, field.name)
        value = reading_hash(value) if isinstance(value, Reading) else value
        tensors = value if isinstance(value, Mapping) else {}
        if isinstance(value, nn.Module):
            tensors, value = dict(value.named_buffers()), str(value)  # the field `weights` holds its weights
        elif isinstance(value, Tensor):
            tensors = {"": value}
        digest.update(f"{field.name} {sorted(tensors) if tensors else value!r}".encode())
        for _, tensor in sorted(tensors.items()):
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def to_device(reading: Reading, device: torch.device) -> Reading:
    """Return a copy of `reading` (observed updates) with model, observed values and weights on `device`; labels and
    public data stay on the CPU."""
    if device.type == "cpu":
        return reading
    return replace(
        reading,
        model=copy.deepcopy(reading.model).to(device),  # `to` moves a module in place
        values={name: value.to(device) for name, value in reading.values.items()},
        weights={name: value.to(device) for name, value in reading.weights.items()},
    )
