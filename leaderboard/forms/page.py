"""Rows → one HTML file that opens offline: the board, its pictures, its charts.

Text of strangers enters through `html.tag` and `html.json_block` alone; the page's policy lets only its own scripts
run, by their hashes, and nothing load.
"""

import gzip
import hashlib
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template

from bench.leaderboard.board import THRESHOLDS_DB, Row
from bench.leaderboard.forms.charts import charts, conditions, library
from bench.leaderboard.forms.html import Html, join, json_block, tag
from bench.leaderboard.forms.numbers import distinct
from bench.leaderboard.forms.page_table import flags_of, met, table
from bench.pictures.thumbnails import Thumbnail

PAGE_ROWS = 25  # of the table, before there is a second page
_EMPTY = "There is nothing to show yet: these runs hold no finished attack."


def render(
    rows: Sequence[Row], *, thumbnails: Mapping[tuple[str, str], Thumbnail], title: str, said: Sequence[str]
) -> str:
    """The page of these rows (in the order of `board`), which keep that order until a reader sorts them.

    `thumbnails` by (key, defense) as `thumbnails.of_rows` gives them; `said` lines of context below `title`, such
    as runs, protocol and commit.
    """
    names = _names(rows)
    attacks = distinct(sorted(_attacks(rows)))
    blocks, scripts = _blocks(rows, names, attacks) if rows else ([], [])
    page = Template(_own("page.html")).substitute(
        policy=escape(_policy(scripts)), style=_own("page.css"), title=escape(title),
        said=tag("ul", *(tag("li", line) for line in said), class_="said") if said else "",
        filters=_filters(rows) if rows else "",
        table=table(rows, names, attacks, thumbnails) if rows else tag("p", _EMPTY, class_="nothing"),
        charts=_charts(rows) if rows else "", glossary=_glossary(attacks), scripts=join(blocks),
    )  # fmt: skip
    return page.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair cannot be written


def _own(name: str) -> str:
    return files("bench.leaderboard.forms").joinpath(name).read_text("utf-8")


def _blocks(
    rows: Sequence[Row], names: Mapping[tuple[str, str], str], attacks: Mapping[str, str]
) -> tuple[list[Html], list[str]]:
    """The data and scripts as elements, and the scripts' sources."""
    shared = {
        "charts": [chart.json() for chart in charts()], "attacks": list(attacks.values()),
        "conditions": conditions(rows, names, {full: number for number, full in enumerate(attacks)}),
        "thresholds": THRESHOLDS_DB, "pageRows": PAGE_ROWS,
    }  # fmt: skip
    source = _own("page.js")
    datatables = files("itables").joinpath("html/dt_bundle.js").read_text("utf-8")
    data = [
        json_block(_packed(datatables), "datatables"),
        json_block(_packed(library()), "vega"),
        json_block(shared, "data"),
    ]
    return [*data, Html(f'<script type="module">{source}</script>')], [source]


def _packed(source: str) -> str:
    """A library at a third of its size, the same bytes each time."""
    return b64encode(gzip.compress(source.encode(), mtime=0)).decode()


def _policy(scripts: Iterable[str]) -> str:
    """What the browser is to refuse: all but these scripts, the page's style and the pictures inside it."""
    hashes = [b64encode(hashlib.sha256(source.encode()).digest()).decode() for source in scripts]
    allowed = " ".join([*(f"'sha256-{own}'" for own in hashes), "blob:"]) if hashes else "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


# --- names


def _names(rows: Sequence[Row]) -> dict[tuple[str, str], str]:
    """Short names of defenses, told apart within their condition, by (key, defense)."""
    by_key: dict[str, list[str]] = {}
    for row in rows:
        by_key.setdefault(row.key, []).append(row.defense)
    return {(key, full): short for key, own in by_key.items() for full, short in distinct(own).items()}


def _attacks(rows: Iterable[Row]) -> set[str]:
    return {name for row in rows for at in row.points.values() for name in met(at)}


# --- filters and charts: the script below them brings them to life


def _filters(rows: Sequence[Row]) -> Html:
    sets = Counter(row.dataset for row in rows)
    codes = Counter(flag.code for row in rows for flag in flags_of(row))
    return tag(
        "form",
        tag("label", tag("span", "Search"), tag("input", type="search", id="search", autocomplete="off")),
        tag("label", tag("span", "Data set"), _select("dataset", "all", sets)),
        tag("label", tag("span", "Flag"), _select("flag", "any or none", codes)),
        tag("label", tag("input", type="checkbox", id="pareto"), tag("span", "Pareto only"), class_="check"),
        tag("label", tag("input", type="checkbox", id="complete"), tag("span", "Complete only"), class_="check"),
        id="filters", hidden=True, aria_label="Filter the table",
    )  # fmt: skip


def _select(name: str, everything: str, counts: Mapping[str, int]) -> Html:
    options = [
        tag("option", f"{value} ({count})", value=f"={value}") for value, count in sorted(counts.items())
    ]
    return tag("select", tag("option", everything, value=""), *options, id=name)


def _charts(rows: Sequence[Row]) -> Html:
    titles = list(dict.fromkeys((row.key, row.title) for row in rows))
    figures = [
        tag(
            "figure", tag("h3", chart.heading, id=f"{chart.id}-heading"),
            tag("div", class_="chart", id=f"{chart.id}-chart", role="group", aria_labelledby=f"{chart.id}-heading"),
            tag("figcaption", chart.caption, tag("span", id=f"{chart.id}-note")),
        )
        for chart in charts()
    ]  # fmt: skip
    section = tag(
        "section", tag("h2", "Charts", id="charts-heading"),
        tag(
            "form",
            tag(
                "label", tag("span", "Condition"),
                tag("select", *(tag("option", own, value=n) for n, (_, own) in enumerate(titles)), id="condition"),
            ),
            tag("label", tag("span", "Interception point"), tag("select", id="point")),
            id="choice", aria_label="What the charts show",
        ),
        tag("ul", id="key", aria_label="Defenses; press one to bring it out"),
        tag("div", *figures, class_="figures"),
        id="charts", aria_labelledby="charts-heading", hidden=True,
    )  # fmt: skip
    without = tag("p", "Sorting and charts need JavaScript; the table has all figures.", class_="nothing")
    return join([tag("noscript", without), section])


def _glossary(attacks: Mapping[str, str]) -> Html:
    renamed = {short: full for full, short in sorted(attacks.items(), key=lambda item: item[1])}
    if not renamed:
        return Html("")
    terms = [part for short, full in renamed.items() for part in (tag("dt", short), tag("dd", full))]
    inner = tag("details", tag("summary", "Attacks in full"), tag("dl", *terms, class_="names"))
    return tag("section", inner, class_="glossary")
