"""Expansion of a matrix into cells, together with the necessary trainings and the reasons for impossible cells."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.cell import ATTACKER, AttackCell, CheckpointWeights, DataRef, Entry, Federated, TrainingCell, marked
from bench.matrix.entries import Registry
from bench.matrix.feasible import DatasetFacts, impossible
from bench.matrix.messages import Errors
from bench.matrix.read import Combination, Matrix
from bench.matrix.schema import Weights
from bench.registry import entries as _registry

FactsOf = Callable[[str, Mapping[str, Any]], DatasetFacts]  # of a data set's name and parameters; may raise DataError

# A cell of a cascade without its attacker.
_ANY_ATTACK = {name: AttackCell.model_fields[name].default for name in marked(AttackCell, ATTACKER)} | {
    "attack": Entry(name="any")
}


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """A cell (experiment) in a run's plan; `impossible` is the reason why the cell cannot run (recorded as n/a), or
    None."""

    cell: AttackCell | TrainingCell
    """The cell's configuration."""
    impossible: str | None
    """Reason why the cell cannot run; None if it can."""


@dataclass(slots=True)
class _Plan:
    facts_of: FactsOf
    registry: Registry
    facts: dict[str, DatasetFacts] = field(default_factory=dict)
    trainings: dict[str, TrainingCell] = field(default_factory=dict)
    kept: dict[str, set[int]] = field(default_factory=dict)

    def fields(self, row: Combination) -> dict[str, Any]:
        entry: Entry = row["dataset"]
        key = _key(entry)
        if key not in self.facts:
            self.facts[key] = self.facts_of(entry.name, entry.params)
        facts = self.facts[key]
        data = DataRef(name=entry.name, params=entry.params, sha256=facts.sha256, subset=facts.subset)
        return {"federated": Federated(), "defense": Entry(name="none"), **row, "dataset": data}

    def training(self, fields: Mapping[str, Any], rounds: set[int]) -> TrainingCell:
        """Plan a training cell that saves its weights after `rounds`, and return the cell. `fields` are the fields of
        the cell; `rounds` do not enter its id."""
        cell = TrainingCell(**fields)
        self.kept.setdefault(cell.id, set()).update(rounds)
        return self.trainings.setdefault(cell.id, cell)

    def attack(self, row: Combination) -> AttackCell:
        """Return the attack cell for a combination of axis values; plan also the training that makes the attacked
        weights, if necessary."""
        fields = self.fields(row)
        weights = fields.get("weights")
        if isinstance(weights, Weights) and weights.train is not None and weights.round is not None:
            names = ("dataset", "model", "federated", "seed")
            options = weights.train.written(type(weights.train).model_fields)
            training = {name: fields[name] for name in fields if name in names} | options
            cell = self.training({"defense": Entry(name="none"), **training}, {weights.round})
            series = cell.model_copy(update={"seed": 0}).id
            fields["weights"] = CheckpointWeights(training=cell.id, round=weights.round, series=series)
        return AttackCell(**fields)

    def reason(self, cell: AttackCell | TrainingCell) -> str | None:
        return impossible(cell, self.facts[_key(cell.dataset)], registry=self.registry)


def expand(matrix: Matrix, facts_of: FactsOf, *, registry: Registry = _registry) -> tuple[PlannedCell, ...]:
    """Expand a matrix to its cells (experiments) without duplicates: trainings, then attacks, in the order of blocks
    and axes. A cell that cannot run has a reason.

    - `facts_of`: function from a data set's name and parameters to its properties.
    - `registry`: lookup of registered attacks, defenses, data sets and models.

    Raises `MatrixError` if no cell is possible."""
    plan, errors = _Plan(facts_of=facts_of, registry=registry), Errors(matrix.file)
    attacks = [plan.attack(row) for row in matrix.attacks]
    for row in matrix.trainings:
        fields = plan.fields(row)
        plan.training(fields, set(fields.pop("checkpoints", ())))
    attacks = _in_cascades(attacks, plan) if matrix.cascade else attacks
    planned: dict[str, PlannedCell] = {}
    for id_, training in plan.trainings.items():
        kept = {"checkpoints": tuple(sorted(plan.kept[id_]))}
        planned[id_] = PlannedCell(training.model_copy(update=kept), plan.reason(training))
    for cell in attacks:
        reason = plan.reason(cell)
        if reason is None and isinstance(cell.weights, CheckpointWeights):
            reason = planned[cell.weights.training].impossible
        planned.setdefault(cell.id, PlannedCell(cell, reason))
    reasons = {item.impossible for item in planned.values()}
    if None not in reasons:
        shown = sorted(reason for reason in reasons if reason is not None)[:5]
        what = f"nothing is left: every cell is n/a: {'; '.join(shown)}"
        errors.add("axes" if attacks else "train", what, "add a combination that can run")
    errors.raise_any()
    return tuple(planned.values())


def _in_cascades(cells: Sequence[AttackCell], plan: _Plan) -> list[AttackCell]:
    """Return the cells with `after` set: the ids of earlier cells that differ only in the attack. Impossible cells and
    cells with a granted gallery or crafted weights are in no cascade."""
    chains: dict[str, tuple[str, ...]] = {}
    placed: dict[str, AttackCell] = {}
    for cell in cells:
        if cell.id in placed:
            continue
        placed[cell.id] = cell
        alike = not cell.grants.gallery and cell.grants.server == "listen"
        if alike and plan.reason(cell) is None:
            key = cell.model_copy(update=_ANY_ATTACK).canonical()
            before = chains.get(key, ())
            placed[cell.id] = later = cell.model_copy(update={"after": before})
            chains[key] = (*before, later.id)
    return list(placed.values())


def _key(entry: Entry) -> str:
    return json.dumps([entry.name, entry.params], sort_keys=True)
