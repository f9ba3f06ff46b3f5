"""Attacks, defenses, models and data sets from outside bench (`foreign`: their code is a plug-in's)."""

from bench.cell import AnyCell, AttackCell
from bench.registry import entries as registry


def entries_of(cell: AnyCell) -> dict[str, str]:
    """Return the names of the data set, model, defense and (for an attack cell) attack of an experiment, as kind →
    name; the kinds are "datasets", "models", "defenses" and "attacks". `cell` is the experiment's configuration."""
    names = {"datasets": cell.dataset.name, "models": cell.model.name, "defenses": cell.defense.name}
    return names | {"attacks": cell.attack.name} if isinstance(cell, AttackCell) else names


def foreign(kind: str, name: str) -> bool:
    """Return whether the entry `name` of the `kind` "attacks", "defenses", "models" or "datasets" comes from outside
    bench; its code then runs in a separate process."""
    return not registry.origin(kind, name).built_in


def needs_plugins(cell: AttackCell) -> bool:
    """Return whether the process that runs the attack of `cell` (an experiment) must load plug-ins: for a plug-in
    attack, a plug-in model, or an attacker who knows the defense."""
    known = cell.knowledge != "plain"
    return known or foreign("attacks", cell.attack.name) or foreign("models", cell.model.name)
