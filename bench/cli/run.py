"""`bench run`: run a matrix (attacks × defenses × …) and write its records, with a live table."""

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import tomli_w
from click.core import ParameterSource

from bench.cli import common, completion, without_file
from bench.cli.words import estimate, seconds
from bench.matrix.suites import ATTACKS, MATRICES, OF_DEFENSES, TRADEOFF, suite_of
from bench.record.files import write_atomically
from bench.registry import entries as registry
from bench.sanitize import sanitize

if TYPE_CHECKING:
    from bench.cli.running import PreparedRun

_MOST_SHARDS = 100_000
_MATRIX = "matrix.toml"  # in the folder of a run without a matrix file: the typed axes
# Options that do not change a suite's cells; any other option makes a suite's run unranked.
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
_OF_TRADEOFF = (
    *("suite_name", "defenses", "plugins", "out", "data_dir", "device", "jobs"),
    *("tracking_uri", "no_tracking", "as_json"),
)
_OF_ATTACKS = ("attack", "draw_seed")  # options of the suite whose rows are attacks; its cells have these axes
# Options allowed when a cell is repeated.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    matrix_name: str | None
    suite_name: str | None
    cell_file: Path | None
    scale: str | None
    full: bool
    out: Path | None
    data_dir: Path | None
    device: str
    jobs: int | None
    rows: int | None
    shard: tuple[int, int] | None
    executor: str | None
    time_limit: float | None
    plugins: tuple[str, ...]
    defenses: tuple[str, ...]
    draw_seed: int | None
    axes: without_file.TypedAxes
    print_matrix: bool
    dry_run: bool
    tracking_uri: str | None
    no_tracking: bool
    include_pictures: bool
    verbose: bool
    as_json: bool

    @staticmethod
    def of(values: Mapping[str, Any]) -> "_Options":
        axes = {field.name: values[field.name] for field in fields(without_file.TypedAxes)}
        others = {name: value for name, value in values.items() if name not in axes}
        return _Options(axes=without_file.TypedAxes(**axes), **others)

    @property
    def matrix(self) -> str | None:
        """Matrix file, preset or suite that the user named; None for axes given as options, or for the repeat of a cell
        (an experiment)."""
        return self.matrix_name or (self.suite_name and MATRICES.get(self.suite_name, self.suite_name))


@click.command()
@click.option(
    "--matrix",
    "matrix_name",
    metavar="FILE|PRESET",
    shell_complete=completion.matrices,
    help="Matrix file, or name of a preset.",
)
@click.option(
    "--suite",
    "suite_name",
    metavar="NAME",
    type=click.Choice((TRADEOFF, *OF_DEFENSES, ATTACKS)),
    help="Published suite: standard ranks your defense by accuracy at equal leakage, attacks ranks your attack.",
)
@click.option("--cell", "cell_file", type=common.PATH, help="Repeat the cell of a published record.")
@click.option("--scale", metavar="NAME", help="Size of a preset with several sizes: small (default) or full.")
@click.option(
    "--full", is_flag=True, help="Run every attack on every reading, also in a cascade; gives an attack's medians."
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
    help="Run part i of n, for your own scheduler; `bench merge` joins the parts.",
)
@click.option(
    "--executor", metavar="dask://HOST:PORT", help="Run on the workers of a Dask cluster, not on this machine."
)
@click.option("--time-limit", metavar="TIME", callback=_seconds, help="Longest time of a cell, such as 90s, 30m or 2h.")
@common.plugin_files
@click.option(
    "--defense",
    "defenses",
    multiple=True,
    metavar="NAMES",
    shell_complete=completion.entries("defenses", several=True),
    help="Defenses; with --matrix, added to its attacks and its trainings. Example: prune:share=.9.",
)
@without_file.options
@click.option(
    "--draw-seed",
    type=click.IntRange(0, 10**9),
    help="Suite attacks: add a second sample of victims, drawn by this seed.",
)
@click.option("--dry-run", is_flag=True, help="List the cells with their state and the expected time; run nothing.")
@common.tracking
@click.option("--include-pictures", is_flag=True, help="Also send pictures of private data to MLflow.")
@click.option("--verbose", is_flag=True, help="End with caveats, a legend, and the gain of adaptive attackers.")
@common.json_flag
def command(**values: Any) -> None:
    """Run a matrix: attacks × defenses × data sets × interception points.

    Without --matrix and --cell, options give the axes; --print-matrix writes them as TOML. Finished cells (experiments)
    are skipped; Ctrl-C or SIGTERM loses only the cells in progress. Exit code 0 when each cell is done or n/a, 1 when
    cells crashed, 2 for a mistake in the matrix or an option.

    \b
    bench run --matrix quickstart
    bench run --matrix mine.toml --plugin my_defense.py
    bench run --matrix quickstart --plugin my_defense.py --defense my-defense
    bench run --suite standard --plugin my_defense.py --defense my-defense
    bench run --suite standard-v1 --plugin my_defense.py --defense my-defense:step=.1
    bench run --suite attacks --plugin my_attack.py --attack my-attack --draw-seed 7
    bench run --matrix standard --executor dask://head:8786
    bench run --matrix standard --shard 3/16
    bench run --cell runs/quickstart/records/<id>.json
    bench run --defense prune:share=.9 --attack cpl,map --point type-1
    """
    options = _Options.of(values)
    if options.suite_name == TRADEOFF:
        _calibrate(options)
        return
    _refuse_contradictions(options)
    if options.cell_file is not None:
        from bench.cli import repeat
        from bench.sweep.session import chosen_device

        device = chosen_device(options.device)
        sys.exit(repeat.repeat(options.cell_file, options.data_dir, device, options.plugins, options.as_json))
    prepared = _of_axes(options) if options.matrix is None else _of_matrix(options, options.matrix)
    if prepared is None:
        return
    if options.dry_run:
        _dry_run(prepared, options.device, options.as_json)
        return
    sys.exit(_execute(prepared, options))


def _refuse_contradictions(options: _Options) -> None:
    """Raise `UsageError` for contradictory options, or if neither matrix, cell nor axes are given."""
    if options.matrix_name is not None and options.suite_name is not None:
        raise click.UsageError("give --matrix FILE|PRESET or --suite NAME, not both")
    if options.matrix is not None and options.cell_file is not None:
        raise click.UsageError("give --matrix FILE|PRESET or --cell RECORD, not both")
    if options.matrix is None and options.cell_file is None and not options.defenses and not options.axes:
        raise click.UsageError(
            "give --matrix FILE|PRESET, --cell RECORD, or --defense and --attack; `bench run --matrix quickstart`"
        )
    ranks_attacks = options.matrix is not None and suite_of(options.matrix) == ATTACKS
    allowed = (*_OF_MATRICES, *_OF_ATTACKS) if ranks_attacks else _OF_MATRICES
    if options.matrix is not None and (idle := _options(but=allowed)):
        if idle[0] == "--draw-seed":
            raise click.UsageError(f"--draw-seed is of the suite {ATTACKS}; leave it out")
        raise click.UsageError(f"{idle[0]} is of a run without --matrix; write it into the matrix, or leave that out")
    if options.matrix is None and options.draw_seed is not None:
        raise click.UsageError(f"--draw-seed is of the suite {ATTACKS}; add --suite {ATTACKS}")
    if ranks_attacks and options.defenses:
        raise click.UsageError(f"--defense changes the conditions of the suite {ATTACKS}; leave it out")
    if options.cell_file is not None and (idle := _options(but=_OF_CELLS)):
        raise click.UsageError(f"{idle[0]} is of a matrix; leave it out, or give --matrix")


def _calibrate(options: _Options) -> None:
    """Calibrate the defenses of the suite `TRADEOFF`, and say their ranks."""
    from bench.cli import calibrate

    if not options.defenses:
        raise click.UsageError(f"--suite {TRADEOFF} ranks a defense; add --defense NAME")
    if idle := _options(but=_OF_TRADEOFF):
        raise click.UsageError(f"{idle[0]} is not of --suite {TRADEOFF}; leave it out, or take --suite standard-v1")
    calibrate.calibrate(
        options.defenses,
        calibrate.MATRIX,
        out=options.out or calibrate.FOLDER,
        data_dir=options.data_dir,
        device=options.device,
        jobs=options.jobs,
        plugins=options.plugins,
        tracking_uri=options.tracking_uri,
        tracked=not options.no_tracking,
        as_json=options.as_json,
        ranks=True,
    )


def _of_matrix(options: _Options, matrix: str) -> "PreparedRun":
    from bench.cli import running
    from bench.record.request import Request

    request = Request(
        matrix=matrix,
        scale=options.scale,
        defenses=options.defenses,
        plugins=options.plugins,
        full=options.full,
        shipped=options.suite_name in OF_DEFENSES and not options.full,
        attacks=options.axes.attack,
        draw_seed=options.draw_seed,
    )
    return running.prepare(request, out=options.out, data_dir=options.data_dir, jobs=options.jobs, shard=options.shard)


def _of_axes(options: _Options) -> "PreparedRun | None":
    """Prepare a run for axes given as options, and save their matrix; None after `--print-matrix`."""
    from bench.cli import running
    from bench.matrix.read import of_document
    from bench.record.request import Request

    for plugin in options.plugins:
        registry.add_plugin(plugin)
    document = without_file.document(options.axes, options.defenses)
    text = tomli_w.dumps(document)
    if options.print_matrix:
        click.echo(text, nl=False)
        return None
    out = options.out or Path("runs") / without_file.name(document)
    request = Request(matrix=str(out / _MATRIX), plugins=options.plugins)
    matrix = of_document(document, "command line")
    prepared = running.prepare(
        request, matrix, out=out, data_dir=options.data_dir, jobs=options.jobs, shard=options.shard
    )
    if not options.dry_run:
        write_atomically(out / _MATRIX, text.encode())
    return prepared


def _execute(prepared: "PreparedRun", options: _Options) -> int:
    from bench.cli import running
    from bench.matrix.suites import ranking_line

    result = running.execute(
        prepared,
        device=options.device,
        quiet=options.as_json,
        tracking_uri=None if options.no_tracking else (options.tracking_uri or ""),
        include_pictures=options.include_pictures,
        overrides=overrides(),
        time_limit=options.time_limit,
        executor=options.executor,
        rows=options.rows,
        verbose=options.verbose,
    )
    if options.as_json:
        common.print_json(result)
    elif result["suite"] is not None:
        click.echo(ranking_line(result["suite"]))
    return 1 if result["crashed"] else 0


def overrides() -> list[str]:
    """Return those options on the current command line of `bench run` that change the matrix, such as `--scale`. With
    any of them, the run of a suite (a frozen matrix) is not ranked."""
    return _options(but=(*_FREE, *_OF_ATTACKS))


def _options(*, but: Collection[str]) -> list[str]:
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
