"""A suite's run beside the reference: the records of both, and in four lines where a defense stands."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.cell import AttackCell
from bench.leaderboard.board import Row, board
from bench.leaderboard.forms.numbers import fine, formatted, share
from bench.leaderboard.standings import Standing, beside, nearest, neighbours, standings
from bench.record.names import entry_text
from bench.record.schema import Record
from bench.reference import store as reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The records of a run and of the reference, their board, and the suite's standings; `own` are the defenses that
    the reference lacks."""

    version: str
    records: tuple[Record, ...]
    rows: tuple[Row, ...]
    standings: tuple[Standing, ...]
    own: tuple[str, ...]


def suite_of(folders: Iterable[Path]) -> str | None:
    """The version of the suite that some of these run folders are of, where it has reference results."""
    there = reference.versions()
    for folder in folders:
        for path in sorted(folder.glob("suite-*.json")):
            try:
                version = json.loads(path.read_text("utf-8")).get("suite")
            except (OSError, ValueError):
                continue
            if version in there:
                return str(version)
    return None


def joined(version: str, mine: Iterable[Record] = ()) -> Joined:
    """The reference of this version with these records beside it; of a cell that both have, theirs counts."""
    shipped = reference.read(version)
    known = {entry_text(record.cell.defense) for record in shipped if isinstance(record.cell, AttackCell)}
    listed = list(mine)
    theirs = [entry_text(record.cell.defense) for record in listed if isinstance(record.cell, AttackCell)]
    own = tuple(name for name in dict.fromkeys(theirs) if name not in known)
    records = tuple({record.cell.id: record for record in (*shipped, *listed)}.values())
    rows = tuple(board(records))
    return Joined(version=version, records=records, rows=rows, standings=tuple(standings(rows, own)), own=own)


def lines(joined: Joined, defense: str) -> Iterator[tuple[str, str]]:
    """Where a defense stands: its rank, what it leaks where, what it costs, and which published one is nearest."""
    at = next(each for each in joined.standings if each.defense == defense)
    above, below = neighbours(joined.standings, defense)
    between = " and ".join(each.defense for each in (above, below) if each is not None)
    if at.faults:
        rank = f"none: it does not do what it states ({', '.join(at.faults)}; `bench check`)"
    elif at.missing:
        rank = f"none yet: {at.missing} of the suite's figures are missing; run the whole suite"
    else:
        place = "between" if above and below else "next to"
        rank = f"{at.rank} of {len(joined.standings)} on {joined.version}, {place} {between}"
    yield "rank", rank
    yield "leaks", _leaks(at)
    yield "costs", _costs(at)
    if (other := nearest(joined.rows, defense, _published(joined))) is not None:
        yield "nearest", f"{other}: {_difference(joined, defense, other)}"


def _published(joined: Joined) -> list[str]:
    return [each.defense for each in joined.standings if not each.own]


def _leaks(at: Standing) -> str:
    figures = []
    for point, place in at.points.items():
        recognised = "" if place.recognised is None else f" (recognised {fine(place.recognised)})"
        figures.append(f"{point} {share(place.leaked)}{recognised}")
    worst = max(at.points.values(), key=lambda place: place.most, default=None)
    where = f"; most, {share(worst.most)}: {_short(worst.where)}" if worst is not None and worst.most else ""
    return ", ".join(figures) + where


def _short(title: str) -> str:
    """A condition's data, model and setting, without what all conditions of the suite share."""
    parts = [part for part in title.split(" · ") if not part.startswith("granted")]
    return " · ".join(part.partition(" (")[0] for part in parts)


def _costs(at: Standing) -> str:
    if at.accuracy is None:
        return "not trained: the suite's trainings are missing"
    lost = "" if at.lost is None else f" ({-100 * at.lost:+.0f} points)".replace("-", "−")
    epsilon = "ε " + formatted(at.epsilon, ".3g") if at.epsilon is not None else "no ε"
    step = "" if at.overhead is None else f", a client's step {at.overhead:.1f}×"
    return f"accuracy {share(at.accuracy)}{lost}, {epsilon}{step}"


def _difference(joined: Joined, defense: str, other: str) -> str:
    each = beside(joined.records, joined.rows, defense, other)
    if not each:
        return "no victims in common"
    most = max(each, key=lambda point: abs(point.difference))
    low, high = most.interval
    if low <= 0 <= high:
        words = f"no difference shown on the same {most.examples} victims"
    else:
        words = f"{'more' if most.difference > 0 else 'less'} leaks here on the same {most.examples} victims"
    points = f"{100 * most.difference:+.0f} points [{100 * low:+.0f}, {100 * high:+.0f}] at {most.point}"
    return f"{words}, {points.replace('-', '−')}"


def picture(joined: Joined, defense: str, run: Path) -> Path | None:
    """The victims and what came back under a defense, of the condition in which most does; None where there is no
    picture."""
    rows = [row for row in joined.rows if row.defense == defense and row.worst is not None]
    for row in sorted(rows, key=lambda row: -(row.worst.asr or 0.0) if row.worst else 0.0):
        for cell in row.cells:
            if (path := run / "pictures" / f"{cell}.png").exists():
                return path
    return None
