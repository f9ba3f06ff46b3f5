"""Which code of a cell is not bench's own, and who needs it."""

from bench.cell import AnyCell, AttackCell
from bench.registry import entries as registry


def entries_of(cell: AnyCell) -> dict[str, str]:
    """The cell's entries, kind → name."""
    names = {"datasets": cell.dataset.name, "models": cell.model.name, "defenses": cell.defense.name}
    return names | {"attacks": cell.attack.name} if isinstance(cell, AttackCell) else names


def foreign(kind: str, name: str) -> bool:
    """Whether an entry is not bench's own."""
    return not registry.origin(kind, name).built_in


def needs_plugins(cell: AttackCell) -> bool:
    """Whether the attacker holds code: his own, the model's, a description or a simulator.  Others hold data alone."""
    known = cell.knowledge != "plain"
    return known or foreign("attacks", cell.attack.name) or foreign("models", cell.model.name)
