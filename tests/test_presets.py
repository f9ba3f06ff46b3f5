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

SHAPES = {
    "cancer": ((30,), 2), "adult": ((105,), 2), "digits": ((1, 8, 8), 10), "mnist": ((1, 28, 28), 10),
    "fashion-mnist": ((1, 28, 28), 10), "cifar10": ((3, 32, 32), 10), "cifar100": ((3, 32, 32), 100),
    "lfw": ((3, 32, 32), 62),
}  # fmt: skip
NAMES = [name for name, _ in presets()]


class Shapes:
    """Facts on the data by name: presets are checked without the data."""

    def data(self, name: str, params: Mapping[str, Any]) -> Any:
        shape, classes = SHAPES[name]
        kind = "image" if len(shape) == 3 else "table"
        return SimpleNamespace(sha256="0" * 64, subset=None, kind=kind, shape=shape, classes=classes)


def planned(name: str) -> tuple[Planned, ...]:
    return expand(read(name), resolve=Shapes())


def cells(name: str) -> list[AttackCell]:
    return [item.cell for item in planned(name) if isinstance(item.cell, AttackCell)]


def test_the_shapes_above_name_data_sets_that_are_there() -> None:

    for name, (shape, _) in SHAPES.items():
        entry: Any = registry.load("datasets", name)
        assert issubclass(entry, Dataset)
        assert entry.kind == ("image" if len(shape) == 3 else "table")


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


def test_resilience_crosses_everything() -> None:
    found = cells("resilience")
    assert len(found) == 3 * 4 * 3 * 6
    assert set(Counter(str(cell.defense) for cell in found).values()) == {36}
    assert {(cell.readings, cell.federated.batch, cell.federated.steps) for cell in found} == {(16, 3, 1)}


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
