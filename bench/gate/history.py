"""A gate's history: a JSON line per commit, as a page and as a badge.

Lines are sorted by time, so branches that append merge by the line (`merge=union` in `.gitattributes`)."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from bench.errors import BenchError
from bench.gate.verdict import Comparison, Verdict
from bench.record.files import write_atomically
from bench.sanitize import LONG, first_error, sanitize

_MOST_CHARTS = 200
_COLOURS = {"pass": "#2f7d4f", "weaker": "#b3261e", "changed": "#b3261e", "inconclusive": "#9a6700"}
_WORDS = {"pass": "holds", "weaker": "weaker", "changed": "baseline changed", "inconclusive": "inconclusive"}
_WIDTH, _HEIGHT, _EDGE = 320, 84, 6
_LEAST, _MOST = -1.0, 3.0  # axis, in margins


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Result of a single comparison (metric, defense, point, condition) at a commit."""

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
    """The gate's verdict at a commit: a line of the history file."""

    commit: str
    """Hash of the commit."""
    time: str
    """Time of the commit (ISO 8601, UTC)."""
    outcome: str
    """Outcome of the verdict, such as `pass` or `weaker`."""
    comparisons: int
    """Number of comparisons."""
    figures: Mapping[str, Figure]
    """Map from metric, defense, point and condition, as text, to figures."""


_LINE = TypeAdapter(Line)


def line(verdict: Verdict, commit: str, time: str) -> Line:
    """Make the history's line for a `verdict` on the `commit` made at `time` (ISO 8601, UTC)."""
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
    """Read the gate's history at `path`, sorted by time, with the last line for each commit. Raises `BenchError` that
    names a faulty line."""
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
    """Return the history as a single HTML page: for each comparison a chart over the commits in `lines`, in which the
    margin is a band. `title` is the heading; `strip` is a PNG of the worst victims, None for no picture. Raises
    `BenchError` without lines."""
    if not lines:
        raise BenchError(
            f"{sanitize(title)}: the history is empty; bench gate --baseline FILE --history FILE begins it"
        )
    last = lines[-1]
    names = sorted(dict.fromkeys(name for one in lines for name in one.figures), key=lambda name: _weight(last, name))
    charts = "".join(_chart(lines, name) for name in names[:_MOST_CHARTS])
    more = (
        f"<p>{len(names) - _MOST_CHARTS} more comparisons stand in the file.</p>" if len(names) > _MOST_CHARTS else ""
    )
    state = f"{_message(last)}, commit {last.commit[:10]} of {last.time[:10]}; {len(lines)} commits"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_html(title)}</title><style>{_STYLE}</style><h1>{_html(title)}</h1>"
        f'<p><b style="color:{_colour(last)}">{_html(state)}</b></p>{_picture(strip)}<p class="legend">{_LEGEND}</p>'
        f"<main>{charts}</main>{more}</html>\n"
    )


_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;padding:16px;max-width:1360px;color:#1c1c1c}"
    "h1{font-size:22px;margin:8px 0}.legend{color:#555;max-width:75ch}main{display:grid;gap:14px;"
    "grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr))}figure{margin:0;border:1px solid #ddd;"
    "border-radius:6px;padding:8px}figcaption{font-size:13px;overflow-wrap:anywhere}figcaption span{color:#555}"
    "svg{width:100%;height:auto;display:block}img{max-width:100%}"
)
_LEGEND = (
    "Each chart: the worsening against the baseline over the commits, in margins. Grey band: from the baseline (lower "
    "edge) to the margin (upper edge). Dot: worsening; line from the dot: bound that decided. Green: pass, amber: "
    "inconclusive, red: weaker. Weaker comparisons come first."
)


def _picture(strip: bytes | None) -> str:
    if strip is None:
        return ""
    words = "The worst victims: truth, reconstruction in the baseline, reconstruction now"
    return f'<p>{words}</p><img alt="{words}" src="data:image/png;base64,{b64encode(strip).decode()}">'


def _weight(last: Line, name: str) -> tuple[int, float, str]:
    figure = last.figures.get(name)
    if figure is None:
        return 3, 0.0, name
    order = ("weaker", "inconclusive", "pass")
    return order.index(figure.outcome) if figure.outcome in order else 3, -figure.worse / figure.margin, name


def _chart(lines: Sequence[Line], name: str) -> str:
    metric, _, where = name.partition(" · ")
    places = np.linspace(_EDGE, _WIDTH - _EDGE, len(lines)) if len(lines) > 1 else [_WIDTH / 2]
    marks, path, latest = [], [], None
    for x, one in zip(places, lines, strict=True):
        if (figure := one.figures.get(name)) is None:
            continue
        latest = figure
        y, end = _y(figure.worse / figure.margin), figure.bound
        far = _y(_MOST if end is None else end / figure.margin)
        path.append(f"{x:.1f},{y:.1f}")
        said = f"{one.commit[:10]} {one.time[:10]}: {figure.outcome}, now {figure.after:g}, worse by {figure.worse:g}"
        marks.append(
            f'<g stroke="{_colour(figure)}" fill="{_colour(figure)}"><title>{_html(said)}</title>'
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{far:.1f}"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/></g>'
        )
    now = f"now {latest.after:g}, worse by {latest.worse:g}, margin {latest.margin:g}" if latest else ""
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{_html(name)}">'
        f'<rect x="0" width="{_WIDTH}" y="{_y(1):.1f}" height="{_y(0) - _y(1):.1f}" fill="#e4e4e4"/>'
        f'<polyline points="{" ".join(path)}" fill="none" stroke="#888"/>{"".join(marks)}</svg>'
        f"<figcaption><b>{_html(metric)}</b> {_html(where)}<br><span>{_html(now)}</span></figcaption></figure>"
    )


def _y(margins: float) -> float:
    kept = min(max(margins, _LEAST), _MOST)
    return _EDGE + (_MOST - kept) / (_MOST - _LEAST) * (_HEIGHT - 2 * _EDGE)


def _html(text: Any) -> str:
    return escape(sanitize(text, LONG))
