"""Promise: no two cells of a list look alike, and what all share is not said."""

from tests.records import CELL, TRAINING, attack_cell

from bench.cell import AnyCell, Entry, FileWeights, Grants
from bench.cli.cell_lines import cell_lines

USUAL = "digits · dlg-lenet · none · type-2 · cpl · plain"


def test_what_differs_is_told_and_nothing_else() -> None:
    cells: list[AnyCell] = [
        CELL,
        attack_cell(seed=1),
        attack_cell(evaluations=7),
        attack_cell(grants=Grants(labels=True)),
        attack_cell(attack=Entry(name="cpl", params={"outer": 300, "restarts": 2})),
        attack_cell(weights=FileWeights(sha256="0" * 64, path="/x/late-3.npz", series="x/late-{seed}.npz")),
        TRAINING,
    ]
    lines = cell_lines(cells)
    assert len(set(lines)) == len(cells)
    assert (
        lines[0]
        == "digits · dlg-lenet · none · type-2 · cpl(restarts=0) · plain · untrained · seed 0 · 500 evaluations"
    )
    assert "the true labels" in lines[3] and "late-{seed}.npz" in lines[5]
    assert lines[6] == "digits · dlg-lenet · none · training · 20 rounds"
    assert cell_lines([CELL]) == [USUAL]
    assert cell_lines([CELL, attack_cell(draw=1)]) == [f"{USUAL} · draw 0", f"{USUAL} · draw 1"]
