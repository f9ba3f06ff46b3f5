"""`bench status`: show a run's progress, also from another terminal or machine."""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from bench.cli import common
from bench.cli.words import duration
from bench.record import folder
from bench.record.runs import checked_run
from bench.sanitize import LONG, sanitize
from bench.sweep import progress


@click.command()
@click.argument("runs", type=common.PATH, nargs=-1, metavar="[RUN...]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line per run.")
def command(runs: tuple[Path, ...], as_json: bool) -> None:
    """Show the progress of each RUN (default: the newest below runs/): finished cells (experiments), each worker's
    cell, time left.

    The command reads only the run folder, so it works on any machine with access to the folder.

    \b
    bench status
    watch bench status runs/shard-*
    """
    for run in map(checked_run, runs or (None,)):
        click.echo(json.dumps(_content(run)) if as_json else "\n".join(_lines(run)))


def _content(run: Path) -> dict[str, Any]:
    known, holder = progress.read(run), folder.lock_holder(run)
    return {
        "run": str(run),
        "under_way": folder.is_locked(run),
        "holder": asdict(holder) if holder else {},
        "records": sum(1 for _ in (run / "records").glob("*.json")),
        "progress": asdict(known) if known else None,
    }


def _lines(run: Path) -> Iterator[str]:
    known, under_way, holder = progress.read(run), folder.is_locked(run), folder.lock_holder(run)
    where = sanitize(f" on {holder.host}, process {holder.pid}") if holder else ""
    if known is None:
        state = f"under way{where}" if under_way else "not under way"
        yield f"{run}: {state}; it says nothing of how far it is"
        return
    yield f"{run}: {sanitize(known.title)}"
    yield f"  {_state(known, under_way, where)}"
    counts = [f"{count} {'failed' if name == 'crashed' else name}" for name, count in known.statuses.items()]
    by_run = f" ({', '.join(counts)} by this run)" if counts else ""
    yield f"  {known.settled} of {known.cells} cells settled{sanitize(by_run)}"
    for worker, cell in sorted(known.busy.items()) if under_way else ():
        step = f", {cell.step}" if cell.step else ""
        yield sanitize(f"  worker {worker}  {cell.what}{step}, for {_between(cell.since, known.seen)}", 300)


def _state(known: progress.RunProgress, under_way: bool, where: str) -> str:
    now = time.time()
    seen = f"{_between(known.seen, now)} ago"
    if under_way:
        left = "" if known.left is None else f", about {duration(known.left)} left"
        return f"under way{where} for {_between(known.began, now)}, seen {seen}{left}"
    if known.state == "finished":
        return f"finished {seen}"
    killed = known.state == "running"
    state = f"killed, last seen {seen}" if killed else f"{sanitize(known.state, LONG)}, {seen}"
    return f"{state}; the same command goes on"


def _between(then: float, now: float) -> str:
    return duration(max(0.0, now - then))
