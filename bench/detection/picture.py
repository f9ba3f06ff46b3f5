"""The picture of detection: caught against reconstructed, a dot for each attack and round."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.detection.measure import ROUNDS, Row
from bench.detection.sentences import COMPLETE, dots
from bench.errors import BenchError
from bench.leaderboard.forms.charts import chart_to_svg, svg_to_png
from bench.record.files import write_atomically

_COLOURS = ("#0f766e", "#c2410c", "#1d4ed8", "#a21caf", "#a16207")
_SHAPES = ("circle", "square", "triangle-up")
_SCALE = {"domain": [0, 100], "nice": False}
_CORNER = 10  # % caught: width of the shaded corner


def check(path: Path) -> None:
    """Check the name of the file `path` before a picture is drawn: raise `BenchError` for a suffix other than .svg and
    .png."""
    if path.suffix not in (".svg", ".png"):
        raise BenchError(f"--picture {path}: it ends in .svg or .png; rename it")


def save(rows: Sequence[Row], path: Path) -> None:
    """Draw which attacks of a malicious server reconstruct examples unnoticed, into the file `path`, a .svg or .png.
    There is a dot for each attack in `rows` and each round: the share of reconstructed examples against the share of
    received models for which a client's detectors give an alarm. Raises `BenchError` if no attack reconstructs
    examples."""
    text = chart_to_svg(specification(rows))
    write_atomically(path, text.encode() if path.suffix == ".svg" else svg_to_png(text, scale=2))


def specification(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the picture of the attacks in `rows` (reconstructed against caught) as a Vega-Lite specification with
    data."""
    points = _points(rows)
    families = [*dict.fromkeys(point["family"] for point in points)]
    x = {
        "field": "caught",
        "type": "quantitative",
        "scale": _SCALE,
        "title": "caught by a client, % of received models",
    }
    y = {"field": "kept", "type": "quantitative", "scale": _SCALE, "title": "reconstructed without a defense, %"}
    colour = {
        "field": "family",
        "scale": {"domain": families, "range": [*_COLOURS][: len(families)]},
        "title": "attack",
    }
    shape = {"field": "round", "scale": {"domain": [*ROUNDS.values()], "range": [*_SHAPES]}, "title": "round"}
    area = {
        "data": {"values": [{"left": 0, "right": _CORNER, "low": 100 * COMPLETE, "top": 100}]},
        "mark": {"type": "rect", "color": "#be123c", "opacity": 0.1},
        "encoding": {
            "x": {"field": "left", "type": "quantitative"},
            "x2": {"field": "right"},
            "y": {"field": "low", "type": "quantitative"},
            "y2": {"field": "top"},
        },
    }
    bars = {
        "mark": {"type": "rule", "strokeWidth": 1.5, "opacity": 0.4},
        "encoding": {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y, "color": colour},
    }
    marks = {
        "mark": {"type": "point", "filled": True, "size": 90, "opacity": 0.9},
        "encoding": {"x": x, "y": y, "color": colour, "shape": shape},
    }
    names = {
        "transform": [{"filter": "datum.name"}],
        "mark": {"type": "text", "align": "left", "dx": 8, "dy": -8, "fontSize": 11},
        "encoding": {"x": x, "y": y, "text": {"field": "name"}, "color": colour},
    }
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "title": {"text": _title(rows), "anchor": "start"},
        "width": 680,
        "height": 400,
        "data": {"values": points},
        "layer": [area, bars, marks, names],
        "config": {"view": {"stroke": None}, "axis": {"gridOpacity": 0.4, "labelFontSize": 12, "titleFontSize": 13}},
    }


def _points(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the picture's dots. An attack has its name at its least caught dot, unless all its dots are always
    caught."""
    points = []
    least = {row.attack: min(caught.share().value for caught in row.caught.values()) for row in rows}
    for row, name, caught in dots(rows):
        share, named = caught.share(), least[row.attack] < 1 and caught.share().value == least[row.attack]
        points.append(
            {
                "family": row.family,
                "round": name,
                "caught": 100 * share.value,
                "low": 100 * share.low,
                "high": 100 * share.high,
                "kept": 100 * row.reconstructed.value,
                "name": row.attack if named else "",
            }
        )
    return points


def _title(rows: Sequence[Row]) -> list[str]:
    conditions = "; ".join(dict.fromkeys(row.condition for row in rows if row.named is None))
    return [
        "Weights that a server chooses: caught against reconstructed",
        f"{conditions}. All detectors together, 5 % false alarms; bars: 95 %; shaded: uncaught and complete",
    ]
