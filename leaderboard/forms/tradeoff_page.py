"""The page of a trade-off: for each listener the picture of accuracy against named examples, and the table."""

from typing import Any

from bench.leaderboard.forms import frontier, offline
from bench.leaderboard.forms.charts import library
from bench.leaderboard.forms.numbers import NONE, bracketed, epsilon
from bench.leaderboard.tradeoff import (
    LISTENERS,
    READING,
    Standing,
    ceilings,
    epsilons,
    findings_of,
    leakage,
    levels_of,
    proof,
    reason,
    setting,
    standings,
    undefended,
)
from bench.record.tradeoff import PROVED_ALL, AtLevel, Tradeoff, codes

_HEADS = (
    "#",
    "defense",
    "accuracy kept",
    "named",
    "later",
    "all updates",
    "any attacker",
    READING,
    "L1 proved",
    "for all readings",
    "ε, training",
)


def render(tradeoff: Tradeoff) -> str:
    """Return the HTML page of a trade-off between accuracy and leakage, with a section for each listener (the attacker
    at an interception point) and a switch between listeners. In a browser without scripts, the page shows all sections,
    without pictures. `tradeoff`: accuracy and leakage of each defense at several strengths."""
    sections = [_section(tradeoff, name) for name in LISTENERS if standings(tradeoff, LISTENERS[name][0])]
    data = {table["id"]: table.pop("spec") for each in sections for table in each["tables"]}
    return offline.render(
        offline.environment(),
        "tradeoff.html",
        script="tradeoff.js",
        title="Accuracy at equal leakage",
        context=[f"processor: {tradeoff.machine or 'unknown'}", f"code: {codes(tradeoff)}"],
        sections=sections,
        data={"vega": offline.packed(library()), "pictures": data},
    )


def _section(tradeoff: Tradeoff, name: str) -> dict[str, Any]:
    point, meaning = LISTENERS[name]
    tables = [
        {
            "id": f"{name}-{number}",
            "heading": f"{where[0]}, {where[1]}",
            "undefended": undefended(tradeoff, *where),
            "levels": {
                level: (_heads(level), [_row(tradeoff, each, level) for each in ranked]) for level in levels_of(ranked)
            },
            "findings": tuple(findings_of(tradeoff, ranked)),
            "spec": frontier.specification(tradeoff, point, where, pictures=True),
        }
        for number, (where, ranked) in enumerate(standings(tradeoff, point).items())
    ]
    return {"name": name, "meaning": f"{meaning} ({point})", "tables": tables}


def _heads(level: str) -> tuple[str, ...]:
    return tuple(leakage(level) if head == "named" else head for head in _HEADS)


def _row(tradeoff: Tradeoff, each: Standing, level: str) -> list[str]:
    at = each.at.get(level)
    if at is None:
        return ["·", each.row.family, reason(each, level), *[NONE] * (len(_HEADS) - 3)]
    return [
        str(each.rank),
        setting(each.row, at),
        f"{each.kept[level]:.1%}",
        f"{bracketed(at.share, at.low, at.high)} %",
        NONE if at.trained is None else f"{bracketed(*at.trained)} %",
        NONE if at.all_updates is None else f"{bracketed(*at.all_updates)} %",
        ceilings(each.row, at),
        epsilons(tradeoff, each.row, at),
        proof(tradeoff, each.row),
        proof(tradeoff, each.row, PROVED_ALL),
        _released(at),
    ]


def _released(at: AtLevel) -> str:
    return NONE if at.released is None else f"{epsilon(at.released)} ({at.released_of})"
