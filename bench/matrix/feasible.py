"""Reasons why a cell cannot run, found before a run and recorded as `n/a: reason`."""

import json
import warnings
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import torch

from bench.cell import AttackCell, Federated, TrainingCell
from bench.datasets.partition import client_size, refusal
from bench.errors import BenchError, NotApplicable
from bench.kinds.base import Kind
from bench.matrix.entries import Registry
from bench.parameters import build
from bench.points import POINTS, Scope
from bench.registry import entries as _registry

MOST_EXAMPLES = 16  # unknown examples behind one reading, for attacks that name no other number
MOST_STEPS = 10  # local steps
_SMALL = 20_000_000  # parameters of a model that is tried with real numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """Facts about a data set, such as shape and number of classes, by which planning decides if a cell (experiment) can
    run; the examples need not stay in memory."""

    sha256: str
    """Hash over the data arrays."""
    subset: str | None
    """Name of the subset; None for the whole data set."""
    kind: Kind
    """Kind of data: image, table or text."""
    shape: tuple[int, ...]
    """Shape of an example."""
    classes: int
    """Number of classes."""
    training: int
    """Number of training examples."""
    tokens: tuple[str, ...] = ()
    """Token of each id in a vocabulary; empty for data without one."""


def impossible(cell: AttackCell | TrainingCell, facts: DatasetFacts, *, registry: Registry = _registry) -> str | None:
    """Return the reason why a cell (experiment) cannot run, as far as known before the run; None if it can. `facts`
    are the data set's properties, and `registry` is the lookup of registered attacks, defenses, data sets and models.
    An attack may still refuse a reading (observed update) in the run."""
    reason = _model(cell, facts, registry) or _mixed(cell, facts, registry) or _clients(cell.federated, facts)
    if reason is not None or isinstance(cell, TrainingCell):
        return reason
    attack = registry.load("attacks", cell.attack.name)
    reason = _of_kind(attack, cell.attack.name, cell.dataset.name, facts.kind)
    return (
        reason
        or _server(cell, attack)
        or _silenced(cell)
        or _several(cell)
        or _dummies(cell)
        or _knowledge(cell, registry)
        or _unknowns(cell, registry)
        or _repeats(cell, facts.training)
    )


def examples(cell: AttackCell) -> int:
    """Return the number of distinct examples behind a reading (an observed update) of the cell (the experiment)."""
    federated = cell.federated
    return POINTS[cell.point].examples(batch=federated.batch, steps=federated.steps, senders=cell.senders)


def client_examples(federated: Federated, training: int) -> int:
    """Return the number of examples per client in the setting `federated`, for a data set with `training` training
    examples."""
    return client_size(
        federated.partition, training, clients=federated.clients, client_examples=federated.client_examples
    )


def _model(cell: AttackCell | TrainingCell, facts: DatasetFacts, registry: Registry) -> str | None:
    shape = tuple(facts.shape)
    model = registry.load("models", cell.model.name)
    if reason := _of_kind(model, cell.model.name, cell.dataset.name, facts.kind):
        return reason
    known = cell.model.params.get("tokens")
    count = len(facts.tokens)
    if isinstance(known, int) and count > known:
        return f"{cell.model.name} has {known} tokens, {cell.dataset.name} has {count}; set tokens = {count}"
    reason = unbuildable(model, json.dumps(cell.model.params, sort_keys=True), shape, facts.classes)
    return None if reason is None else f"{cell.model.name} does not fit {'×'.join(map(str, shape))}: {reason}"


def _of_kind(entry: type, name: str, dataset: str, kind: Kind) -> str | None:
    takes = tuple(getattr(entry, "takes", (kind.name,)))
    return None if kind.name in takes else f"{name} takes {' and '.join(takes)}, {dataset} is {kind.article}"


def _mixed(cell: AttackCell | TrainingCell, facts: DatasetFacts, registry: Registry) -> str | None:
    changes = "input" in getattr(registry.load("defenses", cell.defense.name), "stages", ())
    if changes and not facts.kind.differentiable:
        return f"{cell.defense.name} changes example values, and the values of {facts.kind.article} are no quantities"
    return None


@lru_cache(maxsize=256)
def unbuildable(model: type, params: str, shape: tuple[int, ...], classes: int) -> str | None:
    """Return the reason why the model cannot be built for this example shape and number of classes, or None if it can.
    `params` are the model's parameters as JSON text. A large model is built on torch's meta device, which needs no
    memory for weights. A small model is built on the CPU: the first use of the meta device is slow."""
    misfit = "its layers do not fit inputs of this size"
    for device in ("meta", "cpu"):
        try:
            instance: Any = build(model, json.loads(params), where="model")
            with torch.device(device), torch.no_grad(), torch.random.fork_rng(devices=()), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns of empty layers, which are reported here
                module = instance.build(shape, classes)
                size = sum(value.numel() for value in chain(module.parameters(), module.buffers()))
                if device == "meta" and size <= _SMALL:
                    continue
                logits = module(torch.zeros(2, *shape))
        except (NotApplicable, BenchError) as error:
            return str(error)
        except (RuntimeError, ValueError, ZeroDivisionError):
            continue  # some operations cannot do without values: try once more with them
        except Exception:
            return None  # not the shape's fault: the cell will crash, and its record will say why
        empty = any(parameter.numel() == 0 for parameter in module.parameters())
        return misfit if empty or tuple(logits.shape) != (2, classes) else None
    return misfit


def _clients(federated: Federated, facts: DatasetFacts) -> str | None:
    reason = refusal(
        federated.partition,
        facts.training,
        facts.classes,
        clients=federated.clients,
        client_examples=federated.client_examples,
    )
    if reason is not None:
        return reason
    size = client_examples(federated, facts.training)
    if size < federated.batch:
        return f"a client with {size} examples has no batch of {federated.batch}"
    return None


def _server(cell: AttackCell, attack: type) -> str | None:
    level, levels = cell.grants.server, tuple(getattr(attack, "servers", ("listen",)))
    if level in levels:
        return None
    if level == "listen":
        return (
            f'{cell.attack.name} needs a server that chooses the {levels[0]}: grants = [[{{ server = "{levels[0]}" }}]]'
        )
    return f"{cell.attack.name} does not choose the {cell.grants.chosen} of a server; leave out the grant server"


def _silenced(cell: AttackCell) -> str | None:
    if not cell.grants.silences:
        return None
    if POINTS[cell.point].scope is not Scope.AGGREGATE:
        return f"weights of each client change only a mean, not what {cell.point} shows; take point = aggregate"
    if cell.knowledge != "plain":
        return "a mean over clients with other weights has no description; take knowledge = plain"
    return None


def _several(cell: AttackCell) -> str | None:
    if not cell.grants.varies:
        return None
    if cell.grants.repeated_readings < 2:
        return "weights of each round need several rounds; grant repeated_readings = 2 or more, or server = weights"
    if cell.knowledge != "plain":
        return "several rounds with other weights have no description; take knowledge = plain"
    return None


def _dummies(cell: AttackCell) -> str | None:
    count, clients = cell.grants.dummies, cell.federated.per_round
    if count and POINTS[cell.point].scope is not Scope.AGGREGATE:
        return f"dummies change only a mean over clients, not what {cell.point} shows; take point = aggregate"
    if count >= clients:
        return f"{count} dummies in a round of {clients} clients leave no victim; take at most {clients - 1}"
    return None


def _knowledge(cell: AttackCell, registry: Registry) -> str | None:
    knows = tuple(getattr(registry.load("attacks", cell.attack.name), "knowledge", ("plain",)))
    if cell.knowledge not in knows:
        return f"{cell.attack.name} knows {' and '.join(knows)}, not {cell.knowledge}"
    return None


def _unknowns(cell: AttackCell, registry: Registry) -> str | None:
    steps = cell.federated.steps
    if POINTS[cell.point].after_training and steps > MOST_STEPS:
        return f"too many unknowns: {steps} local steps, at most {MOST_STEPS}"
    count = 1 if cell.grants.mates else examples(cell)
    most = getattr(registry.load("attacks", cell.attack.name), "most_examples", MOST_EXAMPLES)
    if count > most:
        return f"too many unknowns: {count} examples behind a reading, at most {most}"
    return None


def _repeats(cell: AttackCell, training: int) -> str | None:
    """Return a reason if a reading would use an example twice, or two readings share victims; None if not."""
    point, setting = POINTS[cell.point], cell.federated
    size, used = client_examples(setting, training), setting.batch * setting.steps
    if point.after_training and used > size:
        return f"a reading would hold the same example twice: {used} of a client with {size}"
    senders = 1 if cell.grants.mates else cell.senders
    distinct = setting.clients // senders
    if cell.readings > distinct:
        each = "one client" if senders == 1 else f"{senders} clients"
        return (
            f"{cell.readings} readings of {each} each, at most {distinct} are distinct with {setting.clients} clients"
        )
    return None
