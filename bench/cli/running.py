"""A matrix from what was typed to records: the part that `bench run` and `bench gate` share."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.answer.run import Place
from bench.cli.watching import Engaged, watched
from bench.matrix.expand import Planned, expand
from bench.matrix.published import keep
from bench.matrix.read import Matrix, read
from bench.matrix.suites import ranking
from bench.record import request as requests
from bench.record.folder import opened
from bench.record.request import Request
from bench.record.store import write_atomically
from bench.registry import entries as registry
from bench.sweep.cluster import Cluster
from bench.sweep.plan import Resolver, Schedule, schedule, share
from bench.sweep.processes import Processes
from bench.sweep.session import chosen_device, default_jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a matrix asks, and what of it is left to do in `run`."""

    request: Request
    matrix: Matrix
    cells: tuple[Planned, ...]
    todo: Schedule
    run: Path
    data_dir: Path | None
    jobs: int | None


def plan(
    request: Request, *, out: Path | None, data_dir: Path | None, jobs: int | None,
    shard: tuple[int, int] | None = None,
) -> Plan:  # fmt: skip
    """Read the matrix and see what is done, of all of it or of one `shard`; raises `BenchError` for a mistake in the
    question."""
    for plugin in request.plugins:
        registry.add_plugin(plugin)
    matrix = read(request.matrix, more_defenses=request.defenses, scale=request.scale)
    resolver = Resolver(data_dir)
    cells = expand(matrix, resolve=resolver)
    name = _name(request)
    if shard is not None:
        number, count = shard
        cells, name = share(cells, number, count, resolver), f"{name}-shard-{number}-of-{count}"
    run = out or Path("runs") / name
    return Plan(
        request=request, matrix=matrix, cells=cells, todo=schedule(cells, run, resolver), run=run,
        data_dir=data_dir, jobs=jobs,
    )  # fmt: skip


def carry_out(
    planned: Plan, *, device: str, quiet: bool, tracking_uri: str | None, include_pictures: bool = False,
    overrides: list[str] | None = None, limit: float | None = None,
    executor: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Run what is left under the user's eyes; the result as JSON types, `suite` among it.

    `tracking_uri` None: no MLflow; "": the default store.  `overrides` are options that make a suite unranked;
    `limit` seconds are what a cell may take; `executor` is a cluster's address.
    Raises what `sweep.folder.opened` and `sweep.session.carry_out` raise.
    """
    here = "cpu" if executor else chosen_device(device)  # a cluster's workers choose for themselves
    place = Place(run=planned.run, data_dir=planned.data_dir, device=here, limit=limit)
    plugins = planned.request.plugins
    crew = (
        _cluster(place, plugins, executor, device) if executor else _processes(place, plugins, planned.jobs)
    )
    with opened(planned.run):
        return _carry_out(planned, place, crew, quiet, tracking_uri, include_pictures, overrides or [])


def _processes(place: Place, plugins: Sequence[str], jobs: int | None) -> Engaged:
    count = jobs or default_jobs(place.device)
    words = f"{count} worker{'s' if count > 1 else ''} ({place.device})"
    return Engaged(start=lambda told: Processes(place, jobs=count, plugins=plugins), words=words, jobs=count)


def _cluster(place: Place, plugins: Sequence[str], executor: str, device: str) -> Engaged:
    def start(told: Callable[[str], None]) -> Cluster:
        return Cluster(executor, place, device=device, plugins=plugins, told=told)

    return Engaged(start=start, words=f"the workers of {executor}", jobs=None)


def _carry_out(
    planned: Plan, place: Place, crew: Engaged, quiet: bool, tracking_uri: str | None, include_pictures: bool,
    overrides: list[str],
) -> dict[str, Any]:  # fmt: skip
    matrix, request = planned.matrix, planned.request
    keep(place.run, matrix.published)
    requests.keep(place.run, request)
    suite = None
    if matrix.suite is not None:
        suite = ranking(matrix.suite, matrix.path, overrides)
        path = place.run / f"suite-{matrix.suite}.json"
        write_atomically(path, f"{json.dumps(suite, indent=1)}\n".encode())
    title = matrix.title + (f" ({matrix.scale} scale)" if matrix.scale else "")
    result = watched(
        planned.todo, place, crew, ids=[item.cell.id for item in planned.cells], plugins=request.plugins,
        quiet=quiet, title=title, matrix=request.matrix, tracking_uri=tracking_uri,
        include_pictures=include_pictures, published=matrix.published,
    )  # fmt: skip
    return {**result, "suite": suite}


def _name(request: Request) -> str:
    name = Path(request.matrix).stem if request.matrix.endswith(".toml") else request.matrix.replace("/", "-")
    return name + (f"-{request.scale}" if request.scale else "")
