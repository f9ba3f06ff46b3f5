"""The records of a submission in groups, and which of them, drawn at random, are run again."""

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

SEEDS = 4  # fresh ones at least for each drawn group: fewer do not show how much seeds differ


@dataclass(slots=True)
class RecordGroup:
    """The records of one setting (a board's title), defense, point and attack; crashed ones left out.

    `weight`: what a verification must not leave to chance: "reference" for no defense, "top" for a first rank.
    """

    setting: str
    records: list[Record] = field(default_factory=list)
    weight: Literal["reference", "top", ""] = ""

    @property
    def done(self) -> list[Record]:
        return [record for record in self.records if record.status == "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One group, the record of it that is run again, and the fresh seeds under which it is."""

    group: RecordGroup
    record: Record
    seeds: tuple[int, ...]


def groups(records: Sequence[Record]) -> list[RecordGroup]:
    """What can be drawn, in an order that the records alone decide.

    A crashed cell claims nothing: its row is incomplete on every board.  Cells that were not applicable are
    claims, and can be drawn; those to which a cascade left nothing are none.
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
    """So many cells at random, `SEEDS` and more of a group; first a group without a defense and one of a first rank,
    which all others are read against.

    All groups share the fresh seeds, none of which the records have, so that equal readings are attacked once.
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
