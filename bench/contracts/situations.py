"""Small federated settings and readings for contracts, from two data sets without files, in float64."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from bench.answer.readings import take_reading
from bench.answer.setup import Setup
from bench.answer.truth import truth_from
from bench.answer.victims import batches_of, truth_at
from bench.cell import AttackCell, DataRef, Entry, Federated, Grants, Knowledge
from bench.datasets.base import Data
from bench.datasets.loading import load
from bench.defenses.base import Defense, Public, Setting
from bench.federated import setting
from bench.federated.batches import Batches, clients_of
from bench.federated.stages import stages
from bench.kinds.base import Kind
from bench.kinds.images import IMAGE
from bench.models.base import Model
from bench.points import point
from bench.registry import entries as registry
from bench.trip import Reading, Tensors, Victims

T = TypeVar("T")

_SMALLER = {"tiny-transformer": {"width": 64}}  # parameters of models for contracts: promises hold at any size


@cache
def data(name: str = "digits") -> Data:
    """Return a small data set from scikit-learn, for contracts (tests of entries' promises). `name` is `digits` (1×8×8
    pixels, 10 classes) or `cancer` (a table, 2 classes)."""
    return load(registry.instance("datasets", name, {}), name)


def model(
    name: str = "dlg-lenet", dataset: str = "digits", params: Mapping[str, Any] | None = None
) -> tuple[nn.Module, dict[str, Tensor]]:
    """Build the model `name` for the data set `dataset`, for contracts (tests of entries' promises). Return the module
    in eval mode, and its initial weights, name → (*shape), both in float64. `params` are the model's parameters, None
    its defaults."""
    architecture: Model = registry.instance("models", name, dict(_SMALLER.get(name, {}) if params is None else params))
    source = data(dataset)
    module = architecture.build(source.shape, source.classes).eval()
    weights = architecture.initial(module, 0)
    return module.double(), {name: value.double() for name, value in weights.items()}


@cache
def _public() -> Public:
    module, weights = model()
    pictures, few = data().public, slice(0, 60)
    return Public(
        model=module,
        weights=weights,
        inputs=torch.from_numpy(pictures.floats(few)).double(),
        labels=torch.from_numpy(pictures.labels[few]),
        classes=data().classes,
    )


def setting_of(federated: Federated, *, rounds: int = 2) -> Setting:
    """Return the federated setting `federated` in the form that defenses get (`Setting`), for a contract that builds a
    defense. `rounds` is the number of rounds of the training."""
    return setting.setting_of(
        federated, rounds=rounds, client_examples=federated.client_examples or 50, public=_public()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A batch of readings (observed updates) on which a contract tests an attack, with the true examples behind each
    reading."""

    words: str
    """The setting of the readings in words, for error messages."""
    reading: Reading
    """The readings that the tested attack gets."""
    truth: Tensor
    """(reading, example, *shape): true examples, hidden from the attack."""
    labels: Tensor
    """(reading, example): true labels, hidden from the attack."""


def situation(
    where: str = "type-2",
    *,
    batch: int = 1,
    steps: int = 1,
    readings: int = 3,
    observations: int = 1,
    same_label: bool = False,
    kind: Kind = IMAGE,
    knowledge: Knowledge = "plain",
    defense: str = "none",
    labels: bool = False,
) -> Situation:
    """Return readings (observed updates) with their true examples, for contracts (tests of an attack's promises). Data
    set and model are the defaults of `kind`.

    - `where`: interception point (`bench.points`), such as `type-1`: a client's update.
    - `batch`, `steps`: number of examples in a local step; number of local steps.
    - `readings`, `observations`: number of readings; number of repeated observations of each, with new noise.
    - `same_label`: True gives all examples of a reading the same label.
    - `kind`: kind of data, such as images.
    - `knowledge`: the attacker's knowledge about the defense named `defense`.
    - `labels`: True grants the labels to the attacker."""
    dataset, architecture = kind.default_dataset, kind.default_model
    source = data(dataset)
    module, weights = model(architecture, dataset)
    federated = Federated(
        algorithm="fedsgd" if steps == 1 else "fedavg", clients=12, per_round=2, steps=steps, batch=batch
    )
    cell = AttackCell(
        dataset=DataRef(name=dataset, sha256=source.sha256),
        model=Entry(name=architecture),
        federated=federated,
        defense=Entry(name=defense),
        attack=Entry(name="any"),
        point=where,
        readings=readings,
        knowledge=knowledge,
        grants=Grants(repeated_readings=observations, labels=labels),
    )
    at = point(where)
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    defended: Defense = registry.instance("defenses", defense, {})
    setup = Setup(
        data=source,
        model=module,
        weights=weights,
        clients=clients_of(cell, source),
        defense=defended,
        setting=setting_of(federated, rounds=1),
        stages=stages(defended, setting_of(federated, rounds=1), shapes),
    )
    truth = truth_from(cell, setup.source)
    batches = batches_of(cell, setup, truth.victims, at)
    batches = [replace(rows, inputs=rows.inputs.double()) for rows in batches]
    if same_label:
        victims, batches = _same_label(source, truth.victims, batches[0])
        truth = replace(truth, victims=victims, examples=truth_at(victims, at))
    reading = take_reading(cell, setup, truth, batches)
    words = f"{where}, B={batch}, L={steps}" + ("" if kind == IMAGE else f", {kind.article}")
    words += ", labels all the same" if same_label else ""
    words += f", behind {defense}" if defense != "none" else ""
    words += f", {observations} observations" if observations > 1 else ""
    return Situation(words=words, reading=reading, truth=truth.examples.inputs, labels=truth.examples.labels)


def _same_label(source: Data, victims: Victims, batches: Batches) -> tuple[Victims, list[Batches]]:
    """Replace the victims' examples so that all examples of reading r have the label r (modulo the classes)."""
    clients, steps, batch = batches.labels.shape
    chosen = torch.arange(clients) % source.classes
    labels = torch.from_numpy(source.training.labels)
    rows = torch.stack([torch.nonzero(labels == label)[: steps * batch, 0] for label in chosen])
    inputs = torch.from_numpy(source.training.floats(rows.numpy().reshape(clients, steps, batch))).double()
    repeated = chosen[:, None, None].expand(clients, steps, batch).clone()
    moved = replace(victims, inputs=inputs[:, None].float(), labels=repeated[:, None])
    return moved, [replace(batches, inputs=inputs, labels=repeated)]


def under_two_seeds(run: Callable[[], T]) -> tuple[T, T]:
    """Call the function `run` twice, under different global torch seeds, and return both results. A contract compares
    them, to find random numbers that do not come from a key."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = run()
        torch.manual_seed(2)
        return first, run()


def gap(first: Tensor, second: Tensor) -> float:
    """Return the largest absolute difference between the entries of `first` and `second`, relative for entries above 1;
    infinite for unequal shapes or different non-finite entries. Contracts compare results with this measure."""
    if first.shape != second.shape or not torch.equal(torch.isfinite(first), torch.isfinite(second)):
        return float("inf")
    a, b = first.double().nan_to_num(0, 0, 0), second.double().nan_to_num(0, 0, 0)
    if not a.numel():
        return 0.0
    return float(((a - b).abs() / torch.maximum(a.abs(), b.abs()).clamp_min(1)).max())


def differing(first: Tensors, second: Tensors) -> str | None:
    """Return the first name whose tensors in `first` and `second`, both name → tensor, differ in any bit; None if all
    are equal. NaN equals NaN. If the two have different names, return these names as text."""
    if list(first) != list(second):
        return ", ".join(sorted(set(first) ^ set(second))) or "the order of the names"
    for name, value in first.items():
        other = second[name]
        if value.dtype != other.dtype or value.shape != other.shape:
            return name
        if not torch.equal(value.nan_to_num(7.25), other.nan_to_num(7.25)):
            return name
    return None
