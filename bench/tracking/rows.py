"""The rows of a run's board (table of defenses) as MLflow runs, with leakage, ε and accuracy in the same MLflow run.

A cell's record has the figures from an attack or from a training, but charts need both.  A data set's rows have an
MLflow experiment of their own, because MLflow's pages show everything in an experiment.  This module does not import
mlflow."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.cell import Entry
from bench.errors import RecordError
from bench.leaderboard.board import AtPoint, Row, board
from bench.leaderboard.forms.markdown import cell as escaped
from bench.leaderboard.recognition import most_over_chance
from bench.record import store as records
from bench.record.names import distinct, entry_text
from bench.record.schema import Record
from bench.tracking import victims, view
from bench.tracking.store import digest
from bench.tracking.view import Attached, RunView, listener

# Names of charted metrics differ in their first letters, because MLflow cuts titles of charts.
WORST, RECOGNISED, ACCURACY, EPSILON = "worst leaked", "recognised", "accuracy", "epsilon"
_TEXT, _LINE, _PLACE = 5000, 1000, 100  # characters in a tag, a line of the description, an experiment's name


@dataclass(frozen=True, slots=True, kw_only=True)
class RowView:
    """Content of a board row (a defense under a condition: data, model and setting) as an MLflow run: figures,
    description, and pictures."""

    board: str
    """The board in words, for the name of its MLflow experiment."""
    key: str
    """Text that identifies defense and condition."""
    shown: RunView
    """Content of the MLflow run; its hash covers everything shown."""
    behind: str
    """Hash of the records from which the row was computed."""
    text: str
    """The row in Markdown, for the description of the MLflow run."""
    private: bool
    """True if the pictures show private data."""
    attached: Callable[[], Attached] = Attached
    """Function that makes the files and pictures to attach."""

    @classmethod
    def of(cls, *, board: str, key: Sequence[Any], shown: RunView, text: Iterable[str], **options: Any) -> "RowView":
        """Make a `RowView`: shorten all texts to MLflow's limits, and add the hash by which a later upload recognises
        an unchanged row.

        - `board`: name of the board (table of defenses).
        - `key`: values that identify defense and condition.
        - `shown`: figures, with the hash of the records behind them.
        - `text`: lines of the description.
        - `options`: further fields of `RowView`."""
        behind = shown.sha256
        clean = {key: view.clean(value, _TEXT) for key, value in shown.tags.items() if value}
        lines = "\n".join(view.clean(line, _LINE) for line in text)
        content = [shown.sha256, shown.name, clean, shown.params, shown.metrics, lines]
        shown = replace(shown, tags=clean, sha256=digest(json.dumps(content).encode()))
        place = view.clean(board, _PLACE)
        number = digest(json.dumps(key).encode())[:32]
        return cls(board=place, key=number, shown=shown, behind=behind, text=lines, **options)


def of_run(run: Path) -> list[RowView]:
    """Make the rows of the run folder's board (table of defenses) for display in MLflow, in board order, from all
    readable records; empty without attacks."""
    by_id = {record.id: record for record in readable(run)}
    rows = board(by_id.values())
    behind = [[by_id[cell_id] for cell_id in row.cells] for row in rows]
    defenses = {entry_text(record.cell.defense): record.cell.defense for record in by_id.values()}
    chosen = victims.chosen(rows, behind)
    found = []
    for dataset in dict.fromkeys(row.dataset for row in rows):
        here = [number for number, row in enumerate(rows) if row.dataset == dataset]
        names = _names([rows[number] for number in here])
        params = differing([_params(rows[number], defenses[rows[number].defense]) for number in here])
        for number, name, given in zip(here, names, params, strict=True):
            row = rows[number]
            shown = chosen.get(row.key, [])
            found.append(_view(run, row, name, given, defenses[row.defense], behind[number], shown))
    return found


def readable(run: Path) -> Iterator[Record]:
    """Yield the records of the run folder `run` that can be read, in the order of their ids."""
    for path in sorted((run / "records").glob("*.json")):
        try:
            yield records.read(path)
        except RecordError:  # the record's upload reports the error
            continue


def differing(params: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Remove the parameters that several MLflow runs have in common, so that MLflow's table shows only differences.
    `params` has a mapping, name → text, for each MLflow run; the result has the same order."""
    common = set.intersection(*(set(each.items()) for each in params)) if len(params) > 1 else set()
    return [{key: value for key, value in each.items() if (key, value) not in common} for each in params]


def _view(
    run: Path,
    row: Row,
    name: tuple[str, str],
    params: dict[str, str],
    defense: Entry,
    behind: Sequence[Record],
    its: Sequence[victims.Victim],
) -> RowView:
    """Return the view of a `row` with its `name` (defense, differing parts of the condition) and `params`; `behind` are
    the row's records, and `its` the victims."""
    return RowView.of(
        board=row.dataset,
        key=[row.key, row.defense],
        shown=RunView(
            sha256=digest(json.dumps([[(record.id, record.arrays) for record in behind], its]).encode()),
            name=view.clean(" · ".join(filter(None, name)), 250),
            status="FINISHED",
            tags=_tags(row, defense),
            params=params,
            metrics=list(view.finite(_metrics(row))),
            seconds=sum(record.cost.wall_seconds for record in behind),
            datasets=tuple({(view.clean(row.dataset, _PLACE), record.cell.dataset.sha256) for record in behind}),
        ),
        text=_words(row),
        private=row.private,
        attached=lambda: victims.attached(run, behind, its, name[1]),
    )


def _params(row: Row, defense: Entry) -> dict[str, str]:
    """Return the row's parameters for MLflow: defense parameters, accuracy, ε, worst attack and worst point."""
    params = view.suitable_params(defense, "parameter")
    params["defense"] = params.pop("parameter")
    # The compare page opens on the first three by name.
    if row.cost is not None and row.cost.accuracy is not None:
        params["accuracy"] = f"{row.cost.accuracy:.4g}"
    if row.cost is not None and row.cost.epsilon is not None:
        params["epsilon"] = f"{row.cost.epsilon:.4g}"
    if row.worst is not None and row.worst.best is not None:
        params |= {
            "worst.attack": view.clean(row.worst.best.attack, _TEXT),
            "worst.listener": listener(row.worst.point),
        }
    return params


def _tags(row: Row, defense: Entry) -> dict[str, str]:
    worst = row.worst
    return {
        "bench.kind": "row",
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


def _metrics(row: Row) -> dict[str, float | None]:
    """Return at most twelve figures, because MLflow draws a chart of each."""
    worst, cost = row.worst, row.cost
    recognised = most_over_chance(row.most_identified, row.most_named)
    return {
        WORST: worst.asr if worst else None,
        **{f"{listener(name)} leaked": at.asr for name, at in row.points.items()},
        RECOGNISED: recognised.value if recognised else None,
        ACCURACY: cost.accuracy if cost else None,
        EPSILON: cost.epsilon if cost else None,
        "psnr_db": worst.best.medians.get("psnr_db") if worst and worst.best else None,
        "time over undefended": cost.overhead if cost else None,
    }


def _words(row: Row) -> list[str]:
    points = [f"- {listener(name)} ({name}): {escaped(_leakage(at))}" for name, at in row.points.items()]
    flags = [f"- {flag.code}: {escaped(flag.text)}" for flag in row.flags]
    return [f"**{escaped(row.defense)}**", f"on {escaped(row.title)}", "", *points, *flags]


def _leakage(at: AtPoint) -> str:
    if at.asr is None:
        return "nothing scored"
    bound, best = "≥ " if at.lower_bound else "", f", best {at.best.attack}" if at.best else ""
    interval = f" [{at.interval[0]:.2f}, {at.interval[1]:.2f}]" if at.interval else ""
    return f"ASR {bound}{at.asr:.2f}{interval} of {at.examples} examples{best}"


def _names(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return for each row of a data set a short name, such as `prune(share=0.7)`, and the parts of the condition that
    differ.

    Parameters equal in all rows are left out, because MLflow cuts names after about twenty letters."""
    defenses = distinct({row.defense for row in rows})
    titles = [row.title.split(" · ") for row in rows]
    common = set.intersection(*map(set, titles))
    parts = [" · ".join(part for part in title if part not in common) for title in titles]
    return [(defenses[row.defense], view.clean(where, 250)) for row, where in zip(rows, parts, strict=True)]
