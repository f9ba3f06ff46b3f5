"""Run a calibration in processes on this machine, and return the trade-off of leakage and accuracy."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console

from bench.answer.context import RunContext
from bench.calibration import later, score
from bench.calibration import run as calibration
from bench.calibration.cost import estimated, expected, processes, seconds_of
from bench.calibration.measure import Federation, accuracy_of, at, federations, listed, typed
from bench.calibration.result import row
from bench.ceilings.by_epsilon import ceiling
from bench.cell import Entry, Federated
from bench.cli.measuring import Strengths
from bench.cli.words import duration
from bench.contracts.base import ContractBroken, ContractSkipped
from bench.contracts.strength import strength
from bench.datasets.loading import load
from bench.defenses.base import Defense, Setting
from bench.errors import BenchError
from bench.federated.privacy import at_point
from bench.federated.setting import setting_of
from bench.matrix.expand import PlannedCell
from bench.matrix.read import read
from bench.matrix.typed import Typed, entries, split
from bench.parameters import values
from bench.pictures.recorded import small
from bench.points import Stage, point
from bench.record import store as records
from bench.record.folder import locked
from bench.record.groups import grouped
from bench.record.schema import Record
from bench.record.tradeoff import Row, Tradeoff
from bench.record.tradeoff import federation as federation_key
from bench.reference.tradeoff import shipped_tradeoff
from bench.registry import entries as registry
from bench.sweep.estimates import Estimates, Remaining
from bench.sweep.plan import Resolver, RunSchedule, schedule
from bench.sweep.pool import WorkerPool
from bench.sweep.processes import ProcessPool
from bench.sweep.session import chosen_device, default_jobs, run_on


def run(
    defenses: Sequence[str],
    matrix_name: str,
    *,
    out: Path,
    data_dir: Path | None,
    device: str,
    jobs: int | None,
    plugins: tuple[str, ...],
    say: Callable[[str], None],
) -> Tradeoff:
    """Calibrate defenses: search the weakest strength that hides examples, in every federation (data, model and
    setting) of a matrix, and return the trade-off of leakage and accuracy.

    - `defenses`: defenses as typed after `--defense`.
    - `matrix_name`: matrix file or preset with the attacks and trainings.
    - `out`: run folder; finished parts in it are not repeated.
    - `data_dir`: folder of data sets; None for the default folder.
    - `device`: torch device.
    - `jobs`: number of processes; None takes one per core.
    - `plugins`: files with the user's entries.
    - `say`: function that gets lines of text on the progress.

    Raises `BenchError` for an unknown defense, matrix or plug-in."""
    for plugin in plugins:
        registry.add_plugin(plugin)
    matrix, families = read(matrix_name), [_family(each) for each in entries(defenses, "--defense")]
    resolver = Resolver(data_dir)
    context = RunContext(run=out, data_dir=data_dir, device=chosen_device(device))
    workers = jobs or default_jobs(context.device)
    rows: list[Row] = []
    spent: dict[str, Record] = {}
    undefended: dict[str, tuple[float, ...]] = {}
    commonest: dict[str, float] = {}
    with locked(out), closing(ProcessPool(context, jobs=workers, plugins=plugins)) as pool:
        execute = partial(_execute, resolver=resolver, context=context, pool=pool, say=say, spent=spent)
        for federation in federations(matrix):
            where = federation_key(federation.dataset, federation.model)
            say(f"{where}: {', '.join(entry.name for entry, _ in families)}")
            federated: Federated = federation.trainings[0]["federated"]
            setting = setting_of(federated, rounds=1, client_examples=federated.client_examples or federated.batch)
            planned = [
                (entry, defense, calibration.listening_points(federation, _stages(defense, setting)))
                for entry, defense in families
            ]
            shipped = shipped_tradeoff()
            measured = shipped.rows if shipped else ()
            for entry, defense, listening in planned:
                has_strength = type(defense).strength is not None
                time = expected([*listening], measured, federation, workers, has_strength=has_strength)
                if time is None:
                    seconds = Estimates(resolver.shape).seconds
                    time = estimated([*listening], matrix, federation, entry, resolver.data, seconds, workers)
                say(f"{typed(entry) if not has_strength else entry.name}: {time}")
            bound = _bound(federation, setting, resolver)
            listeners = calibration.calibrate(matrix, federation, planned, resolver.data, execute, bound, say)
            for listener in listeners:
                _say_levels(listener, "in the first round", say)
            later.hold_later(matrix, federation, listeners, resolver.data, execute, say)
            for listener in (each for each in listeners if each.trained):
                _say_levels(listener, "at trained weights, too", say)
            strengths = score.calibrated_strengths(listeners)
            if strengths:
                say(f"scores, on other victims: {listed(defense for _, _, defense in strengths)}")
            scores = score.scored(matrix, federation, strengths, resolver.data, execute)
            say("undefended trainings")
            plain = score.undefended(matrix, federation, resolver.data, execute)
            last = plain[0]
            commonest[where] = _commonest(federation, data_dir)
            undefended[where] = tuple(accuracy_of(record) for record in plain)
            classes = {entry.name: type(defense) for entry, defense in families}
            for group in grouped(listeners, lambda each: (str(each.defense), each.point)).values():
                took = seconds_of(group[0], listeners, spent.values())
                kind = classes[group[0].defense.name]
                rows.append(row(federation, group, scores, kind, bound, took, partial(small, out)))
    return Tradeoff(
        machine=None if last.environment is None else last.environment.device_name,
        undefended=undefended,
        settings={federation_key(each.dataset, each.model): each.setting for each in federations(matrix)},
        commonest=commonest,
        rows=tuple(rows),
    )


def _family(typed: Typed) -> tuple[Entry, Defense]:
    name, params = split(typed)
    defense: Defense = registry.instance("defenses", name, params)
    try:
        strength(defense)
    except ContractBroken as error:
        raise BenchError(f"{name}: {error}") from None
    except ContractSkipped:
        pass  # without a strength, the family is a point
    return Entry(name=name, params=values(defense)), defense


def _bound(federation: Federation, setting: Setting, resolver: Resolver) -> calibration.Bound:
    """Return the ceiling by ε for readings in the federation's first round."""
    row = federation.trainings[0]
    facts = resolver.data(row["dataset"].name, row["dataset"].params)
    sizes = [
        value.numel() for value in registry.of("models", row["model"]).build(facts.shape, facts.classes).parameters()
    ]

    def bound(defense: Entry, where: str, chance: float, readings: int) -> float | None:
        spent, _ = at_point(
            registry.of("defenses", defense),
            setting,
            point(where),
            tensors=len(sizes),
            coordinates=sum(sizes),
            round_=0,
            observations=readings,
        )
        return ceiling(spent, chance)

    return bound


def _commonest(federation: Federation, data_dir: Path | None) -> float:
    dataset = federation.trainings[0]["dataset"]
    data = load(registry.of("datasets", dataset), dataset.name, data_dir)
    return float(np.bincount(data.test.labels).max() / len(data.test))


def _stages(defense: Defense, setting: Setting) -> tuple[Stage, ...]:
    """Return the stages at which the defense acts with its parameters; of its class if they cannot be built here."""
    try:
        return tuple(stage for stage, transforms in defense.transforms(setting).items() if transforms)
    except (ValueError, TypeError, AttributeError):
        return tuple(type(defense).stages)


def _execute(
    cells: Sequence[PlannedCell],
    *,
    resolver: Resolver,
    context: RunContext,
    pool: WorkerPool,
    say: Callable[[str], None],
    spent: dict[str, Record],
) -> Mapping[str, Record]:
    distinct = {item.cell.id: item for item in cells}
    planned = schedule(distinct.values(), context.run, resolver)
    for record in spent.values():
        planned.estimates.learn(record.cell, record.cost)
    if planned.waiting:
        before = f"; {len(planned.done)} done before" if planned.done else ""
        about = f", about {duration(planned.seconds / len(pool.workers()))}" if _measured(planned) else ""
        say(f"  {len(planned.waiting)} cells on {processes(len(pool.workers()))}{about}{before}")
    settled = [records.read(records.record_path(context.run, cell.id)) for cell in planned.done]
    remaining = Remaining(planned.waiting, planned.estimates)

    def left() -> float | None:
        return remaining.left() if _measured(planned) else None

    console = Console(stderr=True, highlight=False)
    if len(settled) < len(distinct):
        with Strengths(console, [item.cell for item in distinct.values()], settled, left=left) as screen:
            run_on(pool, planned, context, remaining, screen)
    found = {each: records.read(records.record_path(context.run, each)) for each in distinct}
    crashed = [record for record in found.values() if record.status == "crashed"]
    if crashed:
        raise BenchError(
            f"{len(crashed)} cells crashed, the first {crashed[0].id[:8]}: {crashed[0].reason}; `bench show`"
        )
    spent |= found
    return found


def _measured(planned: RunSchedule) -> bool:
    """Return whether the time of all waiting cells follows from measured times: a formula's time could contradict the
    time said for the family."""
    return all(map(planned.estimates.measured, planned.waiting))


def _say_levels(listener: calibration.Listener, when: str, say: Callable[[str], None]) -> None:
    """Say the weakest strength for each level, such as `gaussian at type-1, in the first round: L1 at
    gaussian:variance=0.3`."""
    where = f"{listener.defense.name} at {listener.point}"
    if listener.absent is not None:
        say(f"{where}: {listener.absent}")
    levels = [
        f"no strength for {level}"
        if each.position is None
        else f"{level} at {typed(at(listener.defense, each.position))}"
        for level in calibration.LEVELS_OF[listener.question]
        if (each := listener.calibrated.get(level)) is not None
    ]
    if levels:
        say(f"{where}, {when}: {', '.join(levels)}")
