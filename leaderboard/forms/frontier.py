"""The picture of a trade-off: accuracy kept against named examples, a line per family from weak to strong."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from bench.errors import BenchError
from bench.leaderboard.forms.charts import chart_to_svg, svg_to_png
from bench.leaderboard.forms.numbers import epsilon
from bench.leaderboard.tradeoff import Standing, ceilings, figures_of, proofs, setting, standings, strength, worst
from bench.record.files import write_atomically
from bench.record.tradeoff import Tradeoff, federation, permitted

Federation = tuple[str, str]  # (data set, model)

_NAMED = 5  # families with a colour and a place in the legend; other families are grey
_COLOURS = ("#0f766e", "#c2410c", "#1d4ed8", "#a21caf", "#a16207", "#be123c", "#4d7c0f", "#0369a1")
_GREY, _OTHERS = "#9ca3af", "other families"
_LEAST = 0.005  # share of named examples at the right end
_WIDTH, _HEIGHT = 760, 420  # pixels
_NEAR = (0.4, 2.0)  # logarithm of the share of named examples, accuracy in points: nearer names would overlap
_FLOOR = 50.0  # accuracy kept at the lower end, in % of undefended
_TOLD = {  # field → title, for the text at a point
    "setting": "--defense",
    "first": "named in the first round",
    "later": "named later",
    "all": "named with all updates",
    "any": "any attacker",
    "epsilon": "ε of the released models",
    "picture": "image",  # the page's tooltips show a field with this title as an image
}
_PLACES = {
    "type-2": "Inside the client",
    "type-1": "Leaving the client",
    "type-0": "At the server",
    "aggregate": "In the mean of a round",
}
_LOG = alt.Scale(type="log", domain=[1.0, _LEAST], nice=False)


def save(tradeoff: Tradeoff, point: str, path: Path) -> None:
    """Draw the trade-off between accuracy and leakage into the file `path`, for the listener (the attacker) at an
    interception point. Raises `BenchError` for a suffix other than .svg and .png, and if there is nothing to draw.

    - `tradeoff`: accuracy and leakage of each defense at several strengths.
    - `point`: name of the interception point."""
    if path.suffix not in (".svg", ".png"):
        raise BenchError(f"--picture {path}: it ends in .svg or .png; rename it")
    text = svg(tradeoff, point)
    write_atomically(path, text.encode() if path.suffix == ".svg" else svg_to_png(text, scale=2))


def svg(tradeoff: Tradeoff, point: str, where: Federation | None = None) -> str:
    """Return a picture of the trade-off between accuracy and leakage as SVG, for the listener (the attacker) at an
    interception point. Raises `BenchError` if there is nothing to draw.

    - `tradeoff`: accuracy and leakage of each defense at several strengths.
    - `point`: name of the interception point.
    - `where`: the federation, given as (data set, model); None draws all federations, one below the other."""
    drawn = [specification(tradeoff, point, each) for each in standings(tradeoff, point) if where in (None, each)]
    specs = [each for each in drawn if each is not None]
    if not specs:
        raise BenchError(f"no family has a training at {point}: there is nothing to draw")
    return chart_to_svg(specs[0] if len(specs) == 1 else _stacked(specs))


def specification(
    tradeoff: Tradeoff, point: str, where: Federation, *, pictures: bool = False
) -> dict[str, Any] | None:
    """Return a picture of the trade-off between accuracy and leakage as a Vega-Lite specification with data. None if no
    defense family (a defense at all its strengths) has a training.

    - `tradeoff`: accuracy and leakage of each family.
    - `point`: interception point of the listener (the attacker).
    - `where`: the federation, given as (data set, model).
    - `pictures`: True adds victims and reconstructions to the texts at points."""
    ranked = standings(tradeoff, point)[where]
    points = _points(tradeoff, ranked, pictures)
    if not points:
        return None
    spec: dict[str, Any] = _chart(tradeoff, point, ranked, points, _colours(tradeoff, point)).to_dict()
    return spec


def _named(ranked: Sequence[Standing]) -> list[Standing]:
    return [each for each in ranked[:_NAMED] if each.rank is not None]


def _colours(tradeoff: Tradeoff, point: str) -> dict[str, str]:
    """Return a colour for each family with a name in some federation's picture; equal in all federations."""
    families = dict.fromkeys(
        each.row.family for ranked in standings(tradeoff, point).values() for each in _named(ranked)
    )
    return {family: _COLOURS[number % len(_COLOURS)] for number, family in enumerate(families)}


def _stacked(specs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the specifications one below the other; configuration and schema are those of the first."""
    shared = {key: specs[0][key] for key in ("config", "$schema")}
    parts = [{key: each[key] for key in each if key not in shared} for each in specs]
    apart = {"scale": {"color": "independent"}, "legend": {"color": "independent"}}
    return {**shared, "vconcat": parts, "resolve": apart}


def _points(tradeoff: Tradeoff, ranked: Sequence[Standing], pictures: bool) -> list[dict[str, Any]]:
    labels = {each.row.family: _label(each) for each in _named(ranked)}
    points = []
    for each in ranked:
        row = each.row
        drawn = (at for at in figures_of(each) if 100 * tradeoff.kept(row, at) >= _FLOOR)
        order = sorted(drawn, key=lambda at: -(at.most or 0.0))  # from weak to strong
        for number, at in enumerate(order):
            points.append(
                {
                    "line": row.family,
                    "order": number,
                    "named": max(_LEAST, worst(at)),
                    "kept": 100 * tradeoff.kept(row, at),
                    "proved": at.proved,
                    "label": labels.get(row.family, _OTHERS),
                    "setting": setting(row, at),
                    "first": _percent(at.share),
                    "later": "–" if at.trained is None else _percent(at.trained[0]),
                    "all": "–" if at.all_updates is None else _percent(at.all_updates[0]),
                    "any": ceilings(row, at),
                    "epsilon": "–" if at.released is None else f"{epsilon(at.released)}, {at.released_of}",
                    "name": "",
                    "picture": f"data:image/webp;base64,{at.picture}" if pictures and at.picture else "",
                }
            )
        if points and points[-1]["line"] == row.family not in labels:
            _name(points, row.family.partition("(")[0])
    return points


def _name(points: list[dict[str, Any]], name: str) -> None:
    """Write the grey `name` of a family beside its last point, the last of `points`, or behind the name of a near
    point, so that names do not overlap."""
    last = points[-1]
    for other in points:
        near = abs(math.log(other["named"] / last["named"])) < _NEAR[0] and abs(other["kept"] - last["kept"]) < _NEAR[1]
        if other["name"] and near:
            other["name"] += f", {name}"
            return
    last["name"] = name


def _label(standing: Standing) -> str:
    name, at = standing.row.family.partition("(")[0], standing.at.get("L1")
    if at is None:
        return name
    typed = "" if at.value is None else f", {strength(standing.row, at)}"
    return f"{name}{typed}: {100 * standing.kept['L1']:.0f} %"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _chart(
    tradeoff: Tradeoff,
    point: str,
    ranked: Sequence[Standing],
    points: list[dict[str, Any]],
    colour_of: Mapping[str, str],
) -> Any:
    chance = max(each.row.chance or 0.0 for each in ranked)
    one = ranked[0].row
    commonest = tradeoff.commonest[federation(one.dataset, one.model)]
    constant = 100 * commonest / tradeoff.undefended_mean(one.dataset, one.model)
    level = permitted("L1", chance)
    x = alt.X(
        "named:Q",
        scale=_LOG,
        axis=alt.Axis(format=".1~%", values=[1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01]),
        title=["examples that an informed attacker names,", "in the first round or later (right is private)"],
    )
    y = alt.Y(
        "kept:Q",
        scale=alt.Scale(domain=[max(_FLOOR, math.floor(constant)), 102 if constant < _FLOOR else 101], clamp=True),
        title="accuracy kept, % of undefended",
    )
    shown = {each["label"]: colour_of[each["line"]] for each in points if each["label"] != _OTHERS}
    legend = alt.Legend(title="accuracy kept at L1", orient="bottom", columns=1, labelLimit=0, labelFontSize=13)
    colour = alt.Color(
        "label:N", scale=alt.Scale(domain=[*shown, _OTHERS], range=[*shown.values(), _GREY]), legend=legend
    )
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
    spoken = alt.Description("setting:N")  # otherwise all texts of the point, and the picture's bytes
    open_, full = (mark.encode(x=x, y=y, color=colour, tooltip=told, description=spoken) for mark in (hollow, full))
    names = (
        base.mark_text(align="left", dx=10, dy=4, fontSize=12)
        .encode(x=x, y=y, text="name:N", color=colour)
        .transform_filter("datum.name")
    )
    return (
        (area + rule + lines + names + open_ + full)  # points above texts: they have tooltips
        .properties(width=_WIDTH, height=_HEIGHT, title={"text": _title(tradeoff, point, ranked), "anchor": "start"})
        .configure_view(stroke=None)
        .configure_axis(gridOpacity=0.4, labelFontSize=12, titleFontSize=13)
    )


def _data(values: list[dict[str, Any]]) -> Any:
    return alt.Data(values=values)  # type: ignore[no-untyped-call]


def _title(tradeoff: Tradeoff, point: str, ranked: Sequence[Standing]) -> list[str]:
    hidden = [each for each in ranked if "L1" in each.at]
    proved = proofs(tradeoff, ranked)
    one = ranked[0].row
    best = "no proof by ε"
    if proved:
        kept, row, _ = proved[0]
        best = f"{row.family.partition('(')[0]} keeps {kept:.0%} with a proof by ε"
    first = (
        f"{_PLACES[point]}, {len(hidden)} of {len(ranked)} families hide an update's examples and stay useful; {best}"
    )
    second = f"{one.dataset}, {one.model}; right of the dashed line: L1, chance + 5 points; filled: proved by ε"
    return [first, second, "Points are of other victims than the calibration's, and scatter about the line"]
