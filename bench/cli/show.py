"""`bench show`: a run's cells in a list, or one cell in words with its pictures."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from PIL.Image import Image

    from bench.record.store import Record

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

    A cell is named by the first digits of its id.  Its picture, truth above reconstruction, is
    written to RUN/pictures, and beside it the way there over the iterations, where the attack kept it.

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
    picture, trail = _draw(run, record)
    if as_json:
        paths = {"picture": picture, "over_iterations": trail}
        shown = {name: None if path is None else str(path) for name, path in paths.items()}
        content = {**json.loads(record.json()), **shown}
        click.echo(json.dumps(content, indent=1))
    else:
        _tell(record, picture, trail)
    if opened and picture is not None:
        click.launch(str(picture))


def _draw(run: Path, record: "Record") -> tuple[Path | None, Path | None]:
    """Write the cell's picture and its trail below its run and return their paths; None for one it has not."""
    from bench.cli import lookup
    from bench.pictures import grid as strips
    from bench.pictures import trajectory as trails

    with lookup.understood(record):
        picture, trail = strips.of_record(run, record), trails.of_record(run, record)
    folder = run / "pictures"
    return _saved(picture, folder / f"{record.id}.png"), _saved(trail, folder / f"{record.id}-iterations.png")


def _saved(image: "Image | None", path: Path) -> Path | None:
    from bench.pictures import grid as strips

    if image is None:
        return None
    strips.save(image, path)
    return path


def _tell(record: "Record", picture: Path | None, trail: Path | None) -> None:
    from bench.cli import lookup
    from bench.cli.cell_words import lines
    from bench.tracking.view import clean, view

    with lookup.understood(record):
        title, told = view(record, "").name, lines(record)
    click.echo(click.style(f"{record.id[:8]}  {title}", bold=True, fg="cyan"))
    for heading, text in told:
        click.echo(f"{f'{heading}:' if heading else '':<{_HEADING}}{clean(str(text))}")
    click.echo(f"{'picture:':<{_HEADING}}{picture or 'none: this cell reconstructed nothing'}")
    if trail is not None:
        click.echo(f"{'over iterations:':<{_HEADING}}{trail}")


def _table(run: Path, table: str, as_json: bool) -> None:
    """Print the run's table of attacks, of trainings, or of what knowing the defense gains."""
    from rich.console import Console, RenderableType

    from bench.cli import lookup
    from bench.cli.columns import width
    from bench.leaderboard import attacks, knowledge, trainings
    from bench.matrix import published
    from bench.record import store as records

    found, said = list(records.records(run)), published.kept(run)
    rows: list[Any]
    shown: RenderableType
    with lookup.together(str(run)):
        if table == "attacks":
            rows = attacks.attacks(found, said)
            shown, empty = attacks.render(rows), f"no attack was run in {run}"
        elif table == "trainings":
            rows = trainings.trainings(found, said)
            shown, empty = trainings.render(rows, said), f"nothing was trained in {run}"
        else:
            rows = knowledge.knowledge(found)
            shown, empty = knowledge.render(rows), f"no attack of {run} was asked both plain and adaptive"
    if as_json:
        click.echo(json.dumps({"run": str(run), table: [row.json() for row in rows]}, indent=1))
    elif rows:
        Console(width=max(width(), 80), highlight=False).print(shown)
    else:
        click.echo(empty)


def _list(run: Path, as_json: bool) -> None:
    from bench.cli import lookup
    from bench.cli.columns import columns, width
    from bench.record import store as records
    from bench.tracking.view import clean

    rows = []
    for record in records.records(run):
        with lookup.understood(record):
            rows.append(_row(record))
    if as_json:
        click.echo(json.dumps({"run": str(run), "cells": rows}, indent=1))
        return
    shown = [
        (
            row["id"][:8], row["dataset"], row["model"], row["defense"], row["point"], row["attack"],
            row["status"], row["shown"],
        )
        for row in rows
    ]  # fmt: skip
    if shown:
        click.echo(columns(_COLUMNS, [tuple(map(clean, row)) for row in shown], width()))
    count = f"{len(rows)} cell{'' if len(rows) == 1 else 's'} in {run}"
    click.echo(f"{count}; `bench show CELL` shows one" if rows else count)


def _row(record: "Record") -> dict[str, Any]:
    from bench.cli import figures
    from bench.leaderboard.blocks import entry

    cell, summary = record.cell, record.summary
    common = {
        "id": record.id, "kind": cell["kind"], "dataset": entry(cell["dataset"]), "model": cell["model"]["name"],
        "defense": entry(cell["defense"]), "status": record.status, "reason": record.reason,
    }  # fmt: skip
    done = record.status == "done"
    if cell["kind"] == "training":
        return {
            **common, "point": "–", "attack": f"training, {cell['rounds']} rounds",
            "accuracy": summary.get("accuracy"), "shown": figures.percent(summary["accuracy"]) if done else "",
        }  # fmt: skip
    adaptive = "" if cell["knowledge"] == "plain" else f" · {cell['knowledge']}"
    return {
        **common, "point": cell["point"], "attack": cell["attack"]["name"] + adaptive, "seed": cell["seed"],
        "draw": cell["draw"], "asr": summary.get("asr"), "asr_low": summary.get("asr_low"),
        "asr_high": summary.get("asr_high"), "lower_bound": summary.get("lower_bound"),
        "shown": figures.asr(summary) if done else "",
    }  # fmt: skip
