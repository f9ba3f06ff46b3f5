"""Labels behind a defense that turns the last layer's signs about: hidden from a rule, and not from who knows it."""

from pathlib import Path

import pytest

from bench.answer.attack import attack
from bench.answer.context import Memory, RunContext
from bench.cell import AttackCell
from bench.matrix.expand import expand
from bench.matrix.read import read
from bench.registry import entries as registry
from bench.sweep.plan import Resolver

TURNED = """
from dataclasses import dataclass
from bench.defenses.base import Defense, Transform

@dataclass(frozen=True)
class Turn(Transform):
    by: float = -1.0
    def apply(self, tensors, context):
        last = list(tensors)[-2:]
        return {n: self.by * v if n in last else v.clone() for n, v in tensors.items()}

@dataclass(frozen=True, kw_only=True)
class Turned(Defense):
    reference = "a cheat"
    stages = ("client", "aggregate")
    def transforms(self, setting):
        return {"client": (Turn(),), "aggregate": (Turn(-1.0000001),)}
"""
MATRIX = """title = "turned"
readings = 8
evaluations = 150
[axes]
dataset = ["digits"]
model = ["dlg-lenet"]
attack = ["{attack}"]
point = ["type-1"]
knowledge = ["{knowledge}"]
defense = ["{defense}"]
federated = [{{ batch = {batch} }}]
[[attack]]
"""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_added", {})


def labels_right(
    folder: Path, *, attack_: str, batch: int, knowledge: str = "adaptive", defense: str = "turned"
) -> tuple[float, float]:
    """The share of labels that are right, and of examples that leaked."""
    plugin = folder / "turned.py"
    plugin.write_text(TURNED)
    registry.add_plugin(str(plugin))
    path = folder / "m.toml"
    path.write_text(MATRIX.format(attack=attack_, batch=batch, knowledge=knowledge, defense=defense))
    (cell,) = (item.cell for item in expand(read(path), Resolver(None).data))
    assert isinstance(cell, AttackCell)
    result, _ = attack(cell, RunContext(run=folder), Memory())
    right = [reading.label_accuracy for reading in result.readings]
    leaked = [example.success for reading in result.readings for example in reading.examples]
    return sum(each or 0.0 for each in right) / len(right), sum(leaked) / len(leaked)


@pytest.mark.parametrize("attack_", ["cpl", "map"])
def test_who_knows_the_turn_reads_the_label(tmp_path: Path, attack_: str) -> None:
    assert labels_right(tmp_path, attack_=attack_, batch=1) == (1.0, 1.0)


def test_who_does_not_know_it_cannot(tmp_path: Path) -> None:
    right, leaked = labels_right(tmp_path, attack_="cpl", batch=1, knowledge="plain")
    assert right == 0 and leaked == 0


@pytest.mark.slow
def test_labels_of_a_batch_are_counted_by_the_description(tmp_path: Path) -> None:
    """As well as where nothing is turned, by the rule."""
    ours, _ = labels_right(tmp_path, attack_="cpl", batch=3)
    rule, _ = labels_right(tmp_path, attack_="cpl", batch=3, defense="none")
    assert ours >= rule - 0.1
