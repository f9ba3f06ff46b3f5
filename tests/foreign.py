"""A cell's victims for a training outside the bench, and the cell's verdict on the update that this training sends."""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests import cells
from torch import Tensor, nn

from bench import api
from bench.answer.context import RunContext
from bench.answer.readings import take_reading
from bench.answer.truth import truth_from
from bench.answer.victims import batches_of
from bench.cell import AttackCell, Entry, Grants
from bench.record.schema import Summary
from bench.rng import Key
from bench.trip import Reading


@dataclass(frozen=True, kw_only=True)
class Own:
    """A cell of the bench with one client, and the client's secrets."""

    cell: AttackCell
    reading: Reading
    """The bench's own reading."""
    model: nn.Module
    """The cell's model at the cell's weights."""
    inputs: Tensor
    """(step, example, *shape): the client's batches."""
    labels: Tensor
    """(step, example)"""

    @property
    def public(self) -> dict[str, Any]:
        """Public examples, as `api.reading` and `api.score` take these."""
        return {"public": self.reading.public_inputs, "public_labels": self.reading.public_labels}

    def verdict(self, folder: Path) -> Summary:
        """The summary in the cell's own record."""
        found: Any = cells.answer(self.cell, folder).result
        summary: Summary = found.summary
        return summary

    def verdict_on(self, foreign: Reading) -> Summary:
        """The summary of the cell's attack on another reading of the same victims, through `bench.api`."""
        seed = Key.of_attacker(self.cell.seed).seed
        found = api.attack(foreign, self.cell.attack.name, evaluations=self.cell.evaluations, seed=seed)
        examples, labels = self.inputs.flatten(0, 1), self.labels.flatten()
        return api.score(found, examples, labels, **self.public, labels_known=True).summary


def own(defense: Entry, folder: Path, **changed: Any) -> Own:
    """A cell of a client in the digits, at type-1, with an attacker who knows the defense and the labels."""
    fields: dict[str, Any] = {
        "defense": defense,
        "attack": cells.entry("attacks", "map"),
        "point": "type-1",
        "knowledge": "adaptive",
        "readings": 1,
        "evaluations": 60,
        "grants": Grants(labels=True),
    }
    cell = cells.attack(**(fields | changed))
    setup = cells.prepared(cell, RunContext(run=folder), cells.MEMORY)
    drawn = truth_from(cell, setup.source)
    reading = take_reading(cell, setup, drawn, batches_of(cell, setup, drawn.victims, drawn.point))
    model = copy.deepcopy(setup.model)
    with torch.no_grad():
        for name, value in setup.weights.items():
            model.get_parameter(name).copy_(value)
    victims = drawn.victims
    return Own(cell=cell, reading=reading, model=model, inputs=victims.inputs[0, 0], labels=victims.labels[0, 0])


def flat(reading: Reading) -> Tensor:
    """(coordinate,): the reading's only observation."""
    return torch.cat([value[0, 0].double().flatten() for value in reading.values.values()])


def distance(one: Reading, other: Reading) -> float:
    """Distance of two readings, relative to the first."""
    return float((flat(one) - flat(other)).norm() / flat(one).norm())


def variance(reading: Reading) -> float:
    """The described variance of a coordinate, in squared gradient units."""
    assert reading.description is not None
    return reading.description.noise.variance
