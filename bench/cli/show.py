"""`bench show`: a run's cells in a list, or one cell in words with its pictures."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from bench.records import Record

_COLUMNS = ("cell", "data set", "model", "defense", "point", "attack", "status", "ASR or accuracy")
_HEADING = 18  # columns


@click.command()
@click.argument("cell", metavar="[CELL-PREFIX]", required=False)
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--open", "opened", is_flag=True, help="Open the picture, too.")
def command(cell: str | None, run: Path | None, as_json: bool, opened: bool) -> None:
    """List the cells of RUN (by default the newest below runs/), or show one of them.

    A cell is named by the first digits of its id.  Its picture, truth above reconstruction, is
    written to RUN/pictures.

    \b
    bench show                  all cells of the newest run
    bench show runs/smoke       of that one
    bench show 3f2a             one cell
    """
    from bench.cli import lookup
    from bench.tracking import store

    if cell is not None and run is None and (Path(cell) / "records").is_dir():
        run, cell = Path(cell), None
    run = store.checked_run(run)
    if cell is None:
        _list(run, as_json)
        return
    record = lookup.by_prefix(run, cell)
    picture = _draw(run, record)
    if as_json:
        content = {**json.loads(record.json()), "picture": None if picture is None else str(picture)}
        click.echo(json.dumps(content, indent=1))
    else:
        _tell(record, picture)
    if opened and picture is not None:
        click.launch(str(picture))


def _draw(run: Path, record: "Record") -> Path | None:
    """Write the cell's picture below its run and return its path; None where it has none."""
    from bench import strips
    from bench.cli import lookup

    with lookup.understood(record):
        image = strips.of_record(run, record)
    if image is None:
        return None
    path = run / "pictures" / f"{record.id}.png"
    strips.save(image, path)
    return path


def _tell(record: "Record", picture: Path | None) -> None:
    from bench.cli import lookup
    from bench.cli.cell_words import lines
    from bench.tracking.view import clean, view

    with lookup.understood(record):
        title, told = view(record, "").name, lines(record)
    click.echo(click.style(f"{record.id[:8]}  {title}", bold=True, fg="cyan"))
    for heading, text in told:
        click.echo(f"{f'{heading}:' if heading else '':<{_HEADING}}{clean(str(text))}")
    click.echo(f"{'picture:':<{_HEADING}}{picture or 'none: this cell reconstructed nothing'}")


def _list(run: Path, as_json: bool) -> None:
    from bench.cli import lookup
    from bench.cli.columns import columns, width
    from bench.tracking.view import clean

    rows = []
    for record in lookup.every(run):
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
    from bench.leaderboard.table import entry

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
