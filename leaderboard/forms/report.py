"""A suite's results as a page of Markdown: standings, what each setting cost, the undefended rows, every condition."""

from collections.abc import Iterable, Sequence
from statistics import median

from bench.cell import AttackCell
from bench.leaderboard.attack_ranks import AttackRank
from bench.leaderboard.board import Row
from bench.leaderboard.conditions import ordered
from bench.leaderboard.costs import UNDEFENDED
from bench.leaderboard.forms import standings as standings_form
from bench.leaderboard.forms.columns import grouped, short_attack
from bench.leaderboard.forms.markdown import cell, table
from bench.leaderboard.forms.numbers import NONE, fine, formatted, interval, rate, share
from bench.leaderboard.standings import COUNTS, Standing
from bench.record.names import distinct, entry_text
from bench.record.schema import Record

_IDS = 2  # of the cells behind a row: the best attack's at its worst point


def page(
    version: str, records: Sequence[Record], rows: Sequence[Row], standings: Sequence[Standing],
    attacks: Sequence[AttackRank],
) -> str:  # fmt: skip
    """All of a suite's results."""
    parts = [
        f"## Standings\n\n{standings_form.LEGEND}\n\n{standings_form.markdown(standings)}",
        f"## Without a defense\n\n{_undefended(rows)}",
        f"## What it cost to measure\n\n{_costs(records)}",
        "## The attacks\n\nIn a cascade the order is mostly that of the suite, as later attacks see what was left; "
        f"`bench run --full` ranks them.\n\n{_attacks(attacks)}",
        "## Every condition\n\nThe share of examples that came back, its 95 % interval over weight seeds and "
        f"readings, and the best attack; the ids are of cells behind the row.\n\n{conditions(rows)}",
    ]
    machines = sorted({(r.environment.platform, r.environment.torch) for r in records if r.environment})
    on = "; ".join(f"{platform}, torch {torch}" for platform, torch in machines)
    code = sorted({(r.provenance.bench.sha256 or "")[:12] for r in records})
    made = f"{len(records)} cells of {len(standings)} settings; {on}; fingerprint of the code {', '.join(code)}.\n"
    return "\n".join([f"# {version}\n", made, *parts])


def _undefended(rows: Sequence[Row]) -> str:
    """What comes back with nothing in the way, by condition: what makes a condition count."""
    lines = [["condition", "point", "back", "95 %", "identified", "named", "examples", "counts"]]
    for row in rows:
        for point in ordered(row.points) if row.defense == UNDEFENDED else ():
            at = row.points[point]
            lines.append([
                row.title, point, share(at.asr), interval(at.interval),
                fine(at.identified.value) if at.identified else NONE, fine(at.named.value) if at.named else NONE,
                str(at.examples), "yes" if at.asr is not None and at.asr >= COUNTS else "no",
            ])  # fmt: skip
    return table(lines)


def _costs(records: Iterable[Record]) -> str:
    """Core-minutes of each setting's attacks and trainings; cells that shared a reconstruction took nothing."""
    minutes: dict[str, list[float]] = {}
    for record in records:
        spent = minutes.setdefault(entry_text(record.cell.defense), [0.0, 0.0])
        spent[not isinstance(record.cell, AttackCell)] += record.cost.cpu_seconds / 60
    lines = [["defense", "attacks, core-minutes", "trainings, core-minutes", "two cores, minutes"]]
    for setting, (attacks, trainings) in sorted(minutes.items(), key=lambda item: -sum(item[1])):
        lines.append([setting, f"{attacks:.1f}", f"{trainings:.1f}", f"{(attacks + trainings) / 2:.1f}"])
    each = [sum(spent) / 2 for spent in minutes.values()]
    said = (
        f"Two cores, minutes a setting: {median(each):.1f} in the median, {max(each):.1f} at most.  Settings were "
        "run together, so that readings that a defense leaves as they are were attacked once for all."
    )
    return f"{said}\n\n{table(lines)}"


def _attacks(ranks: Sequence[AttackRank]) -> str:
    lines = [["condition", "#", "attack", "rate of what it saw", "of all", "dB", "CPU s a success"]]
    for each in ranks:
        lines.append([
            each.title, str(each.rank), short_attack(each.attack), f"{share(each.rate)} [{interval(each.interval)}]",
            share(each.of_all), formatted(each.psnr_db, ".0f"), formatted(each.seconds, ".2g"),
        ])  # fmt: skip
    return table(lines)


def conditions(rows: Sequence[Row]) -> str:
    """A table for each condition: what came back behind each defense at each point, what was recognised, and the
    best attack."""
    parts = []
    for title, group in grouped(rows, lambda row: row.title).items():
        points, names = (
            ordered(point for row in group for point in row.points),
            distinct(row.defense for row in group),
        )
        lines = [["defense", *points, "identified", "named", "best attack", "cells"]]
        for row in group:
            best = row.worst.best if row.worst else None
            known = [row.most_identified, row.most_named]
            lines.append([
                names[row.defense], *(_at(row, point) for point in points),
                *(fine(each.value) if each else NONE for each in known),
                short_attack(best.attack) if best and best.asr else NONE,
                ", ".join(each[:8] for each in row.cells[:_IDS]),
            ])  # fmt: skip
        parts.append(f"### {cell(title)}\n\n{table(lines)}")
    return "\n".join(parts)


def _at(row: Row, point: str) -> str:
    at = row.points.get(point)
    if at is None or at.asr is None:
        return NONE
    return f"{rate(at.asr, lower_bound=at.lower_bound)} [{interval(at.interval)}]"
