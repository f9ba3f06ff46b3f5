"""The HTML page's charts: four Vega-Lite specifications without data, and every condition's data as JSON.

All four charts show the same condition at the same interception point. Names are data values, never field names, so an
untrusted name cannot be executed by Vega."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import altair as alt
import vl_convert

from bench.kinds.images import PSNR_DB
from bench.leaderboard.board import THRESHOLDS_DB, AtPoint, Row, on_front
from bench.leaderboard.conditions import ordered
from bench.leaderboard.forms.columns import Line
from bench.record.groups import grouped

WORST = "worst"  # stands for each defense's worst point
SUCCESS_DB = int(PSNR_DB)  # an image at or above leaks, if its PSNR also exceeds the best prior by 3 dB
_HEIGHT = 280  # pixels
_ROWS = alt.Chart(alt.NamedData("rows"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart on the HTML page: its texts, its Vega-Lite specification, and the rows that it can show."""

    id: str
    """Identifier of the HTML element."""
    heading: str
    """Heading above the chart."""
    caption: str
    """Text below the chart."""
    needs: tuple[str, ...]
    """Names of data fields; the chart shows a board row only if the row has all these fields."""
    nothing: str
    """Text in place of the chart if it can show no row."""
    most: int
    """Maximum number of rows; the rows with the best ranks are shown."""
    spec: Mapping[str, Any]
    """Vega-Lite specification without data."""


@cache
def library() -> str:
    """Return the JavaScript libraries that draw charts on a page without internet access: Vega, Vega-Lite and
    vega-embed as a single script that defines `vegaEmbed`. Building the script takes seconds."""
    version = alt.SCHEMA_VERSION.removeprefix("v").rpartition(".")[0]  # that of `charts`' specs
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", version)


def chart_to_svg(spec: Mapping[str, Any]) -> str:
    """Convert the Vega-Lite specification `spec` of a chart, with its data, to an SVG text."""
    made: str = vl_convert.vegalite_to_svg(dict(spec))
    return made


def svg_to_pdf(svg: str) -> bytes:
    """Convert the SVG text `svg` to a PDF page with the same size; text stays text."""
    made: bytes = vl_convert.svg_to_pdf(svg)
    return made


def svg_to_png(svg: str, *, scale: float) -> bytes:
    """Convert the SVG text `svg` to a PNG, enlarged by `scale`."""
    made: bytes = vl_convert.svg_to_png(svg, scale=scale)
    return made


def charts() -> list[Chart]:
    """Return the four charts for the HTML page of a board, in display order: texts and specifications without data. The
    data come from `conditions`."""
    return [
        Chart(
            id="trade",
            heading="Privacy against utility",
            needs=("asr", "accuracy"),
            most=500,
            caption="Lower right is better. The dashed line joins the Pareto front; hollow: incomplete, never on it. "
            "Bars: 95 % intervals.",
            nothing="No defense here has both an attack success rate and a training, so accuracy is unknown.",
            spec=_trade(),
        ),
        Chart(
            id="attacks",
            heading="Each attack against each defense",
            needs=("attacks",),
            most=24,
            caption="Share of examples, in percent, that each attack alone got back; in a cascade those that the "
            "attacks before it had not got back. n/a: does not apply; failed: crashed.",
            nothing="No attack was scored here.",
            spec=_heat(),
        ),
        Chart(
            id="reached",
            heading="How good the reconstructions are",
            needs=("reached",),
            most=12,
            caption=f"Share of examples that some attack brought to at least this PSNR. "
            f"Vertical line: {SUCCESS_DB} dB, the least that counts as success.",
            nothing="No reconstruction was scored here, or attacks came in a cascade and stopped at success.",
            spec=_reached(),
        ),
        Chart(
            id="learning",
            heading="What training under the defense costs",
            needs=("accuracies",),
            most=12,
            caption="Test accuracy over the rounds, mean over seeds.",
            nothing="No defense was trained on this data set and model.",
            spec=_learning(),
        ),
    ]


def conditions(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """Return the data for the charts on the HTML page of a board, as JSON types: an item for each condition (data,
    model, setting) in the board's `lines`, with its rows. An attack is given by its index in the page's list of
    attacks."""
    return [
        {
            "title": group[0].row.title,
            "points": ordered(p for line in group for p in line.row.points),
            "telling": _telling([line.row for line in group]),
            "rows": [_row(line, [other.row for other in group]) for line in group],
        }
        for group in grouped(lines, lambda line: line.row.key).values()
    ]


def _telling(rows: Sequence[Row]) -> str:
    """Return the interception point at which the defenses' success rates differ most."""
    rates: dict[str, list[float]] = {}
    for row in rows:
        for point, at in row.points.items():
            if at.asr is not None:
                rates.setdefault(point, []).append(at.asr)
    points = [point for point in ordered(rates) if len(rates[point]) > 1]
    return max(points, key=lambda point: (max(rates[point]) - min(rates[point]), points.index(point)), default=WORST)


def _row(line: Line, rows: Sequence[Row]) -> dict[str, Any]:
    row, cost, worst = line.row, line.row.cost, line.row.worst
    numbers = {full: number for number, full in enumerate(line.attacks)}
    return {
        "name": line.name,
        "complete": row.complete,
        "accuracy": cost.accuracy if cost else None,
        "rounds": [round_ for round_, _ in cost.curve] if cost else [],
        "accuracies": [round(accuracy, 4) for _, accuracy in cost.curve] if cost else [],
        "worst": worst.point if worst else None,
        "front": [WORST] * row.pareto + [p for p in row.points if on_front(row, rows, p)],
        "at": {point: _at(at, numbers) for point, at in row.points.items()},
    }


def _at(at: AtPoint, attacks: Mapping[str, int]) -> dict[str, Any]:
    unscored = dict.fromkeys(at.absent, "n/a") | dict.fromkeys(at.crashed, "failed")
    rates = {**unscored, **{name: round(rate, 3) for name, rate in at.by_attack.items()}}
    low, high = at.interval or (None, None)
    return {
        "asr": at.asr,
        "low": low,
        "high": high,
        "bound": at.lower_bound,
        "examples": at.examples,
        "attacks": [attacks[name] for name in rates],
        "rates": list(rates.values()),
        "reached": [round(share, 3) for share in at.reached] if at.asr is not None else [],
    }


def _trade() -> dict[str, Any]:
    where = {
        "x": alt.X(
            "accuracy:Q",
            title="test accuracy",
            axis=alt.Axis(format="%", tickCount=6),
            scale=alt.Scale(zero=False, nice=False, padding=24),
        ),
        "y": alt.Y("asr:Q", title="attack success rate", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
    }
    front = (
        _ROWS.mark_line(interpolate="step-before", strokeDash=[5, 4], strokeWidth=1.5)
        .encode(**where, order="accuracy:Q")
        .transform_filter("datum.front")
    )
    bars = _ROWS.mark_rule(strokeWidth=1.5).encode(
        x=where["x"],
        y=alt.Y("low:Q", title="attack success rate"),
        y2="high:Q",
        stroke=_own("colour"),
        opacity=_dimmed(0.35),
    )
    points = _ROWS.mark_point(size=90, strokeWidth=2).encode(
        **where,
        stroke=_own("colour"),
        fill=alt.Fill("fill:N", scale=None),
        opacity=_dimmed(1),
        tooltip=[
            alt.Tooltip("name:N", title="defense"),
            alt.Tooltip("rateInWords:N", title="success rate"),
            alt.Tooltip("accuracy:Q", title="accuracy", format=".1%"),
            alt.Tooltip("state:N", title="evidence"),
        ],
    )
    names = _ROWS.mark_text(dy=-11, dx=-6, align="right", limit=120).encode(**where, text="name:N", opacity=_dimmed(1))
    return _finished(alt.layer(bars, front, points, names.transform_filter("datum.front && datum.named")), _HEIGHT)


def _heat() -> dict[str, Any]:
    where = {
        "x": alt.X("attack:N", title=None, sort=None, axis=alt.Axis(labelAngle=-35, labelLimit=130)),
        "y": alt.Y("name:N", title=None, sort=None),
    }
    each = _ROWS.transform_flatten(["attacks", "rates", "marks", "inks"], ["attack", "rate", "mark", "ink"])
    cells = each.mark_rect(invalid=None, cornerRadius=2).encode(
        **where,
        color=alt.Color("rate:Q", scale=alt.Scale(domain=[0, 1]), legend=None),
        opacity=_dimmed(1),
        tooltip=[
            alt.Tooltip("name:N", title="defense"),
            alt.Tooltip("attack:N"),
            alt.Tooltip("mark:N", title="success rate, %"),
        ],
    )
    marks = each.mark_text(fontSize=11).encode(
        **where, text="mark:N", fill=alt.Fill("ink:N", scale=None), opacity=_dimmed(1)
    )
    return _finished(alt.layer(cells.transform_filter("isValid(datum.rate)"), marks), alt.Step(24))


def _reached() -> dict[str, Any]:
    span = alt.Scale(domain=[THRESHOLDS_DB[0], THRESHOLDS_DB[-1]], zero=False)
    lines = _ROWS.transform_flatten(["reached", "thresholds"], ["share", "threshold"])
    drawn = _line(lines).encode(
        x=alt.X("threshold:Q", title="PSNR, dB", scale=span),
        y=alt.Y("share:Q", title="examples", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
        tooltip=[
            alt.Tooltip("name:N", title="defense"),
            alt.Tooltip("threshold:Q", title="dB"),
            alt.Tooltip("share:Q", title="examples", format=".0%"),
        ],
    )
    least = alt.Chart(alt.InlineData([{}])).mark_rule(strokeDash=[2, 3]).encode(x=alt.XDatum(SUCCESS_DB, scale=span))
    return _finished(alt.layer(least, drawn), _HEIGHT)


def _learning() -> dict[str, Any]:
    lines = _ROWS.transform_flatten(["rounds", "accuracies"], ["round", "share"])
    drawn = _line(lines, point=True).encode(
        x=alt.X("round:Q", title="round", axis=alt.Axis(tickMinStep=1)),
        y=alt.Y("share:Q", title="test accuracy", axis=alt.Axis(format="%")),
        tooltip=[
            alt.Tooltip("name:N", title="defense"),
            alt.Tooltip("round:Q"),
            alt.Tooltip("share:Q", title="accuracy", format=".1%"),
        ],
    )
    return _finished(alt.layer(drawn), _HEIGHT)


def _line(chart: alt.Chart, *, point: bool = False) -> alt.Chart:
    line: alt.Chart = chart.mark_line(strokeWidth=2, point=point).encode(
        detail="name:N", color=_own("colour"), strokeDash=alt.StrokeDash("dash:N", scale=None), opacity=_dimmed(1)
    )
    return line


def _own(field: str) -> alt.Color:
    return alt.Color(f"{field}:N", scale=None, legend=None)


def _dimmed(full: float) -> Any:
    return alt.condition("focus == '' || datum.name == focus", alt.value(full), alt.value(0.1))


def _finished(chart: alt.LayerChart | alt.FacetChart, height: int | alt.Step) -> dict[str, Any]:
    done = chart.add_params(alt.param(name="focus", value="")).properties(width="container", height=height)
    spec: dict[str, Any] = done.to_dict()
    return spec
