"""The rows of a run's board (table of defenses) as MLflow runs, with leakage, ε and accuracy in the same MLflow run.

A cell's record has the figures from an attack or from a training, but charts need both.  This module does not import
mlflow."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cell import Entry
from bench.errors import RecordError
from bench.leaderboard.board import AtPoint, Row, board
from bench.record import store as records
from bench.record.names import distinct, entry_text
from bench.record.schema import Record
from bench.tracking import view
from bench.tracking.store import digest
from bench.tracking.view import RunView

KIND = "row"  # value of the tag bench.kind; cells have attack or training
# Names of charted metrics: short, because MLflow cuts titles of charts and axes.
ASR, ACCURACY, EPSILON, CURVE = "asr/worst", "accuracy/final", "epsilon/training", "accuracy/by_round"
ASR_AT, EPSILON_AT = "asr/", "epsilon/"  # prefixes before a point's name
GRID_KEY = "truth above reconstruction"  # key for a row's picture in MLflow's image grid
_TEXT, _LINE = 5000, 1000  # characters in a tag, and in a line of the description


@dataclass(frozen=True, slots=True, kw_only=True)
class RowView:
    """A board row as an MLflow run."""

    key: str
    """Text that identifies defense and condition."""
    shown: RunView
    """Content of the MLflow run; its hash identifies the figures."""
    text: str
    """The row in Markdown."""
    cells: tuple[str, ...]
    """Ids of the row's records; the first record with a picture gives the row's picture."""
    private: bool
    """True if the picture shows private data."""
    files: Callable[[], Mapping[str, bytes]] = dict
    """Returns further files, name → content."""


def of_run(run: Path) -> list[RowView]:
    """Return the board's rows from a run folder's readable records, in board order; empty without attacks."""
    by_id = {record.id: record for record in readable(run)}
    rows = board(by_id.values())
    defenses = {entry_text(record.cell.defense): record.cell.defense for record in by_id.values()}
    return [
        _view(row, name, defenses[row.defense], [by_id[cell_id] for cell_id in row.cells])
        for row, name in zip(rows, _names(rows), strict=True)
    ]


def readable(run: Path) -> Iterator[Record]:
    for path in sorted((run / "records").glob("*.json")):
        try:
            yield records.read(path)
        except RecordError:  # the record's upload reports the error
            continue


def _view(row: Row, name: str, defense: Entry, behind: Sequence[Record]) -> RowView:
    metrics = list(_metrics(row))
    tags = {key: view.clean(text, _TEXT) for key, text in _tags(row, defense).items() if text}
    params = _params(row, defense)
    text = "\n".join(view.clean(line, _LINE) for line in _words(row))
    content = [name, tags, params, metrics, text, [(record.id, record.arrays) for record in behind]]
    return RowView(
        key=digest(json.dumps([row.key, row.defense]).encode())[:32],
        shown=RunView(
            sha256=digest(json.dumps(content).encode()),
            name=name,
            status="FINISHED",
            tags=tags,
            params=params,
            metrics=metrics,
            seconds=0.0,
            dataset=(row.dataset, behind[0].cell.dataset.sha256),
        ),
        text=text,
        cells=row.cells,
        private=row.private,
    )


def _params(row: Row, defense: Entry) -> dict[str, str]:
    """Return the row's parameters for MLflow: defense parameters, accuracy, ε, worst attack and worst point."""
    given = view.suitable_params(defense, "defense")
    params = {key.replace("defense.", "parameter.", 1): value for key, value in given.items()}
    if row.cost is not None and row.cost.accuracy is not None:
        params["accuracy"] = f"{row.cost.accuracy:.4g}"
    if row.cost is not None and row.cost.epsilon is not None:
        params["epsilon"] = f"{row.cost.epsilon:.4g}"
    if row.worst is not None and row.worst.best is not None:
        params |= {"worst.attack": row.worst.best.attack, "worst.point": row.worst.point}
    return params


def _tags(row: Row, defense: Entry) -> dict[str, str]:
    worst = row.worst
    return {
        "bench.kind": KIND,
        "bench.dataset": row.dataset,
        "bench.model": row.model,
        "bench.defense": defense.name,
        "bench.condition": row.title,
        "bench.rank": str(row.rank),
        "bench.pareto": str(row.pareto).lower(),
        "bench.complete": str(row.complete).lower(),
        "bench.flags": " ".join(dict.fromkeys(flag.code for flag in row.flags)),
        "bench.worst_point": worst.point if worst else "",
        "bench.best_attack": worst.best.attack if worst and worst.best else "",
        "bench.protocol": "" if row.protocol is None else str(row.protocol),
        "bench.training": row.cost.setting if row.cost else "",
        "bench.private": str(row.private).lower(),
    }


def _metrics(row: Row) -> Iterator[tuple[str, float, int]]:
    worst, cost = row.worst, row.cost
    figures: dict[str, float | None] = {ASR: worst.asr if worst else None}
    if worst and worst.best:
        figures |= {f"{name}/best": value for name, value in worst.best.medians.items()}
    for name, at in row.points.items():
        figures |= {f"{ASR_AT}{name}": at.asr, f"{EPSILON_AT}{name}": at.epsilon}
    if cost:
        figures |= {
            ACCURACY: cost.accuracy,
            "accuracy/lost": cost.loss,
            EPSILON: cost.epsilon,
            "cost/overhead": cost.overhead,
        }
    yield from view.finite(figures)
    yield from ((CURVE, accuracy, step) for step, accuracy in (cost.curve if cost else ()))


def _words(row: Row) -> list[str]:
    points = [f"- {name}: {_leakage(at)}" for name, at in row.points.items()]
    flags = [f"- {flag.code}: {flag.text}" for flag in row.flags]
    return [f"**{row.defense}**", f"on {row.title}", "", *points, *flags]


def _leakage(at: AtPoint) -> str:
    if at.asr is None:
        return "nothing scored"
    bound, best = "≥ " if at.lower_bound else "", f", best {at.best.attack}" if at.best else ""
    interval = f" [{at.interval[0]:.2f}, {at.interval[1]:.2f}]" if at.interval else ""
    return f"ASR {bound}{at.asr:.2f}{interval} of {at.examples} examples{best}"


def _names(rows: Sequence[Row]) -> list[str]:
    """Return a short name for each row, such as `prune(share=0.7) × mnist · dlg-lenet`.

    Parameters equal in all rows are left out, because MLflow cuts names after about twenty letters."""
    defenses = distinct({row.defense for row in rows})
    titles = {row.title: row.title.split(" · ") for row in rows}
    places = {row.title: f"{row.dataset} · {row.model.partition('(')[0]}" for row in rows}
    return [_name(row, defenses[row.defense], titles, places) for row in rows]


def _name(row: Row, defense: str, titles: Mapping[str, Sequence[str]], places: Mapping[str, str]) -> str:
    place = places[row.title]
    common = set.intersection(*(set(titles[title]) for title in titles if places[title] == place))
    differing = [part for part in titles[row.title] if part not in common]
    return view.clean(" · ".join([f"{defense} × {place}", *differing]), 250)
