"""Foreign entries: code in a cell from outside bench."""

from bench.cell import AnyCell, AttackCell
from bench.registry import entries as registry


def entries_of(cell: AnyCell) -> dict[str, str]:
    """The cell's entries, kind → name."""
    names = {"datasets": cell.dataset.name, "models": cell.model.name, "defenses": cell.defense.name}
    return names | {"attacks": cell.attack.name} if isinstance(cell, AttackCell) else names


def foreign(kind: str, name: str) -> bool:
    """Whether an entry comes from outside bench."""
    return not registry.origin(kind, name).built_in


def needs_plugins(cell: AttackCell) -> bool:
    """Whether the attacker's process needs code: a foreign attack or model, a description, a simulator."""
    known = cell.knowledge != "plain"
    return known or foreign("attacks", cell.attack.name) or foreign("models", cell.model.name)
