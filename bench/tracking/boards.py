"""A suite's board (its table of defenses) as MLflow runs: the published defenses, and each new defense with the board
as a page and a picture.

This module does not import mlflow."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from bench.leaderboard.forms import page, poster
from bench.leaderboard.forms import standings as form
from bench.leaderboard.forms.markdown import cell as escaped
from bench.leaderboard.standings import Standing
from bench.record.names import dataset_name, entry_text
from bench.reference import summary
from bench.reference.beside import Joined, joined, suite_of
from bench.reference.pictures import strips_of
from bench.tracking import rows, view
from bench.tracking.pictures import BOARD, PAGE
from bench.tracking.rows import ACCURACY, EPSILON, RECOGNISED, RowView
from bench.tracking.store import digest
from bench.tracking.view import Attached, RunView, listener


def of_run(run: Path) -> list[RowView]:
    """Make the rows of a suite's board (table of defenses) for display in MLflow: first the defenses of the run folder
    `run`, then the published defenses by rank. The result is empty if the run is of no suite with reference results, or
    has no unpublished defense."""
    version = suite_of([run])
    if version is None:
        return []
    suite = joined(version, rows.readable(run))
    if not suite.own:
        return []
    data = tuple({dataset_name(record.cell): record.cell.dataset.sha256 for record in suite.records}.items())
    files = cache(lambda: _files(suite, run))  # the same for each new defense
    content = digest(json.dumps([each.json() for each in suite.standings]).encode())
    ordered = sorted(suite.standings, key=lambda each: (not each.own, each.rank))
    return [
        RowView.of(
            board=suite.version,
            key=["board", suite.version, each.defense],
            shown=RunView(
                sha256=content if each.own else "",  # the page has all defenses
                name=view.clean(each.defense if each.own else f"{each.defense} · published", 250),
                status="FINISHED",
                tags={
                    "bench.kind": "board",
                    "bench.suite": suite.version,
                    "bench.defense": each.defense,
                    "bench.own": str(each.own).lower(),
                    "bench.rank": "" if each.missing or each.faults else str(each.rank),
                },
                params=_params(each),
                metrics=list(view.finite(_metrics(each))),
                seconds=_seconds(suite, each.defense) if each.own else None,
                datasets=data,
            ),
            text=_words(suite, each),
            private=False,
            attached=(lambda: Attached(files=files())) if each.own else Attached,
        )
        for each in ordered
    ]


def _params(standing: Standing) -> dict[str, str]:
    """Return the parameters of the compare page, which opens on the first three by name."""
    figures = {"accuracy": standing.accuracy, "epsilon": standing.epsilon}
    named = {"defense": view.clean(standing.defense, 500)}
    return named | {name: f"{value:.4g}" for name, value in figures.items() if value is not None}


def _metrics(standing: Standing) -> dict[str, float | None]:
    """Return at most twelve figures, because MLflow draws a chart of each."""
    figures: dict[str, float | None] = {"leaked": standing.leaked}
    for point, place in standing.points.items():
        figures |= {f"{listener(point)} leaked": place.leaked, f"{listener(point)} recognised": place.recognised}
    return figures | {RECOGNISED: standing.recognised, ACCURACY: standing.accuracy, EPSILON: standing.epsilon}


def _seconds(suite: Joined, defense: str) -> float:
    return sum(r.cost.wall_seconds for r in suite.records if entry_text(r.cell.defense) == defense)


def _words(suite: Joined, standing: Standing) -> Iterator[str]:
    yield f"**{escaped(standing.defense)}**"
    yield f"{len(suite.standings)} settings on {suite.version}; the page of a new defense has the whole board."
    yield ""
    yield from (f"- {name}: {escaped(text)}" for name, text in summary.lines(suite, standing.defense))
    yield ""
    yield form.LEGEND


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
