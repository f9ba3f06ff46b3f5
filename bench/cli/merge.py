"""`bench merge`: copy records from several run folders, such as shards of a matrix, into a single folder."""

import sys
from dataclasses import asdict
from pathlib import Path

import click

from bench.cli import common

_LISTED = 10


@click.command()
@click.argument("into", type=common.PATH)
@click.argument("sources", type=common.PATH, nargs=-1, required=True, metavar="FROM...")
@common.json_flag
def command(into: Path, sources: tuple[Path, ...], as_json: bool) -> None:
    """Copy the records (results of cells) of every FROM, with arrays and checkpoints, into the run folder INTO.

    Equal records count once; a finished record replaces a crashed record. Each record is checked first; a mismatched
    record is refused and stays in FROM. Exit code 1 for a refused record.

    \b
    bench merge runs/standard runs/standard-shard-*
    """
    from bench.record.folder import locked
    from bench.sweep.merge import merge

    with locked(into):
        merged = merge(into, sources)
    if as_json:
        common.print_json({"run": str(into), **asdict(merged)})
    else:
        counts = f"{merged.new} new records, {merged.better} in place of lesser ones, {merged.same} there before"
        click.echo(f"{into}: {counts}")
        for title, lines in (("differ", merged.differs), ("refused", merged.refused)):
            for line in lines[:_LISTED]:
                click.echo(f"{title}: {line}")
            if len(lines) > _LISTED:
                click.echo(f"{title}: … and {len(lines) - _LISTED} more")
    sys.exit(1 if merged.refused else 0)
