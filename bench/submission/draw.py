"""Random choice of the submitted records that are run again."""

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
    """Submitted records that a verification compares as a whole: equal condition (data, model and setting), defense,
    interception point and attack, for several seeds. No record is of a crashed run."""

    setting: str
    """The condition in words."""
    records: list[Record] = field(default_factory=list)
    """Records of the group, for several seeds."""
    weight: Literal["reference", "top", ""] = ""
    """"reference" for a group without defense, "top" for a defense at rank 1 of a board, otherwise "". A verification
    first draws a group of each of the first two kinds."""

    @property
    def done(self) -> list[Record]:
        """The group's records with a result, status "done"."""
        return [record for record in self.records if record.status == "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """A group of submitted records that a verification chose by lot to run again, with the fresh seeds of the new
    runs."""

    group: RecordGroup
    """The drawn group."""
    record: Record
    """Record of the group whose cell is run again."""
    seeds: tuple[int, ...]
    """Seeds of the new runs; no submitted record has these seeds."""


def groups(records: Sequence[Record]) -> list[RecordGroup]:
    """Divide submitted records into the groups from which a verification draws; the order depends only on the records'
    content. Records with status "crashed" and records without readings (observed updates) are left out. Records with
    status "n/a" (not applicable) are included, because a new run can test this claim."""
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
    """Choose by lot the groups of submitted records that a verification runs again, until `cells` attack cells
    (experiments) are planned. `among` are all groups; equal `seed` gives an equal choice.

    The first two groups are a group without defense and a group with a defense at rank 1; other groups are compared
    with these. Each chosen group runs under at least `SEEDS` fresh seeds, which no submitted record has; the last group
    may have fewer, because `cells` is reached. All groups share the seeds, so that attacks on equal readings (observed
    updates) run once."""
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
