"""`bench show`: list a run's cells (experiments), or show a single cell as text with its pictures."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from PIL.Image import Image

from bench.cell import TrainingCell
from bench.cli import common, completion, lookup
from bench.cli.cell_text import headline, lines
from bench.leaderboard import attacks, knowledge, trainings
from bench.leaderboard.forms import terminal
from bench.matrix import published
from bench.pictures import grid, recorded, trajectory
from bench.pictures.words import Words
from bench.record import store as records
from bench.record.names import cell_name, entry_text
from bench.record.runs import checked_run
from bench.record.schema import Record
from bench.sanitize import LONGEST, sanitize

_COLUMNS = ("cell", "data set", "model", "defense", "point", "attack", "status", "ASR or accuracy")
_HEADING = 18  # columns
_SORTED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "defense": lambda row: (row["defense"], row["point"], row["attack"]),
    "attack": lambda row: (row["attack"], row["defense"], row["point"]),
    "point": lambda row: (row["point"], row["defense"], row["attack"]),
    "leak": lambda row: 1.0 if row.get("asr") is None else -row["asr"],
    "status": lambda row: (row["status"], row["defense"]),
}


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Filter for the cell list. Each field holds alternatives: parts of the names of defenses and attacks, and names of
    points. An empty field accepts all cells."""

    defense: tuple[str, ...]
    attack: tuple[str, ...]
    point: tuple[str, ...]

    def holds(self, row: dict[str, Any]) -> bool:
        texts = [(self.defense, row["defense"]), (self.attack, row["attack"])]
        found = all(not parts or any(part in text for part in parts) for parts, text in texts)
        return found and (not self.point or row["point"] in self.point)


@click.command()
@click.argument("cell", metavar="[CELL-PREFIX]", required=False, shell_complete=completion.cells)
@click.argument("run", type=common.PATH, required=False)
@common.json_flag
@click.option("--open", "opened", is_flag=True, help="Also open the picture.")
@click.option("--attacks", "table", flag_value="attacks", help="Show the success of each attack on each data set.")
@click.option(
    "--trainings", "table", flag_value="trainings", help="Show accuracy, ε and time of the trainings with each defense."
)
@click.option(
    "--knowledge", "table", flag_value="knowledge", help="Compare plain with adaptive and black-box attackers."
)
@click.option("--defense", "defenses", multiple=True, metavar="TEXT", help="List cells whose defense contains TEXT.")
@click.option("--attack", "attacks_", multiple=True, metavar="TEXT", help="List cells whose attack contains TEXT.")
@click.option("--point", "points", multiple=True, metavar="NAME", help="List cells with this interception point.")
@click.option("--sort", type=click.Choice(list(_SORTED)), help="Order of the list; leak: the largest leakage first.")
def command(
    cell: str | None,
    run: Path | None,
    as_json: bool,
    opened: bool,
    table: str | None,
    defenses: tuple[str, ...],
    attacks_: tuple[str, ...],
    points: tuple[str, ...],
    sort: str | None,
) -> None:
    """List the cells (experiments) of RUN (default: the newest below runs/), or show a single cell.

    The first digits of an id name a cell. Its reconstruction grid (truth above reconstruction) and its trajectory over
    the iterations are written to RUN/pictures. Wrong tokens of a text are in brackets.

    \b
    bench show                  all cells of the newest run
    bench show runs/smoke       all cells of this run
    bench show 3f2a             a cell of any run below runs/
    bench show --defense prune --point type-1 --sort leak
    bench show runs/x --attacks     every attack of the run: rates, figures, cost
    bench show runs/x --trainings   accuracy, ε and time of each defense
    bench show runs/x --knowledge   gain from knowledge of the defense
    """
    if cell is not None and run is None and (Path(cell) / "records").is_dir():
        run, cell = Path(cell), None
    if table is not None and cell is not None:
        raise click.UsageError(f"--{table} is a table of a whole run; leave {cell} out")
    if cell is None:
        run = checked_run(run)
        if table is not None:
            return _table(run, table, as_json)
        return _list(run, as_json, _Chosen(defenses, attacks_, points), sort)
    run, record = lookup.by_prefix(cell, run)
    folder, texts = run / "pictures", recorded.texts_of(run, record)
    picture = _saved(recorded.of_record(run, record), folder / f"{record.id}.png")
    iterations = _saved(trajectory.of_record(run, record), folder / f"{record.id}-iterations.png")
    if as_json:
        content = json.loads(records.to_json(record))
        shown = {"picture": picture, "over_iterations": iterations}
        common.print_json({**content, **shown, **({"texts": [asdict(each) for each in texts]} if texts else {})})
    else:
        _print(record, picture, iterations, texts)
    if opened and picture is not None:
        click.launch(picture)
    return None


def _saved(image: Image | None, path: Path) -> str | None:
    if image is None:
        return None
    grid.save(image, path)
    return str(path)


def _print(record: Record, picture: str | None, iterations: str | None, texts: Sequence[Words]) -> None:
    click.echo(click.style(f"{record.id[:8]}  {sanitize(cell_name(record.cell))}", bold=True, fg="cyan"))
    for heading, text in lines(record):
        click.echo(f"{f'{heading}:' if heading else '':<{_HEADING}}{sanitize(text, LONGEST)}")
    for each in texts:
        for heading, tokens in (("text:", each.truth), ("reconstructed:", each.marked)):
            click.echo(f"{heading:<{_HEADING}}{' '.join(tokens)}")
    click.echo(f"{'picture:':<{_HEADING}}{picture or 'none: this cell reconstructed nothing'}")
    if iterations is not None:
        click.echo(f"{'over iterations:':<{_HEADING}}{iterations}")


def _table(run: Path, table: str, as_json: bool) -> None:
    cells, papers = lookup.shown_records(run), published.saved(run)
    rows: Sequence[Any]
    if table == "attacks":
        rows = attacks.attacks(cells, papers)
        text, empty = terminal.attacks(rows), f"no attack was run in {run}"
    elif table == "trainings":
        rows = trainings.trainings(cells, papers)
        text, empty = terminal.trainings(rows, papers), f"nothing was trained in {run}"
    else:
        rows = knowledge.knowledge(cells)
        text, empty = terminal.knowledge(rows), f"no attack of {run} was run both plain and adaptive"
    if as_json:
        common.print_json({"run": str(run), table: [row.json() for row in rows]})
    elif rows:
        common.console().print(text)
    else:
        click.echo(empty)


def _list(run: Path, as_json: bool, chosen: "_Chosen", sort: str | None) -> None:
    every = [_row(record) for record in lookup.shown_records(run)]
    rows = [row for row in every if chosen.holds(row)]
    if sort is not None:
        rows.sort(key=_SORTED[sort])
    if as_json:
        common.print_json({"run": str(run), "cells": rows})
        return
    names = ("id", "dataset", "model", "defense", "point", "attack", "status", "shown")
    texts = [tuple(sanitize(row[name][:8] if name == "id" else row[name]) for name in names) for row in rows]
    if texts:
        common.print_table(_COLUMNS, texts)
    of = f" of {len(every)}" if len(rows) < len(every) else ""
    count = f"{len(rows)}{of} cell{'' if len(rows) == 1 and not of else 's'} in {run}"
    click.echo(f"{count}; `bench show CELL` shows one" if rows else count)


def _row(record: Record) -> dict[str, Any]:
    cell = record.cell
    row = {
        "id": record.id,
        "kind": cell.kind,
        "dataset": entry_text(cell.dataset),
        "model": cell.model.name,
        "defense": entry_text(cell.defense),
        "status": record.status,
        "reason": record.reason,
        "shown": headline(record),
    }
    if isinstance(cell, TrainingCell):
        accuracy = record.training.accuracy if record.training else None
        return {**row, "point": "–", "attack": f"training, {cell.last_round} rounds", "accuracy": accuracy}
    adaptive = "" if cell.knowledge == "plain" else f" · {cell.knowledge}"
    summary = record.attack.summary if record.attack else None
    return {
        **row,
        "point": cell.point,
        "attack": cell.attack.name + adaptive,
        "seed": cell.seed,
        "draw": cell.draw,
        "asr": summary and summary.asr.value,
        "asr_low": summary and summary.asr.low,
        "asr_high": summary and summary.asr.high,
        "lower_bound": summary and summary.lower_bound,
    }
