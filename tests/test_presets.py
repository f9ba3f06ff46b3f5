"""Every shipped preset is a valid matrix, says what it asks, and plans cells that can run."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import registry
from bench.cell import AttackCell
from bench.datasets.base import Dataset
from bench.errors import MatrixError
from bench.matrix.expand import Planned, expand
from bench.matrix.read import presets, read
from bench.plan import Resolver

# Shape, classes and examples for training, five sixths of what is not for testing.
SHAPES = {
    "cancer": ((30,), 2, 355), "adult": ((105,), 2, 30526), "digits": ((1, 8, 8), 10, 1122),
    "mnist": ((1, 28, 28), 10, 50000), "fashion-mnist": ((1, 28, 28), 10, 50000),
    "cifar10": ((3, 32, 32), 10, 41667), "cifar100": ((3, 32, 32), 100, 41667),
    "lfw": ((3, 32, 32), 62, 1889),
}  # fmt: skip
EMBEDDED = ("cancer", "digits")
NAMES = [name for name, _ in presets()]


class Shapes:
    """Facts on the data by name: presets are checked without the data."""

    def data(self, name: str, params: Mapping[str, Any]) -> Any:
        shape, classes, training = SHAPES[name]
        kind = "image" if len(shape) == 3 else "table"
        return SimpleNamespace(
            sha256="0" * 64, subset=None, kind=kind, shape=shape, classes=classes, training=training
        )


def planned(name: str) -> tuple[Planned, ...]:
    return expand(read(name), resolve=Shapes())


def cells(name: str) -> list[AttackCell]:
    return [item.cell for item in planned(name) if isinstance(item.cell, AttackCell)]


def test_the_shapes_above_name_data_sets_that_are_there() -> None:

    for name, (shape, *_) in SHAPES.items():
        entry: Any = registry.load("datasets", name)
        assert issubclass(entry, Dataset)
        assert entry.kind == ("image" if len(shape) == 3 else "table")


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_facts_above_are_those_of_the_data_that_come_along(name: str) -> None:
    facts = Resolver(None).data(name, {})
    assert (facts.shape, facts.classes, facts.training) == SHAPES[name]


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_reads_and_all_its_cells_can_run(name: str) -> None:
    assert {item.impossible for item in planned(name)} == {None}


def test_every_preset_says_what_it_asks() -> None:
    assert {"quickstart", "resilience", "smoke"} <= set(NAMES)
    for name, title in presets():
        assert len(title) >= 20, name


def test_quickstart_pairs_each_data_set_with_its_model() -> None:
    found = cells("quickstart")
    assert {(cell.dataset.name, cell.model.name) for cell in found} == {
        ("cancer", "mlp"),
        ("digits", "dlg-lenet"),
    }
    assert len({str(cell.defense) for cell in found}) == 6
    assert {cell.point for cell in found} == {"type-2", "type-1", "type-0"}


def test_the_budgets_of_resilience_follow_data_and_attack() -> None:
    budgets = {(c.dataset.name, c.attack.name): c.evaluations for c in cells("resilience")}
    lbfgs = {"mnist": 500, "cifar10": 1200, "lfw": 1200}
    assert budgets == {
        (data, attack): 1000 if attack == "gradinv" else lbfgs[data]
        for data in lbfgs
        for attack in ("dlg", "idlg", "cpl", "gradinv")
    }


def test_resilience_crosses_everything_with_batches_of_three_and_of_one() -> None:
    found = cells("resilience")
    points = Counter((cell.federated.batch, cell.point) for cell in found)
    assert set(points) == {(3, "type-2"), (3, "type-1"), (3, "type-0"), (1, "type-1"), (1, "type-0")}
    assert set(points.values()) == {3 * 4 * 6}
    assert set(Counter(str(cell.defense) for cell in found).values()) == {3 * 4 * 5}
    assert {(cell.readings, cell.federated.steps) for cell in found} == {(16, 1)}


def test_smoke_is_the_suite_of_the_design() -> None:
    found = cells("smoke")
    assert {cell.dataset.name for cell in found} == {"digits", "mnist"}
    assert {cell.point for cell in found} == {"type-2", "type-1"}
    assert {cell.readings for cell in found} == {32}
    assert {c.attack.name: c.evaluations for c in found if c.attack.name in ("cpl", "gradinv")} == {
        "cpl": 300,
        "gradinv": 500,
    }
    assert {cell.model.params["activation"] for cell in found} == {"sigmoid"}


def test_folders_are_part_of_a_presets_name(tmp_path: Path) -> None:
    (tmp_path / "paper").mkdir()
    text = (
        'title = "three"\n[axes]\ndataset = ["digits"]\nmodel = ["mlp"]\nattack = ["dlg"]\npoint = ["type-2"]'
    )
    (tmp_path / "paper" / "table-3.toml").write_text(text, "utf-8")
    assert presets(tmp_path) == (("paper/table-3", "three"),)
    assert read("paper/table-3", folder=tmp_path).title == "three"
    with pytest.raises(MatrixError, match="did you mean 'paper/table-3'"):
        read("paper/table-4", folder=tmp_path)
