"""Run a requested matrix until its records are written; `bench run` and `bench gate` share this code."""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.answer.context import RunContext
from bench.cli import conclusion
from bench.cli.watching import Screen, say
from bench.errors import BenchError, Terminated
from bench.leaderboard.conditions import by_condition
from bench.leaderboard.costs import UNDEFENDED
from bench.leaderboard.knowledge import knowledge
from bench.matrix import published
from bench.matrix.expand import PlannedCell, expand
from bench.matrix.read import Matrix, read
from bench.matrix.suites import ATTACKS, draw_key, ranking, title
from bench.pictures import grid, recorded
from bench.record import origin, vocabularies
from bench.record import request as requests
from bench.record import store as records
from bench.record.files import write_atomically
from bench.record.folder import locked
from bench.record.metrics import PSNR_DB
from bench.record.request import Request
from bench.record.schema import Record
from bench.reference import attackers
from bench.reference import store as reference
from bench.reference.beside import joined as joined_with
from bench.reference.beside import version_of
from bench.reference.costs import expected, expected_of_attacks, span
from bench.registry import entries as registry
from bench.sweep.cluster import ClusterPool
from bench.sweep.estimates import Remaining
from bench.sweep.observer import Observer
from bench.sweep.plan import Resolver, RunSchedule, schedule, shard_of
from bench.sweep.pool import PoolSpec
from bench.sweep.processes import ProcessPool
from bench.sweep.progress import Reporter
from bench.sweep.session import chosen_device, default_jobs, run_schedule
from bench.tracking.following import Follower


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """A matrix ready to run, with the schedule of its remaining cells (experiments)."""

    request: Request
    """The user's request: matrix, plug-ins and options."""
    matrix: Matrix
    """The matrix: lists of values, whose combinations are cells."""
    cells: tuple[PlannedCell, ...]
    """All cells of the matrix, with their groups."""
    schedule: RunSchedule
    """Cells without a valid record, in the order of their runs."""
    span: tuple[float, float] | None
    """Least and most CPU seconds that a published defense took for cells like the remaining cells; None if no defense
    has run all of them."""
    folder: Path
    """Run folder, for records and arrays."""
    data_dir: Path | None
    """Folder for data sets; None for the default folder."""
    jobs: int | None
    """Number of worker processes; None chooses the number."""
    vocabularies: Mapping[str, Sequence[str]]
    """Vocabularies of data sets with texts: SHA-256 of the data → the token of each id."""


def prepare(
    request: Request,
    matrix: Matrix | None = None,
    *,
    out: Path | None,
    data_dir: Path | None,
    jobs: int | None,
    shard: tuple[int, int] | None = None,
) -> PreparedRun:
    """Expand the matrix of a user's `request` to cells (experiments), and schedule the cells without a valid record.

    - `matrix`: the matrix, if already read; None reads the matrix that `request` names.
    - `out`: run folder; None names the folder after the matrix.
    - `data_dir`: folder for data sets; None for the default folder.
    - `jobs`: number of worker processes; None chooses the number.
    - `shard`: (number, count), to run part `number` of `count` parts of the matrix; None runs the whole matrix.

    Raises `BenchError` for a mistake in the matrix."""
    for plugin in request.plugins:
        registry.add_plugin(plugin)
    if matrix is None:
        matrix = read(
            request.matrix,
            more_defenses=request.defenses,
            attacks=request.attacks,
            scale=request.scale,
            full=request.full,
        )
    if request.draw_seed is not None:
        matrix = _with_second_draw(matrix, request.draw_seed)
    resolver = Resolver(data_dir)
    cells = expand(matrix, resolver.data)
    version = title(matrix.suite) if matrix.suite else ""
    shipped = reference.read(version) if version in reference.versions() else []
    if request.shipped:
        there = {record.id for record in shipped if record.cell.defense.name == UNDEFENDED}
        cells = tuple(item for item in cells if item.cell.id not in there)
    name = _name(request)
    if shard is not None:
        number, count = shard
        cells, name = shard_of(cells, number, count, resolver), f"{name}-shard-{number}-of-{count}"
    folder = out or Path("runs") / name
    of_attacks = _of_attacks(matrix)
    known = expected_of_attacks(shipped) if of_attacks else expected(shipped, alone=request.shipped)
    planned = schedule(cells, folder, resolver, known)
    return PreparedRun(
        request=request,
        matrix=matrix,
        cells=cells,
        folder=folder,
        schedule=planned,
        span=None if of_attacks else span(shipped, planned.waiting, alone=True),
        data_dir=data_dir,
        jobs=jobs,
        vocabularies=resolver.vocabularies,
    )


def _with_second_draw(matrix: Matrix, seed: int) -> Matrix:
    """Return the matrix with every attack also on a second sample of victims, after the attacks on the matrix's own."""
    victims = draw_key(matrix.path, seed)
    return replace(matrix, attacks=(*matrix.attacks, *({**row, "victims": victims} for row in matrix.attacks)))


def _of_attacks(matrix: Matrix) -> bool:
    return matrix.suite == ATTACKS


def execute(
    run: PreparedRun,
    *,
    device: str,
    quiet: bool,
    tracking_uri: str | None,
    include_pictures: bool = False,
    overrides: Sequence[str] = (),
    time_limit: float | None = None,
    executor: str | None = None,
    rows: int | None = None,
    verbose: bool = False,
) -> dict[str, Any]:
    """Run the remaining cells (experiments) of `run` with a live display, and return the results as JSON values.

    - `device`: torch device, or `auto`.
    - `quiet`: True shows no progress and tables, and writes messages to standard error.
    - `tracking_uri`: address of the MLflow store; None disables MLflow, "" means the default store.
    - `include_pictures`: True uploads pictures of examples also for private data sets.
    - `overrides`: typed options that change the matrix; a suite's run is then not ranked.
    - `time_limit`: seconds allowed for a cell; None: no limit.
    - `executor`: address of a Dask cluster; None: processes on this machine.
    - `rows`: number of readings (observed updates) attacked at once; None: as many as the GPU holds.
    - `verbose`: True also prints the gain from knowing the defense, the caveats for ε and the legend.

    Raises `StorageError` for a failed write, and `BenchError` for a run folder in use by another run, or if no worker
    process is left."""
    began = time.monotonic()
    console = Console(stderr=quiet, highlight=False)
    pool_device = "cpu" if executor else chosen_device(device)  # a cluster's workers choose for themselves
    context = RunContext(run=run.folder, data_dir=run.data_dir, device=pool_device, time_limit=time_limit, rows=rows)
    pool = _pool(run, context, executor, device, partial(say, console))
    matrix, order = run.matrix, {item.cell.id: position for position, item in enumerate(run.cells)}
    title = matrix.title + (f" ({matrix.scale} scale)" if matrix.scale else "")
    with locked(run.folder), ExitStack() as stack:
        suite = _save_request(run, overrides)
        settled = [records.read(records.record_path(run.folder, cell.id)) for cell in run.schedule.done]
        remaining = Remaining(run.schedule.waiting, run.schedule.estimates)
        screen = Screen(console, settled, cells=len(order), left=remaining.left, quiet=quiet)
        if not quiet:
            conclusion.announce(console, title, run.schedule, pool, run.span)
        follower = None
        if tracking_uri is not None:
            follower = Follower(run.folder, tracking_uri or None, include_pictures=include_pictures)
            stack.enter_context(closing(follower)).start()
        reporter = Reporter(run.folder, title, cells=len(order), settled=len(settled), left=remaining.left)
        observers = (remaining, reporter, _Grids(run.folder), screen)
        try:
            with reporter, screen:
                run_schedule(run.schedule, context, pool.start, *observers)
        except (KeyboardInterrupt, Terminated) as end:
            on_disk = f"{len(screen.records)} of {len(order)} cells are on disk"
            console.print(f"\nstopped; {on_disk}.  The same command goes on from there.")
            sys.exit(143 if isinstance(end, Terminated) else 130)
        waiting = follower.finish() if follower else None
    finished = sorted(screen.records, key=lambda record: order[record.id])
    uploaded = follower.uploaded if follower else None
    ranked = None
    if suite and _of_attacks(matrix):
        ranked = attackers.ranked(finished, without="; ".join(suite["why_not"]))
    if not quiet:
        mlflow = conclusion.upload_line(run.folder, tracking_uri, uploaded, waiting)
        version = version_of(suite) if suite else None
        joined = joined_with(version, finished) if version else None
        ending = conclusion.Ending(
            records=finished,
            run=run.folder,
            request=run.request,
            published=matrix.published,
            mlflow=mlflow,
            verbose=verbose,
            joined=joined,
            ranked=ranked,
        )
        conclusion.conclude(console, ending)
    return {
        "run": str(run.folder.resolve()),
        **_result(finished),
        **({} if ranked is None else {"attacks": ranked.json()}),
        "suite": suite,
        "uploaded": uploaded and {"count": uploaded.count, "left": uploaded.left},
        "seconds": round(time.monotonic() - began, 1),
    }


class _Grids(Observer):
    """Draws each attack's true examples above their reconstructions; a failed drawing does not affect the record."""

    def __init__(self, run: Path) -> None:
        self._run = run

    def on_record(self, record: Record) -> None:
        with suppress(BenchError, OSError):
            if record.attack and (image := recorded.of_record(self._run, record)) is not None:
                grid.save(image, self._run / "pictures" / f"{record.id}.png")


def _pool(
    run: PreparedRun, context: RunContext, executor: str | None, device: str, notify: Callable[[str], None]
) -> PoolSpec:
    plugins = run.request.plugins
    if executor:
        start = partial(ClusterPool, executor, context, device=device, plugins=plugins, notify=notify)
        return PoolSpec(start, f"the workers of {executor}", None)
    jobs = run.jobs or default_jobs(context.device)
    description = f"{jobs} worker{'s' if jobs > 1 else ''} ({context.device})"
    return PoolSpec(partial(ProcessPool, context, jobs=jobs, plugins=plugins), description, jobs)


def _save_request(run: PreparedRun, overrides: Sequence[str]) -> dict[str, Any] | None:
    """Save the request in the run's folder; return whether and why the suite's run is ranked, or None without a suite.
    `overrides` are options that make a suite unranked."""
    vocabularies.save(run.folder, run.vocabularies)
    published.save(run.folder, run.matrix.published)
    requests.save(run.folder, run.request)
    origin.save(run.folder, _command(run.request, run.matrix.suite is not None))
    name = run.matrix.suite
    if name is None:
        return None
    suite = ranking(name, run.matrix.path, overrides)
    write_atomically(run.folder / f"suite-{name}.json", f"{json.dumps(suite, indent=1)}\n".encode())
    return suite


def _result(finished: Sequence[Record]) -> dict[str, Any]:
    table = [
        {
            "condition": condition.title,
            "defense": defense,
            "point": point,
            "asr": worst.asr,
            "interval": worst.interval,
            "best_attack": worst.best,
            "lower_bound": worst.lower_bound,
            "psnr_db_median": worst.best_median(PSNR_DB),
            "prior_psnr_db_median": worst.prior_psnr_db,
            "examples": len(worst.leaked),
            "absent": worst.absent,
            "crashed": worst.crashed,
        }
        for condition in by_condition(finished)
        for defense, row in condition.rows.items()
        for point, worst in row.items()
    ]
    statuses = [record.status for record in finished]
    return {
        "cells": len(finished),
        "done": statuses.count("done"),
        "not_applicable": statuses.count("n/a"),
        "crashed": statuses.count("crashed"),
        "table": table,
        "knowledge": [row.json() for row in knowledge(finished)],
    }


def _command(request: Request, suite: bool) -> str:
    """Return the command in words, without folders, for MLflow's column Source; `suite`: the matrix is a suite."""
    typed = [("--suite" if suite else "--matrix", Path(request.matrix).name)]
    typed += [("--defense", each) for each in request.defenses] + [("--attack", each) for each in request.attacks]
    return " ".join(["bench run", *(f"{option} {text}" for option, text in typed)])


def _name(request: Request) -> str:
    matrix = request.matrix
    name = Path(matrix).stem if matrix.endswith(".toml") else matrix.replace("/", "-")
    return name + (f"-{request.scale}" if request.scale else "")
