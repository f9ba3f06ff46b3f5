"""`bench run`: a matrix from TOML to records, with the table growing while it runs."""

import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from bench.cli import common, completion, without_file
from bench.cli.words import estimate, seconds
from bench.matrix.suites import SUITES
from bench.record.files import write_atomically
from bench.registry import entries as registry
from bench.sanitize import sanitize

if TYPE_CHECKING:
    from bench.cli.running import PreparedRun

_MOST_SHARDS = 100_000
_MATRIX = "matrix.toml"  # in the folder of a run without a matrix file: what was typed
# Options that leave a suite's own cells as they are; any other, new ones too, makes a suite's run unranked.
_FREE = (
    "matrix_name",
    "suite_name",
    "cell_file",
    "out",
    "data_dir",
    "device",
    "jobs",
    "rows",
    "shard",
    "executor",
    "time_limit",
    "plugins",
    "defenses",
    "dry_run",
    "verbose",
    "tracking_uri",
    "no_tracking",
    "include_pictures",
    "as_json",
)
_OF_MATRICES = (*_FREE, "scale", "full")
# Options that repeating a cell knows.
_OF_CELLS = ("cell_file", "data_dir", "device", "plugins", "as_json")


def _seconds(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else seconds(value)
    except ValueError:
        message = f"{value}: it must be a time, e.g. 90s, 30m or 2h"
        raise click.BadParameter(message, context, option) from None


def _shard(context: click.Context, option: click.Parameter, value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    number, _, count = value.partition("/")
    numbers = [int(text) if text.isdecimal() and len(text) < 10 else 0 for text in (number, count)]
    if not 1 <= numbers[0] <= numbers[1] <= _MOST_SHARDS:
        raise click.BadParameter(f"{value}: it must be i/n with i from 1 to n, e.g. 1/4", context, option)
    return numbers[0], numbers[1]


@click.command()
@click.option(
    "--matrix",
    "matrix_name",
    metavar="FILE|PRESET",
    shell_complete=completion.matrices,
    help="A matrix file, or a preset's name.",
)
@click.option(
    "--suite",
    "suite_name",
    metavar="NAME",
    type=click.Choice(SUITES),
    help="A published suite: smoke, standard or extra; on standard your defense stands beside the published ones.",
)
@click.option("--cell", "cell_file", type=common.PATH, help="Repeat one published record's cell.")
@click.option("--scale", metavar="NAME", help="Of a preset that comes in several sizes: small (default) or full.")
@click.option(
    "--full", is_flag=True, help="Where a matrix is a cascade: every attack on every reading, for its medians."
)
@click.option("--out", type=common.PATH, help="Run folder [default: runs/NAME].")
@common.data_dir
@common.device
@common.jobs
@common.rows
@click.option(
    "--shard",
    metavar="i/n",
    callback=_shard,
    help="Part i of n, for a scheduler of your own; `bench merge` puts them together.",
)
@click.option("--executor", metavar="dask://HOST:PORT", help="Workers of a Dask cluster, not this machine's.")
@click.option(
    "--time-limit", metavar="TIME", callback=_seconds, help="What a cell may take at most, e.g. 90s, 30m or 2h."
)
@click.option("--plugin", "plugins", multiple=True, metavar="FILE|MODULE", help="Try out entries of your own.")
@click.option(
    "--defense",
    "defenses",
    multiple=True,
    metavar="NAMES",
    shell_complete=completion.entries("defenses", several=True),
    help="Of a matrix: add this to what is attacked, and to trainings that compare defenses; prune:share=.9.",
)
@without_file.options
@click.option("--dry-run", is_flag=True, help="List the cells, which are done, and an estimate of the time.")
@click.option("--tracking-uri", metavar="URI", help="MLflow server or store [default: mlflow.db beside runs].")
@click.option("--no-tracking", is_flag=True, help="Leave MLflow for a later `bench sync`.")
@click.option("--include-pictures", is_flag=True, help="Send pictures of private data to MLflow, too.")
@click.option("--verbose", is_flag=True, help="At the end the caveats, the legend, and what knowing a defense gains.")
@common.json_flag
def command(
    matrix_name: str | None,
    suite_name: str | None,
    cell_file: Path | None,
    scale: str | None,
    out: Path | None,
    data_dir: Path | None,
    device: str,
    jobs: int | None,
    rows: int | None,
    shard: tuple[int, int] | None,
    executor: str | None,
    time_limit: float | None,
    plugins: tuple[str, ...],
    defenses: tuple[str, ...],
    dry_run: bool,
    full: bool,
    tracking_uri: str | None,
    no_tracking: bool,
    include_pictures: bool,
    as_json: bool,
    verbose: bool,
    print_matrix: bool,
    **axes: Any,
) -> None:
    """Run a matrix: attacks × defenses × data sets × interception points.

    Without --matrix and --cell the axes are those of the options; --print-matrix writes them as TOML.
    Finished cells are skipped; Ctrl-C loses the cells in flight and no more.  Exit code 0 when each cell
    is done or n/a, 1 when cells crashed, 2 for a mistake in the matrix or an option.

    \b
    bench run --matrix quickstart
    bench run --matrix mine.toml --plugin my_defense.py
    bench run --matrix quickstart --plugin my_defense.py --defense my-defense
    bench run --suite standard --plugin my_defense.py --defense my-defense
    bench run --matrix standard --executor dask://head:8786
    bench run --matrix standard --shard 3/16
    bench run --cell runs/quickstart/records/<id>.json
    bench run --defense prune:share=.9 --attack cpl,map --point type-1
    """
    typed = defenses or any(axes.values())
    if matrix_name is not None and suite_name is not None:
        raise click.UsageError("give --matrix FILE|PRESET or --suite NAME, not both")
    matrix_name = matrix_name or suite_name
    if matrix_name is not None and cell_file is not None:
        raise click.UsageError("give --matrix FILE|PRESET or --cell RECORD, not both")
    if matrix_name is None and cell_file is None and not typed:
        raise click.UsageError(
            "give --matrix FILE|PRESET, --cell RECORD, or --defense and --attack; `bench run --matrix quickstart`"
        )
    if matrix_name is not None and (idle := _options(but=_OF_MATRICES)):
        raise click.UsageError(f"{idle[0]} is of a run without --matrix; write it into the matrix, or leave that out")
    if cell_file is not None:
        if idle := _options(but=_OF_CELLS):
            raise click.UsageError(f"{idle[0]} is of a matrix; leave it out, or give --matrix")
        from bench.cli import repeat
        from bench.sweep.session import chosen_device

        sys.exit(repeat.repeat(cell_file, data_dir, chosen_device(device), plugins, as_json))
    from bench.cli import running
    from bench.matrix.suites import ranking_line
    from bench.record.request import Request

    if matrix_name is None:
        for plugin in plugins:
            registry.add_plugin(plugin)
        content = without_file.text(defenses=defenses, **axes)
        if print_matrix:
            click.echo(content, nl=False)
            return
        out = out or Path("runs") / without_file.name(content)
        with TemporaryDirectory() as folder:  # it is read before anything is left behind
            matrix_name, defenses, kept = str(Path(folder) / _MATRIX), (), out / _MATRIX
            Path(matrix_name).write_text(content, "utf-8")
            request = Request(matrix=matrix_name, plugins=plugins)
            prepared = running.prepare(request, out=out, data_dir=data_dir, jobs=jobs, shard=shard)
        prepared = replace(prepared, request=replace(request, matrix=str(kept)))
        if not dry_run:
            write_atomically(kept, content.encode())
    else:
        request = Request(
            matrix=matrix_name,
            scale=scale,
            defenses=defenses,
            plugins=plugins,
            full=full,
            shipped=suite_name is not None and not full,
        )
        prepared = running.prepare(request, out=out, data_dir=data_dir, jobs=jobs, shard=shard)
    if dry_run:
        _dry_run(prepared, device, as_json)
        return
    result = running.execute(
        prepared,
        device=device,
        quiet=as_json,
        tracking_uri=None if no_tracking else (tracking_uri or ""),
        include_pictures=include_pictures,
        overrides=overrides(),
        time_limit=time_limit,
        executor=executor,
        rows=rows,
        verbose=verbose,
    )
    if as_json:
        common.print_json(result)
    elif result["suite"] is not None:
        click.echo(ranking_line(result["suite"]))
    sys.exit(1 if result["crashed"] else 0)


def overrides() -> list[str]:
    """The options of this command line that change what a matrix requests, as they were spelt."""
    return _options(but=_FREE)


def _options(*, but: Collection[str]) -> list[str]:
    """The options of this command line, as they were spelt."""
    context = click.get_current_context()
    return [
        option.opts[0]
        for option in context.command.params
        if option.name not in but and context.get_parameter_source(option.name or "") is not ParameterSource.DEFAULT
    ]


def _dry_run(run: "PreparedRun", device: str, as_json: bool) -> None:
    from bench.cli.cell_lines import cell_lines
    from bench.sweep.session import chosen_device, default_jobs

    schedule, jobs = run.schedule, run.jobs or default_jobs(chosen_device(device))
    rows = [(cell, "done", "") for cell in schedule.done]
    rows += [(cell, "n/a", reason) for cell, reason in schedule.impossible]
    rows += [(cell, "to run", schedule.again.get(cell.id, "")) for cell in schedule.waiting]
    if as_json:
        cells = [
            {
                "id": cell.id,
                "state": state,
                "reason": reason or None,
                "cell": cell.model_dump(mode="json"),
                "estimated_seconds": schedule.estimates.seconds(cell) if state == "to run" else None,
            }
            for cell, state, reason in rows
        ]
        common.print_json({"run": str(run.folder), "cells": cells, "estimated_seconds": schedule.seconds / jobs})
        return
    lines = cell_lines([cell for cell, _, _ in rows])
    for (cell, state, reason), line in zip(rows, lines, strict=True):
        click.echo(f"{cell.id[:8]}  {state:7}{sanitize(line)}{f'  ({sanitize(reason)})' if reason else ''}")
    counts = f"{len(schedule.done)} done, {len(schedule.impossible)} n/a, {len(schedule.waiting)} to run"
    workers = f"{jobs} worker{'s' if jobs > 1 else ''}"
    about = estimate(schedule.seconds, run.span, jobs)
    click.echo(f"\n{len(rows)} cells: {counts}, with {workers} about {about}.  They would go to {run.folder}.")
