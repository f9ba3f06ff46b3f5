"""Conditions: groups of records with equal data, model, weights, setting, number of readings, protocol and grants.

The granted gallery may differ within a condition. The protocol is the version of the evaluation's rules."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from bench.cell import (
    ATTACKER,
    VARIED,
    AnyCell,
    AttackCell,
    CheckpointWeights,
    FileWeights,
    Grants,
    InitialWeights,
    marked,
)
from bench.leaderboard.worst import WorstCase
from bench.points import POINTS
from bench.record.names import dataset_name, entry_text, value_text
from bench.record.schema import Record

_ORDER = tuple(POINTS)
_VARIED = {*marked(AttackCell, VARIED, ATTACKER)}
_WRITTEN_APART = {"weights", "grants", "victims"}


@dataclass(slots=True)
class Condition:
    """A table in preparation: records with comparable figures (equal data, model, weights, setting), with a row for
    each defense and a column for each interception point."""

    title: str
    """The condition in words: data, model, weights and federated setting."""
    key: str = ""
    """The full shared configuration as canonical JSON."""
    short: str = ""
    """A short title, such as `mnist · dlg-lenet (sigmoid) · untrained · B = 4`."""
    rows: dict[str, dict[str, WorstCase]] = field(default_factory=dict)
    """Map from defense to a map from interception point to the worst case over attacks."""

    @property
    def points(self) -> tuple[str, ...]:
        """The condition's interception points, sorted from inside the client outwards; unknown points come last."""
        return ordered({name for row in self.rows.values() for name in row})


def ordered(points: Iterable[str]) -> tuple[str, ...]:
    """Sort the names of interception `points` from inside the client outwards; unknown points come last, by name."""
    return tuple(sorted(set(points), key=_from_inside))


def by_condition(records: Iterable[Record]) -> list[Condition]:
    """Group attack records by condition (data, model, weights, setting), in the order of `records`. Each condition then
    has the joint results of all attacks on every defense at every interception point."""
    by_key: dict[str, Condition] = {}
    for record in of_one_series(records):
        cell = record.cell
        if isinstance(cell, AttackCell):
            key = condition_key(record)
            if (condition := by_key.get(key)) is None:
                condition = by_key[key] = Condition(_title(cell), key, condition_text(cell))
            row = condition.rows.setdefault(entry_text(cell.defense), {})
            row.setdefault(cell.point, WorstCase()).add(record)
    return _distinguished(by_key.values())


def weights_text(cell: AttackCell) -> str:
    """Return the weights attacked in `cell` (an experiment's configuration) as text: `untrained`, the weights file's
    name, or text like `round 5 of 3f2a91bc`."""
    if isinstance(cell.weights, InitialWeights):
        return "untrained"
    if isinstance(cell.weights, FileWeights):
        name = PurePath(cell.weights.series or cell.weights.path).stem
        return name.removesuffix("-{seed}")
    return f"{cell.weights} of {(cell.weights.series or cell.weights.training)[:8]}"


def condition_text(cell: AttackCell) -> str:
    """Return the short title of the condition of `cell` (an experiment's configuration), such as `mnist · dlg-lenet
    (sigmoid) · untrained · B = 4`."""
    setting, activation = cell.federated, cell.model.params.get("activation")
    model = cell.model.name + (f" ({activation})" if activation else "")
    parts = [cell.dataset.name, model, weights_text(cell), f"B = {setting.batch}"]
    if setting.steps > 1:
        parts.append(f"L = {setting.steps}")
    if cell.point == "aggregate":
        parts.append(f"K = {setting.per_round}")
    return " · ".join(parts)


def of_one_series(records: Iterable[Record]) -> list[Record]:
    """Prevent tables from pooling different weights under the same name; return the `records`, changed where necessary.
    A series is a name for weight files that differ only by seed. If a file was replaced between runs, the series has
    two files for the same seed: its name is then removed from the records' cells, and tables distinguish the weights by
    their hash."""
    listed = list(records)
    contents: dict[tuple[Any, ...], set[str]] = {}
    for record in listed:
        if weights := _in_series(record.cell):
            content = weights.sha256 if isinstance(weights, FileWeights) else weights.training
            origin = (weights.series, _round(weights), record.cell.seed, data_and_model(record.cell))
            contents.setdefault(origin, set()).add(content)
    torn = {origin[0] for origin, hashes in contents.items() if len(hashes) > 1}
    for n, record in enumerate(listed if torn else ()):
        if (weights := _in_series(record.cell)) and weights.series in torn:
            apart = weights.model_copy(update={"series": ""})
            listed[n] = replace(record, cell=record.cell.model_copy(update={"weights": apart}))
    return listed


def without_evidence(condition: Condition) -> tuple[str, ...]:
    """Return the interception points of `condition` at which attacks on undefended readings (observed updates)
    reconstruct no example. A defense's low rate at such a point proves no protection."""
    each = [(point, worst) for row in condition.rows.values() for point, worst in row.items()]
    return ordered(point for point, worst in each if worst.unchanged and worst.asr == 0)


def without_baseline(condition: Condition) -> tuple[str, ...]:
    """Return the interception points of `condition` at which attacks ran on defended readings (observed updates) only,
    so that no undefended rate is known."""
    each = [(point, worst) for row in condition.rows.values() for point, worst in row.items()]
    return ordered({point for point, _ in each} - {p for p, worst in each if worst.attacked and worst.unchanged})


def sort_key(defense: str, point: str) -> tuple[bool, str, int, str]:
    """Return a key to sort table rows: undefended rows first, then by the name `defense`, then by interception `point`
    (name) from inside the client outwards."""
    return defense != "none", defense, *_from_inside(point)


def _from_inside(point: str) -> tuple[int, str]:
    return _ORDER.index(point) if point in _ORDER else len(_ORDER), point


def condition_key(record: Record) -> str:
    """Return the part of the configuration of `record` that all records of its condition share, with the protocol's
    version (the evaluation's rules), as canonical JSON. Records with equal keys are in the same condition.

    Left out are defense, attack, knowledge, point, budget, `chunk` (number of observed updates in memory at once),
    noise draw, seed and gallery (list of candidates)."""
    cell = record.cell
    assert isinstance(cell, AttackCell)
    shared = cell.model_dump(mode="json", exclude=_VARIED | _WRITTEN_APART)
    shared |= {"grants": _grants(cell).granted(), "weights": _shared_weights(cell)}
    shared |= {} if cell.victims is None else {"victims": cell.victims}
    # readings under the weights of different attacks are no common readings
    shared |= {} if cell.grants.server == "listen" else {"attack": cell.attack.configuration()}
    return json.dumps([shared, record.protocol], sort_keys=True)


def data_and_model(cell: AnyCell) -> str:
    """Return the data set and the model of `cell` (an experiment's configuration) as canonical JSON. This key joins the
    attacks on a defense with the trainings under the defense."""
    return json.dumps([cell.dataset.model_dump(mode="json"), cell.model.model_dump(mode="json")], sort_keys=True)


def _grants(cell: AttackCell) -> Grants:
    """Return the cell's grants without the gallery: a condition holds attacks with and without a gallery."""
    return cell.grants.model_copy(update={"gallery": 0})


def _shared_weights(cell: AttackCell) -> dict[str, Any]:
    if weights := _in_series(cell):
        further = {"further": weights.further} if isinstance(weights, CheckpointWeights) and weights.further else {}
        return {"series": weights.series, "round": _round(weights), **further}
    return cell.weights.configuration()


def _round(weights: FileWeights | CheckpointWeights) -> int | None:
    return weights.round if isinstance(weights, CheckpointWeights) else None


def _in_series(cell: AnyCell) -> FileWeights | CheckpointWeights | None:
    weights = cell.weights if isinstance(cell, AttackCell) else None
    return weights if isinstance(weights, FileWeights | CheckpointWeights) and weights.series else None


def _distinguished(every: Iterable[Condition]) -> list[Condition]:
    """Append the differing settings to the titles of conditions that would otherwise have equal titles, and to their
    short titles the differing parameters of the model and the grants, too."""
    listed = list(every)
    by_title: dict[str, list[Condition]] = {}
    by_short: dict[str, list[Condition]] = {}
    for condition in listed:
        by_title.setdefault(condition.title, []).append(condition)
        by_short.setdefault(condition.short, []).append(condition)
    for twins in by_title.values():
        for condition, words in zip(twins, _differing([_settings(each.key) for each in twins]), strict=True):
            condition.title += words
    for twins in by_short.values():
        settings = [_settings(each.key) | _not_in_short(each.key) for each in twins]
        for condition, words in zip(twins, _differing(settings), strict=True):
            condition.short += words
    return listed


def _differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return for each item the settings by which the items differ, as the end of a title; empty if none differ."""
    names = sorted({name for words in settings for name in words})
    differing = [name for name in names if len({words.get(name) for words in settings}) > 1]
    parts = [[words[name] for name in differing if name in words] for words in settings]
    return [" · " + " ".join(each) if each else "" for each in parts]


def _not_in_short(key: str) -> dict[str, str]:
    """Return what the short title leaves out beside the settings: the model's parameters except the activation, and the
    grants."""
    shared = json.loads(key)[0]
    params = {name: f"{name}={value_text(value)}" for name, value in shared["model"]["params"].items()}
    params.pop("activation", None)
    granted = Grants(**shared["grants"]).words()
    return params | ({"grants": f"granted {', '.join(granted)}"} if granted else {})


def _settings(key: str) -> dict[str, str]:
    shared, protocol = json.loads(key)
    shown = shared["federated"] | {"readings": shared["readings"]}
    return {**{name: f"{name}={value}" for name, value in shown.items()}, "protocol": f"protocol {protocol}"}


def _title(cell: AttackCell) -> str:
    weights, setting = cell.weights, cell.federated
    if isinstance(weights, CheckpointWeights):
        origin = f"{weights} of {(weights.series or weights.training)[:8]}"
    elif isinstance(weights, FileWeights):
        origin = f"weights {weights.series or weights.sha256[:8]}"
    else:
        origin = "untrained"
    trained = f"{setting.algorithm} B={setting.batch} L={setting.steps}"
    granted = [f"granted {words}" for words in _grants(cell).words()]
    others = [] if cell.victims is None else [f"victims {cell.victims}"]
    others += [] if cell.grants.server == "listen" else [f"{cell.grants.chosen} by {entry_text(cell.attack)}"]
    return " · ".join([dataset_name(cell), entry_text(cell.model), origin, trained, *granted, *others])
