"""Names of cells, defenses, attacks, data sets and federated settings, as all tables write them: printable."""

from collections.abc import Iterable, Mapping
from typing import Any

from bench.cell import AttackCell, Entry, Federated, TrainingCell
from bench.sanitize import LONGEST, sanitize


def entry_text(value: Entry) -> str:
    """Return the name of an attack, defense, data set or model (`value`) with its parameters for tables, such as
    `prune(share=0.7)`."""
    return with_params(value.name, value.params)


def with_params(name: str, params: Mapping[str, Any]) -> str:
    """Return `name` with its `params`, such as `prune(share=0.7)`; only the name if there are no parameters."""
    shown = ", ".join(f"{key}={value_text(item)}" for key, item in sorted(params.items()))
    return sanitize(f"{name}({shown})" if shown else name, LONGEST)


def attack_name(cell: AttackCell) -> str:
    """Return the attack's name for tables, with its parameters. The attacker's knowledge of the defense follows unless
    plain, such as `cpl · adaptive`."""
    return entry_text(cell.attack) + ("" if cell.knowledge == "plain" else f" · {cell.knowledge}")


def dataset_name(cell: AttackCell | TrainingCell) -> str:
    """Return the data set's name with its parameters and subset, for tables."""
    name = entry_text(cell.dataset)
    return sanitize(f"{name} ({cell.dataset.subset})", LONGEST) if cell.dataset.subset else name


def cell_name(cell: AttackCell | TrainingCell) -> str:
    """Return the name of a cell (experiment) for tables, such as `cpl/plain × prune(share=0.7) @ type-1, digits
    dlg-lenet`: attack, defense, interception point, data and model."""
    data = f"{cell.dataset.name} {cell.model.name}"
    name = f"training × {entry_text(cell.defense)}, {data}"
    if isinstance(cell, AttackCell):
        name = f"{cell.attack.name}/{cell.knowledge} × {entry_text(cell.defense)} @ {cell.point}, {data}"
    return sanitize(name, LONGEST)


def setting_text(setting: Federated) -> str:
    """Return a federated setting in the papers' symbols, such as `fedavg N=100 K=10 L=20 B=5 η=0.05 iid`: clients,
    clients per round, local steps, batch size, learning rate, partition."""
    size = f" |D|={setting.client_examples}" if setting.client_examples else ""
    return (
        f"{setting.algorithm} N={setting.clients} K={setting.per_round} L={setting.steps} "
        f"B={setting.batch} η={setting.rate:g} {setting.partition}{size}"
    )


def value_text(value: Any) -> str:
    """Return a parameter's `value` as text; a float has at most six digits."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def distinct(names: Iterable[str]) -> dict[str, str]:
    """Shorten the names of attacks or defenses: return full name → short name. The short name has only those parameters
    by which it differs from another name: `prune(share=0.7, at=client)` and `prune(share=0.9, at=client)` become
    `prune(share=0.7)` and `prune(share=0.9)`."""
    parts = {full: _parts(full) for full in names}
    short = {}
    for full, (name, params, knowledge) in parts.items():
        namesakes = [other for head, other, knows in parts.values() if (head, knows) == (name, knowledge)]
        common = set.intersection(*map(set, namesakes))
        differing = ", ".join(param for param in params if param not in common)
        short[full] = (f"{name}({differing})" if len(namesakes) > 1 else name) + knowledge
    return short


def _parts(full: str) -> tuple[str, list[str], str]:
    """Split a full name into name, parameters, and ` · adaptive` or ` · black-box`."""
    head, mark, knowledge = full.partition(" · ")
    name, _, inner = head.partition("(")
    return name, inner.removesuffix(")").split(", ") if inner else [], mark + knowledge
