"""The `bench` command; subcommands load when called, so `--help` needs no heavy import."""

import importlib
import os
import signal
import sys
from types import FrameType

import click

from bench import __version__
from bench.cli.words import meant
from bench.errors import BenchError, Terminated
from bench.sanitize import LONG, sanitize, sanitized_lines

# command → (module, line for --help)
_COMMANDS = {
    "run": ("bench.cli.run", "Run a matrix: attacks × defenses × data sets × interception points."),
    "status": ("bench.cli.status", "Show the progress of a run, from another terminal or machine."),
    "calibrate": ("bench.cli.calibrate", "Find the strength of a defense that hides examples, and the accuracy there."),
    "advise": ("bench.cli.advise", "List the defenses that hide examples from a listener, with their accuracy."),
    "merge": ("bench.cli.merge", "Join the records of several run folders."),
    "list": ("bench.cli.list", "List the registered attacks, defenses, data sets, models and detectors."),
    "describe": ("bench.cli.describe", "Show an entry: parameters, defaults, units, reference."),
    "check": ("bench.cli.check", "Run the contracts (tests of promises) on an entry, also on your own."),
    "audit": ("bench.cli.audit", "Measure a lower bound of ε, for a defense or your own pipeline."),
    "detect": ("bench.cli.detect", "Measure how often a client detects weights that an attack chose."),
    "show": ("bench.cli.show", "Show a cell in words, with its pictures."),
    "compare": ("bench.cli.compare", "Show the paired difference between two cells."),
    "attack": ("bench.cli.attack", "Attack your own gradient from a file."),
    "assess": ("bench.cli.assess", "Attack a client of your own project, and compare defenses for this client."),
    "leaderboard": ("bench.cli.leaderboard", "Rank defenses; export, import, check and verify results."),
    "gate": ("bench.cli.gate", "Test whether a defense became weaker since a baseline."),
    "privacy": ("bench.cli.privacy", "Print ε of a noise multiplier, by every convention."),
    "data": ("bench.cli.data", "List available data sets, and fetch missing data sets."),
    "doctor": ("bench.cli.doctor", "Check versions, GPU, data, store and name clashes."),
    "sync": ("bench.cli.sync", "Upload new records to the tracking server."),
    "ui": ("bench.cli.ui", "Open MLflow's UI on a run's store, on loopback."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(_COMMANDS[name][0]).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            remedy = meant(args[0], _COMMANDS, "`bench --help` lists them")
            ctx.fail(f"there is no command {args[0]!r}; {remedy}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="bench")
def cli() -> None:
    """A benchmark of gradient leakage in federated learning.

    Begin with `bench run --matrix quickstart`.
    """


def main() -> None:
    """Run the `bench` command as a console script. A user's mistake prints a line and exits with code 2; SIGTERM prints
    a line and exits with code 143. Neither prints a traceback."""
    _end_on_sigterm()
    try:
        cli(prog_name="bench")
    except Terminated:
        click.echo("bench: stopped by SIGTERM", err=True)
        raise
    except BenchError as error:
        click.echo(f"bench: {sanitized_lines(error)}", err=True)
        sys.exit(2)
    except OSError as error:  # such as a too long name or an unreadable folder: print the system's message
        name = f"{error.filename}: " if error.filename else ""
        click.echo(sanitize(f"bench: {name}{error.strerror or error}", LONG), err=True)
        sys.exit(2)


def _end_on_sigterm() -> None:
    """Raise `Terminated` in this process at the first SIGTERM, so that open files and workers are closed. A second
    SIGTERM ends the process at once, as does the first in a forked child. An ignored SIGTERM stays ignored."""
    own = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != own:
            signal.raise_signal(number)
        raise Terminated

    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)


if __name__ == "__main__":
    main()
