"""`bench doctor`: versions, machine, storage and names, each with a remedy; exit code 1 if any fails."""

import dataclasses
import json
import sys
from pathlib import Path

import click

from bench.cli.columns import width
from bench.health.finding import Finding
from bench.registry import entries as registry

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option("--data-dir", type=click.Path(path_type=Path), help="A data folder of your own.")
@click.option(
    "--run", "run", default=".", show_default=True, help="Where runs will be written.",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)  # fmt: skip
@click.option("--plugin", "plugin", multiple=True, metavar="FILE_OR_MODULE", help="Add entries of your own.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(data_dir: Path | None, run: Path, plugin: tuple[str, ...], as_json: bool) -> None:
    """Check what bench needs: versions, GPU, data, disk, store, name clashes, broken plug-ins."""
    for spec in plugin:
        registry.add_plugin(spec)
    items = findings(data_dir, run)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(item) for item in items], indent=1, ensure_ascii=False))
    else:
        click.echo("\n".join(map(_line, items)))
        worst = [sum(item.state == state for item in items) for state in ("fail", "warn")]
        click.echo(f"\n{len(items)} checks: {worst[0]} failed, {worst[1]} with a warning")
    sys.exit(any(item.state == "fail" for item in items))


def findings(data_dir: Path | None, run: Path) -> list[Finding]:
    """Every check in the order in which faults should be mended."""
    from bench.health import machine, names, storage, versions

    probe = machine.probe()
    return [
        versions.python(), *versions.dependencies(),
        machine.pair(probe), machine.gpu(probe), machine.cores(probe),
        *storage.data(data_dir), storage.disk(run), storage.store(run), storage.telemetry(),
        names.packages(), names.command(), names.shadows(), *names.entries(load="torch error" not in probe),
    ]  # fmt: skip


def _line(item: Finding) -> str:
    state = click.style(f"{item.state:<5}", fg=_COLOURS[item.state], bold=True)
    longest = max(width() - 29, 20)
    detail = f"{state} {item.name:<22} {item.detail}"
    if not item.remedy:
        return detail
    hint = f"→ {item.remedy}"
    return f"{detail}{' ' if len(item.detail) + len(hint) < longest else chr(10) + ' ' * 29}{hint}"
