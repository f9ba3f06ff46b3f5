"""Records → rows: for each defense and point the worst-case attack success rate, picture by picture.

A picture counts as leaked if any attack, plain or adaptive, succeeds on it; never a mean over
attacks.  Records only: no torch, no data.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bench.leaderboard.worst import Worst
from bench.record.store import Record

POINT_ORDER = ("type-2", "type-2-step", "type-1", "type-0", "aggregate")


@dataclass(slots=True)
class Block:
    """One data set, model, weights and setting, which `key` spells out: rows are defenses, columns points."""

    title: str
    key: str = ""
    rows: dict[str, dict[str, Worst]] = field(default_factory=dict)

    @property
    def points(self) -> tuple[str, ...]:
        seen = {name for row in self.rows.values() for name in row}
        known = [name for name in POINT_ORDER if name in seen]
        return (*known, *sorted(seen - set(known)))


def blocks(records: Iterable[Record]) -> list[Block]:
    """The blocks of a run's attack records, in the order in which their records come."""
    found: dict[str, Block] = {}
    for record in of_one_series(records):
        if record.cell.get("kind") != "attack":
            continue
        key = question(record)
        block = found.setdefault(key, Block(_title(record.cell), key))
        row = block.rows.setdefault(entry(record.cell["defense"]), {})
        row.setdefault(record.cell["point"], Worst()).add(record, attack_name(record.cell))
    return _told_apart(found)


def of_one_series(records: Iterable[Record]) -> list[Record]:
    """The records; where one seed of a series of weights was asked with different content (a file was
    replaced), that series names nothing, and its weights are told apart by content again."""
    listed = list(records)
    content: dict[tuple[Any, ...], set[str]] = {}
    for record in listed:
        weights = record.cell.get("weights", {})
        if weights.get("series"):
            seed = (weights["series"], weights.get("round"), record.cell["seed"], _settled(record.cell))
            content.setdefault(seed, set()).add(weights.get("sha256") or weights["training"])
    torn = {seed[0] for seed, found in content.items() if len(found) > 1}
    return [
        replace(record, cell={**record.cell, "weights": {**record.cell["weights"], "series": ""}})
        if record.cell.get("weights", {}).get("series") in torn
        else record
        for record in listed
    ]


def _settled(cell: Mapping[str, Any]) -> str:
    """What a series of weights may depend on beside the seed."""
    return json.dumps([cell["dataset"], cell["model"]], sort_keys=True)


def without_evidence(block: Block) -> tuple[str, ...]:
    """Points at which no attack got anything back even from readings that no defense had touched: what a
    defense shows there is no evidence of protection."""
    return tuple(
        point
        for point in block.points
        if any(row[point].undistorted and row[point].asr == 0 for row in block.rows.values() if point in row)
    )


def entry(value: Mapping[str, Any]) -> str:
    """A name with its parameters, short: `prune(share=0.7)`."""
    shown = ", ".join(f"{key}={_short(item)}" for key, item in sorted(value["params"].items()))
    return f"{value['name']}({shown})" if shown else str(value["name"])


def attack_name(cell: Mapping[str, Any]) -> str:
    """The cell's attack with its parameters, and what it knows where that is more than the reading."""
    return entry(cell["attack"]) + ("" if cell["knowledge"] == "plain" else f" · {cell['knowledge']}")


def dataset_name(cell: Mapping[str, Any]) -> str:
    """The cell's data set with its parameters, and how much of it where it is not whole."""
    name = entry(cell["dataset"])
    return f"{name} ({cell['dataset']['subset']})" if cell["dataset"].get("subset") else name


def rank(defense: str, point: str) -> tuple[bool, str, int, str]:
    """What tables sort by: no defense first, then by name; points from the inside out, then others."""
    order = POINT_ORDER.index(point) if point in POINT_ORDER else len(POINT_ORDER)
    return defense != "none", defense, order, point


def question(record: Record) -> str:
    """What figures must share to stand in one block: the question but for defense, attack and point, and
    the rules by which it was answered."""
    shared = ("dataset", "model", "weights", "federated", "labels", "repeated_readings", "readings")
    asked = {name: record.cell[name] for name in shared}
    if record.cell.get("colluders"):
        asked["colluders"] = record.cell["colluders"]
    if series := asked["weights"].get("series"):  # the same question at several seeds
        asked["weights"] = {"series": series, "round": asked["weights"].get("round")}
    return json.dumps([asked, protocol(record)], sort_keys=True)


def protocol(record: Record) -> Any:
    """The version of the rules by which a record was answered."""
    return record.source.get("bench", {}).get("protocol")


def _told_apart(found: Mapping[str, Block]) -> list[Block]:
    """The blocks, with what differs between those of one title added to it."""
    by_title: dict[str, list[tuple[Block, dict[str, str]]]] = {}
    for key, block in found.items():
        by_title.setdefault(block.title, []).append((block, _settings(key)))
    for twins in by_title.values():
        differing = [name for name in twins[0][1] if len({own[name] for _, own in twins}) > 1]
        for block, own in twins:
            block.title += " · " + " ".join(sorted(own[name] for name in differing)) if differing else ""
    return list(found.values())


def _settings(key: str) -> dict[str, str]:
    """What a title leaves out of a block's key, by name, in words."""
    asked, protocol = json.loads(key)
    shown = {**asked["federated"], "readings": asked["readings"]}
    return {**{name: f"{name}={value}" for name, value in shown.items()}, "protocol": f"protocol {protocol}"}


def _title(cell: Mapping[str, Any]) -> str:
    federated, weights = cell["federated"], cell["weights"]
    parts = [dataset_name(cell), entry(cell["model"])]
    if weights["kind"] == "checkpoint":
        parts.append(f"round {weights['round']} of {(weights.get('series') or weights['training'])[:8]}")
    elif weights["kind"] == "file":
        parts.append(f"weights {weights.get('series') or weights['sha256'][:8]}")
    else:
        parts.append("untrained")
    parts.append(f"{federated['algorithm']} B={federated['batch']} L={federated['steps']}")
    if cell["labels"]:
        parts.append("labels granted")
    if cell["repeated_readings"] > 1:
        parts.append(f"{cell['repeated_readings']} readings granted")
    if cell.get("colluders"):
        parts.append(f"{cell['colluders']:.0%} of the neighbours collude")
    return " · ".join(parts)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
