"""A suite's results as Markdown: standings, undefended rows, cost by setting, attacks, every condition."""

from collections.abc import Iterable, Sequence
from statistics import median

from _make.markdown import COMMAND, HEAD
from bench.cell import AttackCell
from bench.leaderboard.attack_ranks import AttackRank
from bench.leaderboard.attackers import Cross
from bench.leaderboard.board import Row
from bench.leaderboard.conditions import ordered
from bench.leaderboard.costs import UNDEFENDED
from bench.leaderboard.forms import attackers as attackers_form
from bench.leaderboard.forms import standings as standings_form
from bench.leaderboard.forms.columns import short_attack
from bench.leaderboard.forms.markdown import cell, table
from bench.leaderboard.forms.numbers import NONE, fine, formatted, interval, rate, share
from bench.leaderboard.standings import COUNTS, Standing
from bench.record.groups import grouped
from bench.record.names import distinct, entry_text
from bench.record.schema import Record

_IDS = 2  # cells a row: the best attack at its worst point


def page(
    version: str,
    records: Sequence[Record],
    rows: Sequence[Row],
    standings: Sequence[Standing],
    attacks: Sequence[AttackRank],
) -> str:
    """The whole page."""
    parts = [
        _standings(standings),
        "## Without a defense\n\nThe share of examples that some attack reconstructs; a condition *counts* where it is "
        f"half or more.\n\n{_undefended(rows)}",
        _cost(records),
        "## The attacks\n\nOver all settings and points.  *Reconstructed* is the share of the examples that an attack "
        "saw, *of all* that of the condition's: in a cascade later attacks see what those before them left, so that "
        "the order is mostly the suite's (`bench run --full` ranks them).  *CPU s*: seconds for each example "
        f"reconstructed.\n\n{_attacks(attacks, rows)}",
        "## Every condition\n\nThe share of examples that is reconstructed, with its 95 % interval over weight seeds "
        "and readings; what is identified and named at the point where most is; the attack that reconstructs most at "
        "the worst point, which in a cascade is often the first that can.  The ids are of cells behind the row."
        f"\n\n{conditions(rows)}",
    ]
    return "\n".join([_head(version, records, standings), *parts])


def summary(version: str, records: Sequence[Record], standings: Sequence[Standing]) -> str:
    """The page in git: standings, and cost by setting."""
    more = f"Undefended rows, attacks and every condition: `{COMMAND}` writes this page whole.\n"
    return "\n".join([_head(version, records, standings), more, _standings(standings), _cost(records)])


def of_attacks(version: str, records: Sequence[Record], cross: Cross) -> str:
    """The page for the board of attacks."""
    minutes = sum(record.cost.cpu_seconds for record in records) / 60
    made = (
        f"{len(records)} cells of {len(cross.attackers)} attacks, {minutes:.0f} core-minutes; {machines(records)}; "
        f"{code(records)}.  `bench run --suite attacks`.\n"
    )
    head = HEAD.format(sources="the reference results") + f"# {version}\n\n{made}"
    return f"{head}\n{attackers_form.LEGEND}\n\n{attackers_form.markdown(cross)}"


def _head(version: str, records: Sequence[Record], standings: Sequence[Standing]) -> str:
    made = f"{len(records)} cells of {len(standings)} settings; {machines(records)}; {code(records)}.\n"
    return HEAD.format(sources="the reference results") + f"# {version}\n\n{made}"


def _standings(standings: Sequence[Standing]) -> str:
    return f"## Standings\n\n{standings_form.LEGEND}\n\n{standings_form.markdown(standings)}"


def _cost(records: Iterable[Record]) -> str:
    return f"## What it cost to measure\n\n{_costs(records)}"


def machines(records: Iterable[Record]) -> str:
    """Platforms and torch versions."""
    each = sorted({(r.environment.platform, r.environment.torch) for r in records if r.environment})
    return "; ".join(f"{platform}, torch {torch}" for platform, torch in each)


def code(records: Iterable[Record]) -> str:
    """Fingerprint of the code, first digits."""
    each = sorted({(record.provenance.bench.sha256 or "")[:12] for record in records})
    return f"fingerprint of the code {', '.join(each)}"


def _undefended(rows: Sequence[Row]) -> str:
    """Undefended rates by condition and point, which decide whether a condition counts."""
    lines = [["condition", "point", "reconstructed", "95 %", "identified", "named", "examples", "counts"]]
    for row in rows:
        for point in ordered(row.points) if row.defense == UNDEFENDED else ():
            at = row.points[point]
            lines.append(
                [
                    row.short,
                    point,
                    share(at.asr),
                    interval(at.interval),
                    fine(at.identified.value) if at.identified else NONE,
                    fine(at.named.value) if at.named else NONE,
                    str(at.examples),
                    "yes" if at.asr is not None and at.asr >= COUNTS else "no",
                ]
            )
    return table(lines)


def _costs(records: Iterable[Record]) -> str:
    """Core-minutes by setting: attacks, attacks shared with another setting, trainings."""
    by_id = {record.id: record for record in records}
    by_setting = grouped(by_id.values(), lambda record: entry_text(record.cell.defense))
    minutes: dict[str, list[float]] = {}
    for setting, own in by_setting.items():
        spent = minutes.setdefault(setting, [0.0, 0.0, 0.0])
        for record in own:
            spent[0 if isinstance(record.cell, AttackCell) else 1] += record.cost.cpu_seconds / 60
        lenders = {record.cost.reused_from for record in own} - {record.id for record in own}
        spent[2] = sum(by_id[each].cost.cpu_seconds for each in lenders if each in by_id) / 60
    lines = [["defense", "attacks", "attacks made for another setting", "trainings", "two cores, alone"]]
    for setting, (attacks, trainings, lent) in sorted(minutes.items(), key=lambda item: -sum(item[1])):
        each = (attacks, lent, trainings, (attacks + lent + trainings) / 2)
        lines.append([setting, *(f"{value:.1f}" for value in each)])
    alone = [sum(spent) / 2 for spent in minutes.values()]
    said = (
        f"In core-minutes; the last column is minutes of two cores for a setting alone: {median(alone):.1f} in the "
        f"median, {max(alone):.1f} at most.  Here settings ran together: a reading that a defense leaves as it is was "
        "attacked once for all."
    )
    return f"{said}\n\n{table(lines)}"


def _attacks(ranks: Sequence[AttackRank], rows: Sequence[Row]) -> str:
    short = {row.title: row.short for row in rows}
    lines = [["condition", "#", "attack", "reconstructed", "of all", "median PSNR", "CPU s"]]
    for each in ranks:
        lines.append(
            [
                short.get(each.title, each.title),
                str(each.rank),
                short_attack(each.attack),
                f"{share(each.rate)} [{interval(each.interval)}]",
                share(each.of_all),
                formatted(each.psnr_db, ".0f"),
                formatted(each.seconds, ".2g"),
            ]
        )
    return table(lines)


def conditions(rows: Sequence[Row]) -> str:
    """A table for each condition: rates by defense and point, recognition, the best attack."""
    parts = []
    titles = {row.title: row.short for row in rows}
    brief = len(set(titles.values())) == len(titles)
    for title, group in grouped(rows, lambda row: row.short if brief else row.title).items():
        points, names = (
            ordered(point for row in group for point in row.points),
            distinct(row.defense for row in group),
        )
        lines = [["defense", *points, "most identified", "most named", "best attack", "cells"]]
        for row in (each for each in group if each.cells):
            best = row.worst.best if row.worst else None
            known = [row.most_identified, row.most_named]
            lines.append(
                [
                    names[row.defense],
                    *(_at(row, point) for point in points),
                    *(fine(each.value) if each else NONE for each in known),
                    short_attack(best.attack) if best and best.asr else NONE,
                    ", ".join(each[:8] for each in row.cells[:_IDS]),
                ]
            )
        parts.append(f"### {cell(title)}\n\n{table(lines)}")
    return "\n".join(parts)


def _at(row: Row, point: str) -> str:
    at = row.points.get(point)
    if at is None or at.asr is None:
        return NONE
    return f"{rate(at.asr, lower_bound=at.lower_bound)} [{interval(at.interval)}]"
