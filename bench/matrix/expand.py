"""Combinations → cells: data by content, weights by training, what cannot run marked, none twice."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from bench.cell import AttackCell, CheckpointWeights, DataRef, Entry, Federated, InitialWeights, TrainingCell
from bench.matrix.blocks import Training
from bench.matrix.border import Registry
from bench.matrix.combine import Combination
from bench.matrix.faults import Faults
from bench.matrix.feasible import impossible
from bench.matrix.read import Matrix
from bench.matrix.weights import SeededFile, Trained
from bench.registry import entries as _registry

_NONE = Entry(name="none")


class Facts(Protocol):
    """What expansion needs to know of a data set; `training` counts the examples of that split."""

    @property
    def sha256(self) -> str: ...
    @property
    def subset(self) -> str | None: ...
    @property
    def kind(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def classes(self) -> int: ...
    @property
    def training(self) -> int: ...


class Resolver(Protocol):
    """Where facts on data come from; may raise `DataError`."""

    def data(self, name: str, params: Mapping[str, Any]) -> Facts: ...


@dataclass(frozen=True, slots=True)
class Planned:
    """A cell, and why it cannot run (it is then settled as `n/a: reason`), or None."""

    cell: AttackCell | TrainingCell
    impossible: str | None


@dataclass(slots=True)
class _Plan:
    """What is being gathered: facts by data set, trainings by id, the rounds to keep of each."""

    resolve: Resolver
    registry: Registry
    facts: dict[str, Facts] = field(default_factory=dict)
    trainings: dict[str, TrainingCell] = field(default_factory=dict)
    kept: dict[str, set[int]] = field(default_factory=dict)

    def data(self, entry: Entry) -> DataRef:
        key = _key(entry)
        if key not in self.facts:
            self.facts[key] = self.resolve.data(entry.name, entry.params)
        facts = self.facts[key]
        return DataRef(name=entry.name, params=entry.params, sha256=facts.sha256, subset=facts.subset)

    def training(self, cell: TrainingCell, rounds: set[int]) -> str:
        """Ask for a training and for these rounds of it; its id, which the rounds are no part of."""
        self.trainings.setdefault(cell.id, cell)
        self.kept.setdefault(cell.id, set()).update(rounds)
        return cell.id

    def reason(self, cell: AttackCell | TrainingCell) -> str | None:
        facts = self.facts[_key(cell.dataset)]
        return impossible(
            cell,
            data_kind=facts.kind,
            shape=tuple(facts.shape),
            classes=facts.classes,
            training=facts.training,
            registry=self.registry,
        )


def expand(matrix: Matrix, *, resolve: Resolver, registry: Registry = _registry) -> tuple[Planned, ...]:
    """Every cell of the matrix once: trainings first, then attacks, in the order of the axes.

    A combination that cannot run is planned with its reason.  Raises `MatrixError` where a seed lacks its
    weights file, where an entry of `include` that stands alone cannot run, or where nothing can.
    """
    plan, faults = _Plan(resolve=resolve, registry=registry), Faults(matrix.file)
    asked = [_asked(plan, row, matrix.settings, faults) for row in matrix.combinations]
    faults.settle()
    for block in matrix.trainings:
        plan.training(_training(plan, block), set(block.checkpoints))
    planned: dict[str, Planned] = {}
    for id_, training in plan.trainings.items():
        kept = {"checkpoints": tuple(sorted(plan.kept[id_]))}
        planned[id_] = Planned(training.model_copy(update=kept), plan.reason(training))
    for row, cell in zip(matrix.combinations, asked, strict=True):
        reason = plan.reason(cell)
        if reason is None and isinstance(cell.weights, CheckpointWeights):
            reason = planned[cell.weights.training].impossible
        if reason is not None and row.alone is not None:
            faults.add(f"include[{row.alone}]", f"stands alone and cannot run: {reason}", "change or drop it")
        planned.setdefault(cell.id, Planned(cell, reason))
    reasons = {item.impossible for item in planned.values()}
    if not faults and None not in reasons:
        told = sorted(reason for reason in reasons if reason is not None)
        what = f"nothing is left: every cell is n/a: {'; '.join(told[:5])}"
        faults.add("axes" if matrix.combinations else "train", what, "add a combination that can run")
    faults.settle()
    return tuple(planned.values())


def _asked(plan: _Plan, row: Combination, settings: Mapping[str, int], faults: Faults) -> AttackCell:
    """The attack cell of a combination; asks for the training that its weights wait for.

    Where a seed has no weights file, that is a fault, and the cell is of no use."""
    fields = {**settings, **{axis: choice.value for axis, choice in row.choices.items()}}
    fields["dataset"] = plan.data(fields["dataset"])
    fields.setdefault("federated", Federated())
    fields.setdefault("defense", _NONE)
    weights = fields.get("weights", InitialWeights())
    if isinstance(weights, SeededFile):
        fields["weights"] = weights.of(fields.get("seed", 0), faults) or InitialWeights()
    if isinstance(weights, Trained):
        options: dict[str, Any] = dict(weights.options)
        cell = TrainingCell(
            dataset=fields["dataset"], model=fields["model"], defense=weights.defense,
            federated=weights.federated or fields["federated"], seed=fields.get("seed", 0),
            rounds=weights.rounds, **options,
        )  # fmt: skip
        training = plan.training(cell, {weights.round})
        series = cell.model_copy(update={"seed": 0}).id
        fields["weights"] = CheckpointWeights(training=training, round=weights.round, series=series)
    return AttackCell(**fields)


def _training(plan: _Plan, training: Training) -> TrainingCell:
    fields: dict[str, Any] = {axis: choice.value for axis, choice in training.choices.items()}
    fields["dataset"] = plan.data(fields["dataset"])
    return TrainingCell(**{"federated": Federated(), "defense": _NONE, **fields, **training.options})


def _key(entry: Entry) -> str:
    return json.dumps([entry.name, entry.params], sort_keys=True)
