"""The rows of a run's board as MLflow shows them: one run each, with leakage, ε and accuracy side by side.

A cell has either an attack's figures or a training's; only a row has both, which is what charts over several
figures need.  No mlflow here.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import RecordError
from bench.leaderboard.blocks import entry
from bench.leaderboard.board import AtPoint, Row, board
from bench.record import store as records
from bench.record.store import Record
from bench.tracking import view
from bench.tracking.store import digest
from bench.tracking.view import RunView

KIND = "row"  # tag bench.kind, where cells have attack or training
# Metrics that charts name, short, as MLflow cuts what stands above a chart or an axis.
ASR, ACCURACY, EPSILON, CURVE = "asr/worst", "accuracy/final", "epsilon/training", "accuracy/by_round"
ASR_AT, EPSILON_AT = "asr/", "epsilon/"  # and a point's name
GRID_KEY = "truth above reconstruction"  # of a row's picture in MLflow's image grid


@dataclass(frozen=True, slots=True, kw_only=True)
class RowView:
    """What is logged of one row: `key` is the same for the same question, `shown.sha256` for the same answer.

    `cells` has the ids of its records, those whose picture to show first; `text` says in words what it says.
    """

    key: str
    shown: RunView
    text: str
    cells: tuple[str, ...]
    private: bool


def of_run(run: Path) -> list[RowView]:
    """The rows of the run's readable records, as the board orders them; none where no attack was run.

    Raises `RecordError` for records that the board does not understand.
    """
    found = list(_readable(run))
    try:
        listed = board(found)
        defenses = {
            entry(record.cell["defense"]): record.cell["defense"]
            for record in found
            if record.cell.get("kind") == "attack"
        }
        by_id = {record.id: record for record in found}
        return [
            _view(row, name, defenses[row.defense], [by_id[cell] for cell in row.cells])
            for row, name in zip(listed, _names(listed, defenses), strict=True)
        ]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RecordError(
            f"{run}: no rows to compare, its records have other fields ({error!r}); run its cells again"
        ) from None


def _readable(run: Path) -> Iterable[Record]:
    for path in sorted((run / "records").glob("*.json")):
        try:
            yield records.read(path)
        except RecordError:  # the upload of the record itself says so
            continue


def _view(row: Row, name: str, defense: Mapping[str, Any], behind: Sequence[Record]) -> RowView:
    metrics = list(_metrics(row))
    tags = {key: view.clean(text)[:5000] for key, text in _tags(row, defense).items() if text}
    params = {key: value[:5000] for key, value in view.flat_params({"defense": defense})}
    text = "\n".join(view.clean(line) for line in _words(row).split("\n"))
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
        ),
        text=text,
        cells=row.cells,
        private=row.private,
    )


def _tags(row: Row, defense: Mapping[str, Any]) -> dict[str, str]:
    worst = row.worst
    return {
        "bench.kind": KIND,
        "bench.dataset": row.dataset,
        "bench.model": row.model,
        "bench.defense": str(defense["name"]),
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


def _metrics(row: Row) -> Iterable[tuple[str, float, int]]:
    """(name, value, step) of what there is and is finite."""
    worst, cost = row.worst, row.cost
    found: dict[str, Any] = {
        ASR: worst and worst.asr,
        "psnr_db/best": worst and worst.best and worst.best.psnr_db,
        **{f"{ASR_AT}{name}": at.asr for name, at in row.points.items()},
        **{f"{EPSILON_AT}{name}": at.epsilon for name, at in row.points.items()},
    }
    if cost:
        found |= {
            ACCURACY: cost.accuracy, "accuracy/lost": cost.loss,
            EPSILON: cost.epsilon, "cost/overhead": cost.overhead,
        }  # fmt: skip
    for name, value in found.items():
        if (number := view.finite(value)) is not None:
            yield view.suitable_key(name), number, 0
    for round_, accuracy in cost.curve if cost else ():
        if (number := view.finite(accuracy)) is not None:
            yield CURVE, number, round_


def _words(row: Row) -> str:
    """Markdown: what was found at each point, and what weakens it."""
    lines = [f"**{row.defense}**", f"on {row.title}", ""]
    lines += [f"- {name}: {_found(at)}" for name, at in row.points.items()]
    lines += [f"- {flag.code}: {flag.text}" for flag in row.flags]
    return "\n".join(lines)


def _found(at: AtPoint) -> str:
    if at.asr is None:
        return "nothing scored"
    bound, best = "≥ " if at.lower_bound else "", f", best {at.best.attack}" if at.best else ""
    interval = f" [{at.interval[0]:.2f}, {at.interval[1]:.2f}]" if at.interval else ""
    return f"ASR {bound}{at.asr:.2f}{interval} of {at.pictures} pictures{best}"


def _names(listed: Sequence[Row], defenses: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """`prune(share=0.7) × mnist · dlg-lenet`: of the parameters those that tell rows apart, and of the
    conditions as well.  MLflow's tables and charts cut a name after some twenty letters."""
    shown = {name: _short(defenses[name], defenses.values()) for name in {row.defense for row in listed}}
    titles = {row.title: row.title.split(" · ") for row in listed}
    places = {row.title: f"{row.dataset} · {row.model.partition('(')[0]}" for row in listed}
    names = []
    for row in listed:
        twins = [set(titles[title]) for title, place in places.items() if place == places[row.title]]
        shared = set.intersection(*twins)
        more = "".join(f" · {part}" for part in titles[row.title] if part not in shared)
        names.append(view.clean(f"{shown[row.defense]} × {places[row.title]}{more}")[:250])
    return names


def _short(defense: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> str:
    """Its name, with those parameters in which defenses of that name differ."""
    namesakes = [other["params"] for other in others if other["name"] == defense["name"]]
    keys = sorted({key for params in namesakes for key in params})
    telling = [key for key in keys if len({json.dumps(params.get(key)) for params in namesakes}) > 1]
    params = {key: defense["params"][key] for key in telling if key in defense["params"]}
    return entry({"name": defense["name"], "params": params})
