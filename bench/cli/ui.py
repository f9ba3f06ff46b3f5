"""`bench ui`: show a run's store in MLflow's web interface on this machine, until Ctrl-C."""

import signal
import webbrowser
from pathlib import Path
from types import FrameType

import click

from bench.cli import common
from bench.errors import BenchError
from bench.tracking import pages, server, store

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command()
@common.run
@click.option(
    "--port", type=click.IntRange(1024, 65535), default=5077, show_default=True, help="Port of the interface."
)
@click.option("--no-browser", is_flag=True, help="Print the address, open no browser.")
def command(run: Path, port: int, no_browser: bool) -> None:
    """Open MLflow's web interface on the store of RUN (default: the newest below runs/), on loopback.

    The page opens on charts of the leaderboard's rows, with pictures; without a leaderboard, on the table of cells."""
    uri = store.default_uri(run)
    database = Path(uri.removeprefix("sqlite:///"))
    if not database.exists():
        raise BenchError(f"{database}: no store there yet; `bench sync {run}` makes it from the records")
    if missing := store.unsynced(run, uri):
        click.echo(f"{missing} of {run}'s records are not in the store; `bench sync {run}` uploads them")
    free = server.free_port(port)
    if free != port:
        click.echo(f"port {port} is taken; using {free}")
    for number in _ENDS:
        signal.signal(number, _stop)
    try:
        click.echo("starting MLflow's UI, 10 to 20 seconds …")
        with server.serving(uri, free, database.with_name("mlflow-ui.log")) as process:
            addresses, problem = pages.pages(free, store.experiment_name(run), store.board_name(run, ""))
            for name, address in addresses.items():
                click.echo(f"{name + ':':8} {address}")
            if problem is not None:
                click.echo(f"{problem}; it opens on {next(iter(addresses))}")
            elif len(addresses) == 1:
                click.echo(f"no board yet; `bench sync {run}` writes it")
            click.echo("Ctrl-C ends it")
            if not no_browser:
                webbrowser.open(next(iter(addresses.values())))
            if process.wait():
                raise BenchError(f"MLflow's server ended; see {database.with_name('mlflow-ui.log')}")
    except KeyboardInterrupt:
        click.echo("ended")


def _stop(number: int, frame: FrameType | None) -> None:
    for further in _ENDS:
        signal.signal(further, signal.SIG_IGN)
    raise KeyboardInterrupt
