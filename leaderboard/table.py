"""Records → rows: for each defense and point the worst-case attack success rate, picture by picture.

A picture counts as leaked if any attack, plain or adaptive, succeeds on it; never a mean over
attacks.  Records only: no torch, no data.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.points import POINTS
from bench.records import Record
from bench.scoring.intervals import clustered_share, wilson

POINT_ORDER = ("type-2", "type-2-step", "type-1", "type-0", "aggregate")
SNR_CAP_DB = 120.0  # of `bench.scoring.reading`: the reading is the undefended one
Picture = tuple[int, int, int, int]  # seed, draw, reading, picture


@dataclass(slots=True)
class Worst:
    """One defense at one point: `leaked` picture → whether any attack succeeded; `by_attack` the same
    for each; what did not count and why."""

    leaked: dict[Picture, bool] = field(default_factory=dict)
    by_attack: dict[str, dict[Picture, bool]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    crashed: dict[str, str] = field(default_factory=dict)
    failed: set[Picture] = field(
        default_factory=set
    )  # on which some attack crashed, diverged or gave no number
    undistorted: bool = True  # whether every reading was bit-equal to the undefended one

    @property
    def asr(self) -> float | None:
        """Share of pictures leaked to the worst attacker; None where nothing was scored."""
        return sum(self.leaked.values()) / len(self.leaked) if self.leaked else None

    @property
    def lower_bound(self) -> bool:
        """Whether a picture that nobody got back was met by a failed attack: the true rate may be higher."""
        return any(not self.leaked[picture] for picture in self.failed)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 %.  Clusters are weight seeds where there are several, else readings (a batch's pictures and
        a reading's draws belong together); Wilson's where every cluster is one picture."""
        if not self.leaked:
            return None
        seeds = [(picture[0],) for picture in self.leaked]
        readings = [(picture[0], picture[2]) for picture in self.leaked]
        clusters = seeds if len(set(seeds)) > 1 else readings
        numbers = {cluster: number for number, cluster in enumerate(dict.fromkeys(clusters))}
        values = list(self.leaked.values())
        if len(numbers) in (1, len(values)):
            return wilson(sum(values), len(values))
        return clustered_share(values, [numbers[cluster] for cluster in clusters])

    @property
    def best(self) -> tuple[str, float] | None:
        """The attack with the highest rate of its own, and that rate."""
        rates = {name: sum(own.values()) / len(own) for name, own in self.by_attack.items() if own}
        return max(rates.items(), key=lambda pair: pair[1]) if rates else None


@dataclass(slots=True)
class Block:
    """One data set, model, weights and setting: rows are defenses, columns points."""

    title: str
    rows: dict[str, dict[str, Worst]] = field(default_factory=dict)

    @property
    def points(self) -> tuple[str, ...]:
        seen = {name for row in self.rows.values() for name in row}
        known = [name for name in POINT_ORDER if name in seen]
        return (*known, *sorted(seen - set(known)))


def blocks(records: Iterable[Record]) -> list[Block]:
    """The blocks of a run's attack records, in the order in which their records come."""
    found: dict[str, Block] = {}
    for record in records:
        if record.cell.get("kind") != "attack":
            continue
        key = _key(record)
        block = found.setdefault(key, Block(_title(record.cell)))
        row = block.rows.setdefault(entry(record.cell["defense"]), {})
        _add(row.setdefault(record.cell["point"], Worst()), record)
    return _told_apart(found)


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


def _add(worst: Worst, record: Record) -> None:
    cell = record.cell
    attack = entry(cell["attack"]) + ("" if cell["knowledge"] == "plain" else f" · {cell['knowledge']}")
    if record.status == "n/a":
        worst.absent[attack] = record.reason or "no reason given"
        return
    if record.status == "crashed":
        worst.crashed[attack] = record.reason or "no reason given"
        for reading in range(cell["readings"]):  # a crash is no protection, and leaves no denominator smaller
            for number in range(_pictures(cell)):
                key = (cell["seed"], cell["draw"], reading, number)
                worst.leaked.setdefault(key, False)
                worst.failed.add(key)
        return
    worst.undistorted &= record.summary.get("reading_snr_db_least") == SNR_CAP_DB
    own = worst.by_attack.setdefault(attack, {})
    for reading, victim in enumerate(record.victims):
        for number, picture in enumerate(victim["pictures"]):
            key = (cell["seed"], cell["draw"], reading, number)
            own[key] = bool(picture["success"])
            worst.leaked[key] = worst.leaked.get(key, False) or own[key]
            if picture["status"] in ("diverged", "nan"):
                worst.failed.add(key)


def _pictures(cell: Mapping[str, Any]) -> int:
    federated = cell["federated"]
    return POINTS[cell["point"]].pictures(
        batch=federated["batch"], steps=federated["steps"], senders=federated["per_round"]
    )


def _key(record: Record) -> str:
    """What figures must share to stand in one block: the question but for defense, attack and point, and
    the rules by which it was answered."""
    shared = ("dataset", "model", "weights", "federated", "labels", "repeated_readings", "readings")
    asked = {name: record.cell[name] for name in shared}
    return json.dumps([asked, record.source.get("bench", {}).get("protocol")], sort_keys=True)


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
    parts = [entry(cell["dataset"])]
    if cell["dataset"].get("subset"):
        parts[0] += f" ({cell['dataset']['subset']})"
    parts.append(entry(cell["model"]))
    if weights["kind"] == "checkpoint":
        parts.append(f"round {weights['round']} of {weights['training'][:8]}")
    elif weights["kind"] == "file":
        parts.append(f"weights {weights['sha256'][:8]}")
    else:
        parts.append("untrained")
    parts.append(f"{federated['algorithm']} B={federated['batch']} L={federated['steps']}")
    if cell["labels"]:
        parts.append("labels granted")
    if cell["repeated_readings"] > 1:
        parts.append(f"{cell['repeated_readings']} readings granted")
    return " · ".join(parts)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
