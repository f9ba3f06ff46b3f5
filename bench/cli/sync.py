"""`bench sync`: upload a run's records that are missing from the MLflow store; repeated calls add no duplicates."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from bench.cli import common
from bench.tracking import store
from bench.tracking.sync import at_once, never, sync, while_attended, while_held


@click.command()
@common.run
@click.option(
    "--tracking-uri", metavar="URI", help="MLflow server or store [default: mlflow.db next to the run folder]."
)
@click.option("--include-pictures", is_flag=True, help="Also upload pictures of private data.")
@click.option("--follow", is_flag=True, help="Continue until the run ends.")
@click.option("--attached", is_flag=True, hidden=True, help="With --follow: continue until standard input closes.")
@common.json_flag
def command(
    run: Path, tracking_uri: str | None, include_pictures: bool, follow: bool, attached: bool, as_json: bool
) -> None:
    """Upload missing records (results of cells) of RUN (default: the newest below runs/), and the rows of its
    leaderboard, to the MLflow store.

    Exit code 1 for a failed upload; the next sync tries again."""
    uri = store.checked_uri(run, tracking_uri)
    live = sys.stderr.isatty() and not as_json

    def progress(state: store.UploadResult) -> None:
        store.beat(run)
        if live:
            click.echo(f"\r{state.left} left \x1b[K", nl=False, err=True)

    wait, stop = while_attended() if attached else (while_held(run) if follow else at_once, never)
    done = sync(run, uri, include_pictures=include_pictures, wait=wait, stop=stop, progress=progress)
    if live:
        click.echo("\r\x1b[K", nl=False, err=True)
    if as_json:
        click.echo(json.dumps({"run": str(run), "uri": store.shown(uri), **asdict(done)}))
    else:
        click.echo(
            f"{run} → {store.shown(uri)}: {done.count} uploaded, {done.skipped} there already, "
            f"{done.failed} failed, {done.left} left; {done.rows} rows of the board written"
        )
        if done.reason:
            click.echo(f"bench: {done.reason}", err=True)
    sys.exit(1 if done.reason else 0)
