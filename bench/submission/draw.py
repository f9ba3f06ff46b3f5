"""Groups: a submission's records by setting, defense, point and attack; a random draw selects records to run again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Literal

from bench import rng
from bench.cell import AttackCell
from bench.leaderboard.board import board
from bench.leaderboard.conditions import by_condition, condition_key, of_one_series
from bench.leaderboard.costs import UNDEFENDED
from bench.record.names import attack_name, entry_text
from bench.record.schema import Record

SEEDS = 4  # least fresh seeds for each drawn group: fewer do not show how much seeds differ


@dataclass(slots=True)
class RecordGroup:
    """Records with the same setting (a board's title), defense, interception point and attack; none of them crashed."""

    setting: str
    records: list[Record] = field(default_factory=list)
    weight: Literal["reference", "top", ""] = ""
    """Why a verification should include such a group: "reference" (no defense), "top" (a first rank), "" (no
    reason).
    """

    @property
    def done(self) -> list[Record]:
        return [record for record in self.records if record.status == "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """A drawn group: its record to run again, and the fresh seeds for the new runs."""

    group: RecordGroup
    record: Record
    seeds: tuple[int, ...]


def groups(records: Sequence[Record]) -> list[RecordGroup]:
    """Group the records which a verification can draw, in an order determined by the records' content.

    A crashed cell claims no result.  A cell recorded as not applicable is a claim and can be drawn.  A cascade cell
    without remaining readings cannot.
    """
    listed = of_one_series(records)
    titles = {condition.key: condition.title for condition in by_condition(listed)}
    first = {(row.key, row.defense) for row in board(listed) if row.rank == 1}
    by_key: dict[tuple[str, ...], RecordGroup] = {}
    for record in sorted(listed, key=lambda record: record.id):
        cell = record.cell
        nothing_left = record.attack is not None and not record.attack.readings
        if isinstance(cell, AttackCell) and record.status != "crashed" and not nothing_left:
            key = (condition_key(record), entry_text(cell.defense), cell.point, attack_name(cell))
            weight: Literal["reference", "top", ""] = "top" if key[:2] in first else ""
            weight = "reference" if cell.defense.name == UNDEFENDED else weight
            by_key.setdefault(key, RecordGroup(titles[key[0]], weight=weight)).records.append(record)
    return [by_key[key] for key in sorted(by_key)]


def draw(among: Sequence[RecordGroup], cells: int, seed: int) -> list[Draw]:
    """Draw groups at random until `cells` attack cells are planned; each group gets at least `SEEDS` fresh seeds.

    The draw begins with a group without defense and a group with a first rank, because readers compare all other groups
    with these two.  All groups share the fresh seeds, so equal readings are attacked once.  No record has a fresh seed.
    """
    if not among:
        return []
    draws = rng.generator(seed, "verify")
    each = max(SEEDS, ceil(cells / len(among)))
    used = {record.cell.seed for group in among for record in group.records}
    seeds: list[int] = []
    while len(seeds) < each:
        fresh = int(draws.integers(2**31))
        if fresh not in used and fresh not in seeds:
            seeds.append(fresh)
    order = [among[number] for number in draws.permutation(len(among))]
    fixed = [next((group for group in order if group.weight == weight), None) for weight in ("reference", "top")]
    ahead = [group for group in fixed if group is not None]
    chosen = [*ahead, *(group for group in order if not any(group is one for one in ahead))][: ceil(cells / each)]
    drawn, remaining = [], cells
    for group in chosen:
        record = group.records[int(draws.integers(len(group.records)))]
        drawn.append(Draw(group=group, record=record, seeds=tuple(seeds[:remaining])))
        remaining -= each
    return drawn
