"""`bench merge`: the records of several run folders, shards of a matrix say, in one."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

_LISTED = 10


@click.command()
@click.argument("into", type=click.Path(path_type=Path))
@click.argument("sources", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="FROM...")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def command(into: Path, sources: tuple[Path, ...], as_json: bool) -> None:
    """Bring the records of every FROM into the run folder INTO, with their arrays and checkpoints.

    A record that is there already counts once; a finished one takes the place of one that crashed.  Each is
    checked first, and what does not fit is refused and left.  Exit code 1 where something was.

    \b
    bench merge runs/standard runs/standard-shard-*
    """
    from bench.record.folder import opened
    from bench.sweep.merge import merge

    with opened(into):
        merged = merge(into, sources)
    if as_json:
        click.echo(json.dumps({"run": str(into), **asdict(merged)}, indent=1))
    else:
        click.echo(
            f"{into}: {merged.new} new records, {merged.better} in place of lesser ones, {merged.same} there before"
        )
        for title, lines in (("differ", merged.differs), ("refused", merged.refused)):
            for line in lines[:_LISTED]:
                click.echo(f"{title}: {line}")
            if len(lines) > _LISTED:
                click.echo(f"{title}: … and {len(lines) - _LISTED} more")
    sys.exit(1 if merged.refused else 0)
