"""Describe cells (experiments) in a list, a line for each cell, without the settings shared by all."""

from collections.abc import Sequence

from bench.cell import ENTRIES, AnyCell, AttackCell, CheckpointWeights, FileWeights, InitialWeights, Weights
from bench.record.names import distinct, entry_text, setting_text

_ALWAYS = ("dataset", "model", "defense", "point", "attack", "knowledge", "training", "rounds")


def cell_lines(cells: Sequence[AnyCell]) -> list[str]:
    """Return a line of text for each of `cells` (experiments), in the given order, such as attack, defense and point;
    settings equal in all cells are left out."""
    fields = [_fields(cell) for cell in cells]
    short = {name: distinct(each[name] for each in fields if name in each) for name in ENTRIES}
    values: dict[tuple[str, str], set[str]] = {}
    for cell, each in zip(cells, fields, strict=True):
        for name, text in each.items():
            values.setdefault((cell.kind, name), set()).add(text)
    return [
        " · ".join(
            short[name][text] if name in short else text
            for name, text in each.items()
            if text and (name in _ALWAYS or len(values[cell.kind, name]) > 1)
        )
        for cell, each in zip(cells, fields, strict=True)
    ]


def _fields(cell: AnyCell) -> dict[str, str]:
    shared = {"dataset": entry_text(cell.dataset), "model": entry_text(cell.model), "defense": entry_text(cell.defense)}
    after = {"federated": setting_text(cell.federated), "seed": f"seed {cell.seed}"}
    if not isinstance(cell, AttackCell):
        return {**shared, "training": "training", "rounds": f"{cell.last_round} rounds", **after}
    return {
        **shared,
        "point": cell.point,
        "attack": entry_text(cell.attack),
        "knowledge": cell.knowledge,
        "weights": _weights(cell.weights),
        "grants": " and ".join(cell.grants.words()),
        **after,
        "draw": f"draw {cell.draw}",
        "victims": "published victims" if cell.victims is None else f"victims {cell.victims}",
        "evaluations": f"{cell.evaluations} evaluations",
        "readings": f"{cell.readings} readings",
        "reference": "with its reference" if cell.reference else "",
    }


def _weights(weights: Weights) -> str:
    if isinstance(weights, InitialWeights):
        return "untrained"
    if isinstance(weights, CheckpointWeights):
        return f"{weights} of {weights.training[:8]}"
    assert isinstance(weights, FileWeights)
    return (weights.series or weights.path).rpartition("/")[2]
