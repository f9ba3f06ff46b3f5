"""Weights that the attack chooses, for the grant `server`: a server that does not only listen."""

from dataclasses import replace

import torch

from bench.answer.public import known_public
from bench.answer.readings import reading_hash
from bench.answer.setup import Setup
from bench.answer.truth import CellTruth
from bench.attacks.base import Attack
from bench.cell import AttackCell
from bench.device import repeatable
from bench.errors import PluginError
from bench.registry import entries as registry
from bench.rng import Key
from bench.trip import Reading, Server, Tensors


def server_of(cell: AttackCell, setup: Setup, truth: CellTruth, seen: Reading | None = None) -> Server:
    """Return the knowledge of an attacking server before a round of `cell` (an experiment), from which its attack
    chooses the weights to send (`choose`). The server knows the model, the setting and public data, but no victim's
    example or label.

    - `setup`: model, honest weights and public data.
    - `truth`: only the granted gallery (candidates that include the true examples) is used.
    - `seen`: readings (observed updates) of the rounds before, with the grant `server = "rounds"`; None in the first
      round."""
    federated, point, gallery = cell.federated, truth.point, truth.gallery
    steps = federated.steps if point.after_training else 1
    public, labels = known_public(setup.data, cell.grants.public)
    return Server(
        model=setup.model,
        weights=setup.weights,
        kind=setup.data.kind,
        shape=setup.data.shape,
        classes=setup.data.classes,
        steps=steps,
        batch=federated.batch,
        rate=federated.rate,
        examples=point.examples(batch=federated.batch, steps=steps, senders=cell.senders),
        public_inputs=public,
        public_labels=labels,
        gallery_inputs=None if gallery is None else gallery.inputs,
        gallery_labels=None if gallery is None else gallery.labels,
        rounds=choices(cell),
        seen=seen,
    )


def choices(cell: AttackCell) -> int:
    """Return the number of times that the server of `cell` (an experiment) chooses the clients' weights: 0 for a server
    that only listens, once per round with the grant `server = "rounds"`, otherwise 1."""
    if cell.grants.varies:
        return cell.grants.repeated_readings
    return 0 if cell.grants.server == "listen" else 1


def choose(cell: AttackCell, server: Server) -> Tensors:
    """Return the model weights that the attack of the cell (an experiment) chooses, name → tensor. `server` is the
    attacking server's knowledge before the round. Names, shapes and values of the weights are not yet checked. Raises
    `NotApplicable` if the attack cannot choose weights for this model, and `PluginError` for an attack that chooses
    none or changes `server`."""
    attacker: Attack = registry.of("attacks", cell.attack)
    before = reading_hash(server)
    with repeatable("cpu"):
        weights = attacker.craft(server, Key.of_attacker(cell.seed))
    name = cell.attack.name
    if reading_hash(server) != before:
        raise PluginError(f"attack {name} wrote to the server that it was given; let craft work on copies")
    if weights is None:
        raise PluginError(f"attack {name} names the server {cell.grants.server} and chooses no weights; define craft")
    return weights


def received(cell: AttackCell, setup: Setup, weights: Tensors) -> Setup:
    """Return `setup`, the values for the round of `cell`, with the attack's `weights`, name → (*shape), in place of the
    honest weights; all clients receive them. The weights get the dtypes of the honest weights. Raises `PluginError` for
    missing or unknown names, other shapes and values that are not finite."""
    if fault := _fault(weights, setup.weights):
        raise PluginError(f"attack {cell.attack.name} chose weights {fault}; mend its craft")
    crafted = {name: weights[name].detach().to(value).contiguous() for name, value in setup.weights.items()}
    return replace(setup, weights=crafted, accuracy=None)


def _fault(weights: Tensors, honest: Tensors) -> str | None:
    """Return the fault of crafted `weights` in words, against the `honest` weights, name → (*shape); None if sound."""
    if names := sorted(weights.keys() ^ honest.keys()):
        return f"{'with an unknown' if names[0] in weights else 'without'} {names[0]}"
    for name, value in honest.items():
        if weights[name].shape != value.shape:
            return f"{name} of shape {tuple(weights[name].shape)}, expected {tuple(value.shape)}"
        if not torch.isfinite(weights[name].to(value)).all():
            return f"{name} with values that are not finite"
    return None
