"""The picture of a trade-off: accuracy kept against named examples, a line per family from weak to strong."""

from pathlib import Path
from typing import Any

import altair as alt

from bench.errors import BenchError
from bench.leaderboard.forms.charts import chart_to_svg, svg_to_png
from bench.leaderboard.forms.numbers import epsilon
from bench.leaderboard.tradeoff import ceilings, proofs, rows_at, setting, standings, worst
from bench.record.files import write_atomically
from bench.record.tradeoff import PROVED, Tradeoff, permitted

_COLOURS = ("#0f766e", "#c2410c", "#1d4ed8", "#a21caf", "#a16207")  # of the first families; other families are grey
_GREY = "#9ca3af"
_LEAST = 0.005  # share of named examples at the right end
_WIDTH, _HEIGHT = 760, 420  # pixels
_LABELLED = ("L1", PROVED)  # levels whose points show their strength
_TOLD = {  # field → title, for the text at a point
    "setting": "--defense",
    "first": "named in the first round",
    "later": "named later",
    "any": "any attacker",
    "epsilon": "ε of the released models",
}
_PLACES = {
    "type-2": "Inside the client",
    "type-1": "Leaving the client",
    "type-0": "At the server",
    "aggregate": "In the mean of a round",
}
_LOG = alt.Scale(type="log", domain=[1.0, _LEAST], nice=False)


def save(tradeoff: Tradeoff, point: str, path: Path) -> None:
    """Draw the trade-off for the listener at `point` into `path`; raises `BenchError` for a suffix other than .svg and
    .png, and if there is nothing to draw."""
    if path.suffix not in (".svg", ".png"):
        raise BenchError(f"--picture {path}: it ends in .svg or .png; rename it")
    text = svg(tradeoff, point)
    write_atomically(path, text.encode() if path.suffix == ".svg" else svg_to_png(text, scale=2))


def svg(tradeoff: Tradeoff, point: str) -> str:
    """Return the picture for the listener at `point` as SVG; raises `BenchError` if there is nothing to draw."""
    return chart_to_svg(specification(tradeoff, point))


def specification(tradeoff: Tradeoff, point: str) -> dict[str, Any]:
    """Return the picture for the listener at `point` as a Vega-Lite specification with data; raises `BenchError` if
    there is nothing to draw."""
    points = _points(tradeoff, point)
    if not points:
        raise BenchError(f"no family has a training at {point}: there is nothing to draw")
    spec: dict[str, Any] = _chart(tradeoff, point, points).to_dict()
    return spec


def _points(tradeoff: Tradeoff, point: str) -> list[dict[str, Any]]:
    named = _coloured(tradeoff, point)
    points = []
    for row in rows_at(tradeoff, point):
        order = sorted(row.at_levels, key=lambda at: -(at.most or 0.0))  # from weak to strong
        for number, at in enumerate(order):
            points.append(
                {
                    "family": row.family.partition("(")[0],
                    "line": row.family,
                    "order": number,
                    "named": max(_LEAST, worst(at)),
                    "kept": 100 * tradeoff.kept(row, at),
                    "proved": at.proved,
                    "colour": named.get(row.family, _GREY),
                    "text": f"{at.value:.2g}" if at.value is not None and at.level in _LABELLED else "",
                    "setting": setting(row, at),
                    "first": _percent(at.share),
                    "later": "–" if at.trained is None else _percent(at.trained[0]),
                    "any": ceilings(row, at),
                    "epsilon": "–" if at.released is None else f"{epsilon(at.released)}, {at.released_of}",
                    "end": number == len(order) - 1,
                }
            )
    return points


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _coloured(tradeoff: Tradeoff, point: str) -> dict[str, str]:
    ranked = [each for group in standings(tradeoff, point).values() for each in group]
    return {each.row.family: colour for each, colour in zip(ranked, _COLOURS, strict=False)}


def _chart(tradeoff: Tradeoff, point: str, points: list[dict[str, Any]]) -> Any:
    chance = max(row.chance or 0.0 for row in rows_at(tradeoff, point))
    level = permitted("L1", chance)
    x = alt.X(
        "named:Q",
        scale=_LOG,
        axis=alt.Axis(format=".1~%", values=[1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01]),
        title="examples that an informed attacker names, in the first round or later (right is private)",
    )
    y = alt.Y("kept:Q", scale=alt.Scale(domain=[50, 102]), title="accuracy kept, % of undefended")
    colour = alt.Color("colour:N", scale=None)
    base = alt.Chart(_data(points))
    area = (
        alt.Chart(_data([{"from": level, "to": _LEAST}]))
        .mark_rect(color="#0f766e", opacity=0.08)
        .encode(x=alt.X("from:Q", scale=_LOG), x2="to:Q")
    )
    limit = alt.Chart(_data([{"at": level}]))
    rule = limit.mark_rule(strokeDash=[6, 4], color="#111827").encode(x=alt.X("at:Q"))
    lines = base.mark_line(strokeWidth=2.5).encode(x=x, y=y, detail="line:N", order="order:Q", color=colour)
    hollow = base.mark_point(filled=False, size=80, opacity=1, fill="white").transform_filter("!datum.proved")
    full = base.mark_point(filled=True, size=80, opacity=1).transform_filter("datum.proved")
    told = [alt.Tooltip(f"{field}:N", title=title) for field, title in _TOLD.items()]
    open_, full = (mark.encode(x=x, y=y, color=colour, tooltip=told) for mark in (hollow, full))
    values = base.mark_text(dy=-12, fontSize=11).encode(x=x, y=y, text="text:N", color=colour)
    names = (
        base.mark_text(align="left", dx=10, dy=4, fontSize=13, fontWeight="bold")
        .encode(x=x, y=y, text="family:N", color=colour)
        .transform_filter("datum.end")
    )
    return (
        (area + rule + lines + values + names + open_ + full)  # points above texts: they have tooltips
        .properties(width=_WIDTH, height=_HEIGHT, title={"text": _title(tradeoff, point), "anchor": "start"})
        .configure_view(stroke=None)
        .configure_axis(gridOpacity=0.4, labelFontSize=12, titleFontSize=13)
    )


def _data(values: list[dict[str, Any]]) -> Any:
    return alt.Data(values=values)  # type: ignore[no-untyped-call]


def _title(tradeoff: Tradeoff, point: str) -> list[str]:
    ranked = [each for group in standings(tradeoff, point).values() for each in group]
    hidden = [each for each in ranked if "L1" in each.at]
    proved = len(proofs(tradeoff, ranked))
    first = f"{_PLACES[point]}, {len(hidden)} of {len(ranked)} families hide examples with a useful accuracy"
    return [first, f"right of the dashed line: L1, chance + 5 points; filled: proved by ε ({proved} families)"]
