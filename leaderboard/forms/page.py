"""Write board rows as a single HTML file that opens offline, with the board, reconstructions and charts."""

from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Any

from jinja2 import Environment
from markupsafe import Markup, escape

from bench.leaderboard.attackers import Cross
from bench.leaderboard.board import THRESHOLDS_DB, Row
from bench.leaderboard.flags import FAULTS, INCOMPLETE
from bench.leaderboard.forms import offline
from bench.leaderboard.forms.attackers import LEGEND as ATTACKERS_LEGEND
from bench.leaderboard.forms.attackers import page_table
from bench.leaderboard.forms.charts import charts, conditions, library
from bench.leaderboard.forms.columns import Line, codes, columns, compared, lines, recognised, unscored
from bench.leaderboard.forms.numbers import formatted, interval, rate, share
from bench.leaderboard.forms.poster import heat
from bench.leaderboard.forms.standings import LEGEND, Figures, figures
from bench.leaderboard.forms.standings import columns as columns_of
from bench.leaderboard.forms.strips import VICTIMS_NAME
from bench.leaderboard.standings import Standing
from bench.pictures.thumbnails import Thumbnail
from bench.pictures.words import Words

PAGE_ROWS = 25  # rows on a page of the table
LONGEST = 400  # characters shown from a reason, which may hold a whole traceback


def render(
    rows: Sequence[Row],
    *,
    thumbnails: Mapping[tuple[str, str], Thumbnail | list[Words]],
    title: str,
    context: Sequence[str],
    standings: Sequence[Standing] = (),
    strips: Mapping[str, bytes] | None = None,
) -> str:
    """Return the HTML page of a board; readers of the page can sort its rows.

    - `rows`: board rows, in the order in which the page first shows them.
    - `thumbnails`: images of reconstructions, or texts in words, by (condition key, defense).
    - `title`: heading of the page.
    - `context`: lines below the heading, such as runs, protocol and commit.
    - `standings`: each defense's means over a suite of conditions, shown first; empty without a suite.
    - `strips`: map from defense to a WebP image next to its standing; None for no images."""
    shown = [column for column in columns(rows) if "page" in column.forms]
    named = lines(rows)
    names = [metric.label for metric in compared(rows)]
    return offline.render(
        _templates(),
        "page.html",
        script="page.js" if rows else None,
        title=title,
        context=context,
        lines=[(line, thumbnails.get((line.row.key, line.row.defense))) for line in named],
        texts=any(isinstance(each, list) for each in thumbnails.values()),
        columns=shown,
        groups=[(name, len(list(group))) for name, group in groupby(column.group for column in shown)],
        attacks=sorted((short, full) for full, short in (named[0].attacks if named else {}).items()),
        datasets=Counter(row.dataset for row in rows),
        codes=Counter(code for row in rows for code in codes(row)),
        charts=charts(),
        titles=_titles(rows),
        data=_data(named) if rows else {},
        legend=LEGEND,
        metrics=" and ".join((", ".join(names[:-1]), names[-1])),
        places=columns_of(standings),
        incomplete=[code for code in INCOMPLETE if code not in FAULTS],
        standings=_standings(standings, strips or {}),
        victims=(strips or {}).get(VICTIMS_NAME),
    )


def render_attackers(crosses: Sequence[tuple[str, Cross]], *, context: Sequence[str]) -> str:
    """Return the HTML page of tables of attacks by conditions, without scripts. `crosses` are pairs (heading, table).
    `context` are lines below the title, such as runs, protocol and commit."""
    return offline.render(
        _templates(),
        "attackers.html",
        title="Gradient leakage, board of attacks",
        context=context,
        legend=ATTACKERS_LEGEND,
        tables=[page_table(heading, cross) for heading, cross in crosses],
    )


def _titles(rows: Sequence[Row]) -> list[str]:
    """Return each condition's title, or its short title if no other condition has the same short title."""
    full = {row.key: row.title for row in rows}
    short = {row.key: row.short for row in rows}
    counts = Counter(short.values())
    return [short[key] if counts[short[key]] == 1 and short[key] else title for key, title in full.items()]


def _standings(
    standings: Sequence[Standing], strips: Mapping[str, bytes]
) -> list[tuple[Standing, Figures, bytes | None]]:
    lines = figures(standings)
    return [(each, line, strips.get(each.defense)) for each, line in zip(standings, lines, strict=True)]


def _data(named: Sequence[Line]) -> dict[str, Any]:
    attacks = named[0].attacks
    shared = {
        "charts": [asdict(chart) for chart in charts()],
        "attacks": list(attacks.values()),
        "conditions": conditions(named),
        "thresholds": THRESHOLDS_DB,
        "pageRows": PAGE_ROWS,
    }
    datatables = files("itables").joinpath("html/dt_bundle.js").read_text("utf-8")
    return {"datatables": offline.packed(datatables), "vega": offline.packed(library()), "data": shared}


@cache
def _templates() -> Environment:
    environment = offline.environment()
    environment.globals |= {"bad": (*INCOMPLETE, *FAULTS), "rates": _rates, "tap": _tap, "unscored": unscored}
    environment.filters |= {
        "share": share,
        "interval": interval,
        "cut": _cut,
        "codes": codes,
        "rate": rate,
        "breakable": _breakable,
        "heat": heat,
        "image": lambda thumbnail: f"data:image/webp;base64,{b64encode(thumbnail.webp).decode()}",
        "strip": lambda webp: f"data:image/webp;base64,{b64encode(webp).decode()}",
    }
    return environment


def _rates(row: Row) -> dict[str, str]:
    """Map each attack to its success rate at each point, as text."""
    rates: dict[str, list[str]] = {}
    for point, at in row.points.items():
        for attack, value in at.by_attack.items():
            rates.setdefault(attack, []).append(f"{share(value)} at {point}".replace(" ", "\u00a0"))
    return {attack: ", ".join(each) for attack, each in sorted(rates.items())}


def _tap(row: Row, point: str) -> str:
    """Return the figures at an interception point as text: number of examples, recognition rates, and ε."""
    at = row.points[point]
    once = "" if at.at_least_once is None else f", {share(at.at_least_once)} on some draw of the noise"
    why = f" ({_cut(at.epsilon_absent)})" if at.epsilon is None and at.epsilon_absent else ""
    epsilon = "none" if at.epsilon is None else formatted(at.epsilon, ".3g")
    known = [
        f"; {what} {recognised(rate)}" for what, rate in (("identified", at.identified), ("named", at.named)) if rate
    ]
    return f"{at.examples} examples{once}{''.join(known)}; ε at this point: {epsilon}{why}"


def _breakable(name: str) -> Markup:
    return Markup("<wbr>(").join(escape(name).split("("))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
