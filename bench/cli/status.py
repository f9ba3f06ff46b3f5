"""`bench status`: how far a run is, from another terminal or machine."""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from bench.sweep.progress import RunProgress


@click.command()
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, metavar="[RUN...]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line a run.")
def command(runs: tuple[Path, ...], as_json: bool) -> None:
    """Say how far each RUN is (by default the newest below runs/): settled cells, what each worker runs, and the
    time left.  It reads the run folder alone, from any machine that sees it.

    \b
    bench status
    watch bench status runs/shard-*
    """
    from bench.record.runs import checked_run

    for run in runs or (None,):
        folder = checked_run(run)
        if as_json:
            click.echo(json.dumps(_facts(folder)))
        else:
            for line in _lines(folder):
                click.echo(line)


def _facts(run: Path) -> dict[str, Any]:
    from bench.record import folder
    from bench.sweep import progress

    known, holder = progress.read(run), folder.holder(run)
    return {
        "run": str(run), "under_way": folder.is_held(run), "holder": asdict(holder) if holder else {},
        "records": sum(1 for _ in (run / "records").glob("*.json")),
        "progress": asdict(known) if known else None,
    }  # fmt: skip


def _lines(run: Path) -> Iterator[str]:
    from bench.record import folder
    from bench.sanitize import sanitize
    from bench.sweep import progress

    known, under_way, holder = progress.read(run), folder.is_held(run), folder.holder(run)
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
    if under_way:
        for worker, cell in sorted(known.busy.items()):
            step = f", {cell.step}" if cell.step else ""
            since = _ago(known.seen, cell.since)
            yield sanitize(f"  worker {worker}  {cell.what}{step}, for {since}", 300)


def _state(known: "RunProgress", under_way: bool, where: str) -> str:
    from bench.cli.words import duration
    from bench.sanitize import sanitize

    seen = f"{_ago(time.time(), known.seen)} ago"
    if under_way:
        left = "" if known.left is None else f", about {duration(known.left)} left"
        return f"under way{where} for {_ago(time.time(), known.began)}, seen {seen}{left}"
    if known.state == "finished":
        return f"finished {seen}"
    killed = known.state == "running"
    state = f"killed, last seen {seen}" if killed else f"{sanitize(known.state, 500)}, {seen}"
    return f"{state}; the same command goes on"


def _ago(now: float, then: float) -> str:
    """A time between two clocks' times; clocks of two machines, or one set back, may not agree."""
    from bench.cli.words import duration

    return duration(max(0.0, now - then))
