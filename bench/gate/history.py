"""A gate's history: a JSON line per commit, as a page and as a badge.

Lines are sorted by time, so branches that append merge by the line (`merge=union` in `.gitattributes`)."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from bench.errors import BenchError
from bench.gate.verdict import Comparison, Verdict
from bench.leaderboard.forms import offline
from bench.record.files import write_atomically
from bench.sanitize import LONG, first_error, sanitize

_MOST_CHARTS = 200
_COLOURS = {"pass": "#2f7d4f", "weaker": "#b3261e", "changed": "#b3261e", "inconclusive": "#9a6700"}
_WORDS = {"pass": "holds", "weaker": "weaker", "changed": "baseline changed", "inconclusive": "inconclusive"}
_WIDTH, _HEIGHT, _EDGE = 320, 84, 6
_LEAST, _MOST = -1.0, 3.0  # axis, in margins


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Result of a comparison in the gate's history: how much a metric of a defense worsened at a commit. The metric is
    measured at an interception point under a condition (data, model and setting)."""

    after: float
    """The metric's mean in the run."""
    worse: float
    """Worsening against the baseline, in units of the metric; below 0, the defense improved."""
    bound: float | None
    """Bound of the worsening by which the outcome was decided: the lower bound for *weaker*, otherwise the upper bound;
    None: unbounded."""
    margin: float
    """Smallest worsening that counts as weaker."""
    outcome: str
    """`pass`, `weaker` or `inconclusive`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Verdict of the regression gate at a commit: a line of the history file."""

    commit: str
    """Hash of the commit."""
    time: str
    """Time of the commit (ISO 8601, UTC)."""
    outcome: str
    """Outcome of the verdict, such as `pass` or `weaker`."""
    comparisons: int
    """Number of comparisons in the verdict."""
    figures: Mapping[str, Figure]
    """Map from comparison to its figure; a comparison is a text of metric, defense, point and condition."""


_LINE = TypeAdapter(Line)


def line(verdict: Verdict, commit: str, time: str) -> Line:
    """Make the line of the regression gate's history for a `verdict` on the `commit` made at `time` (ISO 8601, UTC)."""
    figures = {" · ".join((row.metric, row.defense, row.point, row.title)): _figure(row) for row in verdict.comparisons}
    return Line(
        commit=commit, time=time, outcome=verdict.outcome, comparisons=len(verdict.comparisons), figures=figures
    )


def _figure(row: Comparison) -> Figure:
    bound = row.lower if row.outcome == "weaker" else row.upper
    worse, kept = (float(f"{value:.4g}") if np.isfinite(value) else None for value in (row.worse, bound))
    return Figure(
        after=float(f"{row.after:.4g}") if np.isfinite(row.after) else 1e9,
        worse=1e9 if worse is None else worse,
        bound=kept,
        margin=row.margin,
        outcome=row.outcome,
    )


def read(path: Path) -> list[Line]:
    """Read the regression gate's history at `path`, sorted by time. Of several lines for the same commit, only the last
    is returned. Raises `BenchError` that names a faulty line."""
    try:
        texts = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        raise BenchError(f"{path}: no such file; bench gate --baseline FILE --history {path} begins it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{path}: cannot be read ({sanitize(error)})") from None
    found: dict[str, Line] = {}
    for number, text in enumerate(texts, 1):
        try:
            if text.strip():
                one = _LINE.validate_json(text)
                found[one.commit] = one
        except ValidationError as error:
            raise BenchError(f"{path}:{number}: no line of a history ({first_error(error)}); delete the line") from None
    return sorted(found.values(), key=lambda one: (one.time, one.commit))


def add(path: Path, new: Line) -> None:
    """Add the line `new` to the history at `path`, in place of an earlier line for the same commit. Raises `BenchError`
    for a damaged history, and `StorageError` for an unwritable file."""
    kept = [one for one in (read(path) if path.exists() else []) if one.commit != new.commit]
    lines = sorted([*kept, new], key=lambda one: (one.time, one.commit))
    texts = (json.dumps(asdict(one), sort_keys=True, allow_nan=False, ensure_ascii=False) for one in lines)
    write_atomically(path, "".join(f"{text}\n" for text in texts).encode())


def badge_json(last: Line) -> str:
    """Return the outcome of the history's line `last` as a badge in JSON, in the format of badge services."""
    content = {"schemaVersion": 1, "label": "leakage gate", "message": _message(last), "color": _colour(last)}
    return json.dumps(content, sort_keys=True) + "\n"


def badge_svg(last: Line) -> str:
    """Return the outcome of the history's line `last` as a badge in SVG."""
    label, message = "leakage gate", _message(last)
    left, right = (12 + 6.4 * len(text) for text in (label, message))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right:.0f}" height="20" role="img" '
        f'aria-label="{label}: {message}"><rect width="{left:.0f}" height="20" fill="#444"/>'
        f'<rect x="{left:.0f}" width="{right:.0f}" height="20" fill="{_colour(last)}"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2:.0f}" y="14">{label}</text>'
        f'<text x="{left + right / 2:.0f}" y="14">{message}</text></g></svg>\n'
    )


def _message(last: Line) -> str:
    return f"{_WORDS.get(last.outcome, 'unknown')}, {last.comparisons} comparisons"


def _colour(one: Line | Figure) -> str:
    return _COLOURS.get(one.outcome, "#555")


def page(lines: Sequence[Line], title: str, strip: bytes | None = None) -> str:
    """Return the gate's history as a single HTML page. Each comparison has a chart over the commits in `lines`, with
    the margin as a band. `title` is the heading; `strip` is a PNG of the most exposed examples, None for no picture.
    Raises `BenchError` without lines."""
    if not lines:
        raise BenchError(
            f"{sanitize(title)}: the history is empty; bench gate --baseline FILE --history FILE begins it"
        )
    last = lines[-1]
    names = sorted(dict.fromkeys(name for one in lines for name in one.figures), key=lambda name: _weight(last, name))
    state = f"{_message(last)}, commit {last.commit[:10]} of {last.time[:10]}; {len(lines)} commits"
    return offline.render(
        offline.environment(),
        "history.html",
        title=sanitize(title, LONG),
        colour=_colour(last),
        state=sanitize(state, LONG),
        strip=strip and b64encode(strip).decode(),
        charts=[_chart(lines, name) for name in names[:_MOST_CHARTS]],
        more=max(0, len(names) - _MOST_CHARTS),
        width=_WIDTH,
        height=_HEIGHT,
        band=(f"{_y(1):.1f}", f"{_y(0) - _y(1):.1f}"),
    )


def _weight(last: Line, name: str) -> tuple[int, float, str]:
    figure = last.figures.get(name)
    if figure is None:
        return 3, 0.0, name
    order = ("weaker", "inconclusive", "pass")
    return order.index(figure.outcome) if figure.outcome in order else 3, -figure.worse / figure.margin, name


def _chart(lines: Sequence[Line], name: str) -> dict[str, Any]:
    """Return the values of a comparison's chart in the template."""
    metric, _, where = sanitize(name, LONG).partition(" · ")
    places = np.linspace(_EDGE, _WIDTH - _EDGE, len(lines)) if len(lines) > 1 else [_WIDTH / 2]
    marks, latest = [], None
    for x, one in zip(places, lines, strict=True):
        if (figure := one.figures.get(name)) is None:
            continue
        latest, end = figure, figure.bound
        far = _y(_MOST if end is None else end / figure.margin)
        said = f"{one.commit[:10]} {one.time[:10]}: {figure.outcome}, now {figure.after:g}, worse by {figure.worse:g}"
        marks.append(
            {
                "x": f"{x:.1f}",
                "y": f"{_y(figure.worse / figure.margin):.1f}",
                "end": f"{far:.1f}",
                "colour": _colour(figure),
                "said": sanitize(said, LONG),
            }
        )
    now = f"now {latest.after:g}, worse by {latest.worse:g}, margin {latest.margin:g}" if latest else ""
    path = " ".join(f"{mark['x']},{mark['y']}" for mark in marks)
    return {"name": sanitize(name, LONG), "metric": metric, "where": where, "now": now, "path": path, "marks": marks}


def _y(margins: float) -> float:
    kept = min(max(margins, _LEAST), _MOST)
    return _EDGE + (_MOST - kept) / (_MOST - _LEAST) * (_HEIGHT - 2 * _EDGE)
