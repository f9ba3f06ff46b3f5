"""A suite's board (its table of defenses) as an MLflow run: page, picture, and the place of each new defense.

This module does not import mlflow."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.leaderboard.forms import page, poster
from bench.leaderboard.forms import standings as form
from bench.leaderboard.standings import Standing
from bench.record.names import entry_text
from bench.reference import summary
from bench.reference.beside import Joined, joined, suite_of
from bench.reference.pictures import strips_of
from bench.tracking import rows, view
from bench.tracking.pictures import BOARD, PAGE
from bench.tracking.rows import RowView
from bench.tracking.store import digest
from bench.tracking.view import RunView

KIND = "board"  # value of the tag bench.kind; rows have "row"
_LINE = 1000  # characters in a line of the description


def of_run(run: Path) -> list[RowView]:
    """Return the suite's board; empty if the run folder adds no defense to a suite with reference results."""
    version = suite_of([run])
    if version is None:
        return []
    suite = joined(version, rows.readable(run))
    return [_view(suite, run)] if suite.own else []


def _view(suite: Joined, run: Path) -> RowView:
    own = [each for each in suite.standings if each.own]
    text = "\n".join(view.clean(line, _LINE) for line in _words(suite, own))
    tags = {
        "bench.kind": KIND,
        "bench.suite": suite.version,
        "bench.defense": view.clean(", ".join(each.defense for each in own), _LINE),
    }
    metrics = [] if len(own) > 1 else _metrics(own[0])
    content = [tags, metrics, text, [each.json() for each in suite.standings]]
    return RowView(
        key=digest(json.dumps([KIND, suite.version]).encode())[:32],
        shown=RunView(
            sha256=digest(json.dumps(content).encode()),
            name=f"board of {suite.version}",
            status="FINISHED",
            tags=tags,
            params={},
            metrics=metrics,
            seconds=0.0,
        ),
        text=text,
        cells=(),
        private=False,
        files=lambda: _files(suite, run),
    )


def _words(suite: Joined, own: Sequence[Standing]) -> list[str]:
    lines = [f"{len(suite.standings)} settings on {suite.version}; the board is among the artifacts.", ""]
    for each in own:
        lines += [f"**{each.defense}**", ""]
        lines += [f"- {name}: {text}" for name, text in summary.lines(suite, each.defense)]
        lines.append("")
    return [*lines, form.LEGEND]


def _metrics(standing: Standing) -> list[tuple[str, float, int]]:
    figures: dict[str, float | None] = {
        "board/rank": None if standing.missing or standing.faults else standing.rank,
        "board/accuracy": standing.accuracy,
        "board/epsilon": standing.epsilon,
    }
    for point, place in standing.points.items():
        figures |= {f"board/leaked/{point}": place.leaked, f"board/recognised/{point}": place.recognised}
    return list(view.finite(figures))


def _files(suite: Joined, run: Path) -> Mapping[str, bytes]:
    own = {record.id: run for record in suite.records if entry_text(record.cell.defense) in suite.own}
    shown = strips_of(suite.records, own, suite.version)
    title = f"Gradient leakage, {suite.version}"
    html = page.render(
        suite.rows,
        thumbnails={},
        title=title,
        context=[f"Reference: {suite.version}"],
        standings=suite.standings,
        strips=shown,
    )
    return {BOARD: poster.svg(suite.standings, shown, title), PAGE: html.encode()}
