"""`bench show`: a run's cells in a list, or one cell in words with its pictures."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from PIL.Image import Image

    from bench.record.schema import Record

_COLUMNS = ("cell", "data set", "model", "defense", "point", "attack", "status", "ASR or accuracy")
_HEADING = 18  # columns


@click.command()
@click.argument("cell", metavar="[CELL-PREFIX]", required=False)
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--open", "opened", is_flag=True, help="Open the picture, too.")
@click.option("--attacks", "table", flag_value="attacks", help="How each attack fares on each data set.")
@click.option("--trainings", "table", flag_value="trainings", help="Accuracy, ε and time under each defense.")
@click.option("--knowledge", "table", flag_value="knowledge", help="Plain beside adaptive attackers.")
def command(cell: str | None, run: Path | None, as_json: bool, opened: bool, table: str | None) -> None:
    """List the cells of RUN (by default the newest below runs/), or show one of them.

    A cell is named by the first digits of its id.  Its reconstruction grid, truth above
    reconstruction, is written to RUN/pictures, and beside it the trajectory over the iterations.

    \b
    bench show                  all cells of the newest run
    bench show runs/smoke       of that one
    bench show 3f2a             one cell
    bench show runs/x --attacks     every attack of that run: rates, figures, cost
    bench show runs/x --trainings   what each defense costs in accuracy, ε and time
    bench show runs/x --knowledge   what knowing the defense gains
    """
    from bench.record import store as records
    from bench.record.runs import checked_run

    if cell is not None and run is None and (Path(cell) / "records").is_dir():
        run, cell = Path(cell), None
    if table is not None and cell is not None:
        raise click.UsageError(f"--{table} is a table of a whole run; leave {cell} out")
    run = checked_run(run)
    if table is not None:
        _table(run, table, as_json)
        return
    if cell is None:
        _list(run, as_json)
        return
    record = records.find(run, cell)
    grid, trajectory = _draw(run, record)
    if as_json:
        paths = {"picture": grid, "over_iterations": trajectory}
        files = {name: None if path is None else str(path) for name, path in paths.items()}
        click.echo(json.dumps({**json.loads(records.to_json(record)), **files}, indent=1))
    else:
        _print(record, grid, trajectory)
    if opened and grid is not None:
        click.launch(str(grid))


def _draw(run: Path, record: "Record") -> tuple[Path | None, Path | None]:
    """Write the cell's reconstruction grid and trajectory below its run; their paths, None for one it has not."""
    from bench.pictures import grid, trajectory

    folder = run / "pictures"
    return (
        _saved(grid.of_record(run, record), folder / f"{record.id}.png"),
        _saved(trajectory.of_record(run, record), folder / f"{record.id}-iterations.png"),
    )


def _saved(image: "Image | None", path: Path) -> Path | None:
    from bench.pictures import grid

    if image is None:
        return None
    grid.save(image, path)
    return path


def _print(record: "Record", grid: Path | None, trajectory: Path | None) -> None:
    from bench.cli.cell_text import lines
    from bench.record.names import cell_name
    from bench.sanitize import LONGEST, sanitize

    click.echo(click.style(f"{record.id[:8]}  {sanitize(cell_name(record.cell))}", bold=True, fg="cyan"))
    for heading, text in lines(record):
        click.echo(f"{f'{heading}:' if heading else '':<{_HEADING}}{sanitize(text, LONGEST)}")
    click.echo(f"{'picture:':<{_HEADING}}{grid or 'none: this cell reconstructed nothing'}")
    if trajectory is not None:
        click.echo(f"{'over iterations:':<{_HEADING}}{trajectory}")


def _table(run: Path, table: str, as_json: bool) -> None:
    """Print the run's table of attacks, of trainings, or of what knowing the defense gains."""
    from rich.console import Console

    from bench.cli.columns import width
    from bench.leaderboard import attacks, knowledge, trainings
    from bench.leaderboard.forms import terminal
    from bench.matrix import published
    from bench.record import store as records

    cells, papers = list(records.records(run)), published.kept(run)
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
        click.echo(json.dumps({"run": str(run), table: [row.json() for row in rows]}, indent=1))
    elif rows:
        Console(width=max(width(), 80), highlight=False).print(text)
    else:
        click.echo(empty)


def _list(run: Path, as_json: bool) -> None:
    from bench.cli.columns import columns, width
    from bench.record import store as records
    from bench.sanitize import sanitize

    rows = [_row(record) for record in records.records(run)]
    if as_json:
        click.echo(json.dumps({"run": str(run), "cells": rows}, indent=1))
        return
    names = ("id", "dataset", "model", "defense", "point", "attack", "status", "shown")
    texts = [tuple(sanitize(row[name][:8] if name == "id" else row[name]) for name in names) for row in rows]
    if texts:
        click.echo(columns(_COLUMNS, texts, width()))
    count = f"{len(rows)} cell{'' if len(rows) == 1 else 's'} in {run}"
    click.echo(f"{count}; `bench show CELL` shows one" if rows else count)


def _row(record: "Record") -> dict[str, Any]:
    from bench.cell import TrainingCell
    from bench.cli.cell_text import headline
    from bench.record.names import entry

    cell = record.cell
    row = {
        "id": record.id, "kind": cell.kind, "dataset": entry(cell.dataset), "model": cell.model.name,
        "defense": entry(cell.defense), "status": record.status, "reason": record.reason,
        "shown": headline(record),
    }  # fmt: skip
    if isinstance(cell, TrainingCell):
        accuracy = record.training.accuracy if record.training else None
        return {**row, "point": "–", "attack": f"training, {cell.rounds} rounds", "accuracy": accuracy}
    adaptive = "" if cell.knowledge == "plain" else f" · {cell.knowledge}"
    summary = record.attack.figures() if record.attack else None
    return {
        **row, "point": cell.point, "attack": cell.attack.name + adaptive, "seed": cell.seed, "draw": cell.draw,
        "asr": summary and summary.asr.value, "asr_low": summary and summary.asr.low,
        "asr_high": summary and summary.asr.high, "lower_bound": summary and summary.lower_bound,
    }  # fmt: skip
