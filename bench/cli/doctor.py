"""`bench doctor`: check versions, machine, storage and names, with remedies; exit code 1 for a failure."""

import dataclasses
import sys
from pathlib import Path

import click
from rich.text import Text

from bench.cli import common
from bench.health.finding import Finding

_COLOURS = {"ok": "bold green", "warn": "bold yellow", "fail": "bold red"}


@click.command()
@common.data_dir
@click.option(
    "--run",
    "run",
    default=".",
    show_default=True,
    help="Folder in which runs will be written.",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@common.plugins
@common.json_flag
def command(data_dir: Path | None, run: Path, as_json: bool) -> None:
    """Check the installation: versions, GPU, data, disk, store, name clashes, broken plug-ins."""
    items = findings(data_dir, run)
    if as_json:
        common.print_json([dataclasses.asdict(item) for item in items])
    else:
        common.print_table(("", "", ""), [row for item in items for row in _rows(item)])
        failed, warned = (sum(item.state == state for item in items) for state in ("fail", "warn"))
        click.echo(f"\n{len(items)} checks: {failed} failed, {warned} with a warning")
    sys.exit(any(item.state == "fail" for item in items))


def findings(data_dir: Path | None, run: Path) -> list[Finding]:
    """Return the findings of all checks of `bench doctor`, in the order in which a user should repair faults.
    `data_dir` is the folder for data sets (None: the default folders), and `run` the folder of runs."""
    from bench.health import machine, names, storage, versions

    probe = machine.probe()
    return [
        versions.python(),
        *versions.dependencies(),
        versions.st_lpips(),
        machine.pair(probe),
        machine.gpu(probe),
        machine.cores(probe),
        *storage.data(data_dir),
        storage.disk(run),
        storage.store(run),
        storage.telemetry(),
        names.packages(),
        names.command(),
        names.shadows(),
        *names.entries(load="torch error" not in probe),
    ]


def _rows(item: Finding) -> list[tuple[str | Text, str, str]]:
    row = (Text(item.state, _COLOURS[item.state]), item.name, item.detail)
    return [row, ("", "", f"→ {item.remedy}")] if item.remedy else [row]
