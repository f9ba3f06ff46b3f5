"""DEFENSES.md: each registered defense, status in the literature, our figures."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from _make.markdown import HEAD, plain, source, table
from bench.leaderboard.forms.numbers import NONE, epsilon, fine, rate, share
from bench.leaderboard.standings import Standing
from bench.matrix.entries import registered
from bench.points import POINTS
from bench.record.names import entry_text
from bench.record.schema import Record
from bench.registry import entries

NOT_MEASURED = "not measured yet"
# For a defense without a row in literature.toml.
UNKNOWN = {"status": "no attack on it is known to us", "text": "Our search has not covered it yet."}


def page(literature: Path, version: str, records: Sequence[Record], every: Sequence[Standing]) -> str:
    """A section for each defense; `literature`: TOML file, a status for each."""
    statuses = tomllib.loads(literature.read_text("utf-8"))
    names = [name for name in entries.names("defenses") if entries.origin("defenses", name).built_in]
    statuses |= {name: UNKNOWN for name in names if name not in statuses}
    rows = [
        [
            f"[{name}](#{name})",
            ", ".join(_strings(entries.literals("defenses", name).get("stages"))) or NONE,
            statuses[name]["status"],
            _best(its, every) if (its := _settings(every, name)) else NOT_MEASURED,
        ]
        for name in names
    ]
    parts = [
        HEAD.format(sources="the classes or docs/literature.toml") + "# Defenses\n",
        "Each registered defense: source, idea, stages, default strength, status in the literature, our figures.\n"
        "*Leaked* is the share of examples that some attacker reconstructs.  *Recognised* is the share of examples\n"
        "that some attacker tells from others.  Both are means over the conditions that count.  A small share\n"
        "of leaked examples is a lower bound: read the share with *recognised*, and see\n"
        "[EVALUATION.md](EVALUATION.md).  The papers' claims: [CLAIMS.md](CLAIMS.md).\n",
        source(version, records),
        table(["defense", "stages", "literature", "best rank here"], rows),
    ]
    return "\n".join(parts + [_defense(name, statuses[name], _settings(every, name), len(every)) for name in names])


def _defense(name: str, status: Mapping[str, str], its: Sequence[Standing], of: int) -> str:
    literals = entries.literals("defenses", name)
    sentence = re.split(r"\.(?=\s|$)", str(literals.get("__doc__") or ""), maxsplit=1)[0]
    facts = [
        ("Idea", plain(" ".join(sentence.split()) + ".")),
        ("Source", plain(str(literals.get("reference") or NONE))),
        ("Stages", ", ".join(_strings(literals.get("stages"))) or NONE),
        ("Default strength", f"`{entry_text(registered('defense', name, entries))}`"),
        ("Literature", f"{status['status']}. {status['text']}"),
    ]
    listed = "\n".join(f"- **{fact}**: {text}" for fact, text in facts)
    return f"## {name}\n\n{listed}\n\n" + (_figures(its, of) if its else f"Our verdict: {NOT_MEASURED}.\n")


def _figures(its: Sequence[Standing], of: int) -> str:
    points = [point for point in POINTS if any(point in standing.points for standing in its)]
    heads = [*(f"leaked, {point}" for point in points), *(f"recognised (chance), {point}" for point in points)]
    rows = [_row(standing, points, of) for standing in its]
    return table(["setting", "rank", *heads, "ε", "accuracy"], rows)


def _row(standing: Standing, points: Sequence[str], of: int) -> list[str]:
    places = [standing.points.get(point) for point in points]
    rank = f"lacks {standing.missing} figures" if standing.missing else f"{standing.rank} of {of}"
    diverged = f", {len(standing.diverged)} diverged" if standing.diverged else ""
    return [
        f"`{standing.defense}`",
        ", ".join([rank, *standing.faults]),
        *(rate(place.leaked, lower_bound=place.lower_bound) if place else NONE for place in places),
        *(
            f"{share(place.recognised)} ({fine(place.chance)})" if place and place.recognised is not None else NONE
            for place in places
        ),
        NONE if standing.epsilon is None else f"{epsilon(standing.epsilon)}, {standing.epsilon_of}",
        share(standing.accuracy, 1) + diverged,
    ]


def _settings(every: Iterable[Standing], name: str) -> list[Standing]:
    return [standing for standing in every if standing.defense.partition("(")[0] == name]


def _best(its: Sequence[Standing], every: Sequence[Standing]) -> str:
    ranks = [standing.rank for standing in its if not standing.missing and not standing.faults]
    return f"{min(ranks)} of {len(every)}" if ranks else "not ranked"


def _strings(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, tuple) else []
