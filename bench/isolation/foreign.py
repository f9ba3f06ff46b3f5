"""Foreign entries: attacks, defenses, models and data sets whose code comes from outside bench."""

from bench.cell import AnyCell, AttackCell
from bench.registry import entries as registry


def entries_of(cell: AnyCell) -> dict[str, str]:
    """Return the names of the cell's entries, kind → name."""
    names = {"datasets": cell.dataset.name, "models": cell.model.name, "defenses": cell.defense.name}
    return names | {"attacks": cell.attack.name} if isinstance(cell, AttackCell) else names


def foreign(kind: str, name: str) -> bool:
    """Whether an entry comes from outside bench."""
    return not registry.origin(kind, name).built_in


def needs_plugins(cell: AttackCell) -> bool:
    """Whether the attacker's process runs plug-in code: a foreign attack or model, a description, or a simulator."""
    known = cell.knowledge != "plain"
    return known or foreign("attacks", cell.attack.name) or foreign("models", cell.model.name)
