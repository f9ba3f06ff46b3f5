"""The schedule of a run: the remaining cells, in groups with common data, weights or readings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.answer.provenance import provenance
from bench.cell import AnyCell, AttackCell, Entry, TrainingCell
from bench.datasets.base import Data
from bench.datasets.loading import load
from bench.errors import RecordError
from bench.matrix.expand import PlannedCell
from bench.matrix.feasible import DatasetFacts
from bench.points import point
from bench.record import fingerprint
from bench.record import store as records
from bench.record.checkpoints import checkpoint_path, training_id
from bench.record.groups import grouped
from bench.record.schema import Record
from bench.registry import entries as registry
from bench.sweep.estimates import Estimates
from bench.sweep.scheduler import CellGroup


class Resolver:
    """Loader of data sets for planning. Plans need only a data set's facts (shape, classes, hash, …), so each data set
    is loaded once, and its examples are dropped."""

    def __init__(self, data_dir: Path | None) -> None:
        self._data_dir = data_dir
        self._facts: dict[str, DatasetFacts] = {}

    def data(self, name: str, params: Mapping[str, Any]) -> DatasetFacts:
        """Return the facts of a data set (hash, shape, classes, …); `name` is its registered name, and `params` are its
        parameters."""
        key = f"{name} {sorted(params.items())}"
        if key not in self._facts:
            data: Data = load(registry.instance("datasets", name, params), name, self._data_dir)
            self._facts[key] = DatasetFacts(
                sha256=data.sha256,
                subset=data.subset,
                kind=data.kind,
                shape=data.shape,
                classes=data.classes,
                training=len(data.training),
                tokens=data.tokens,
            )
        return self._facts[key]

    @property
    def vocabularies(self) -> dict[str, tuple[str, ...]]:
        """Vocabularies of the loaded data sets with texts: SHA-256 of the data → the token of each id."""
        return {facts.sha256: facts.tokens for facts in self._facts.values() if facts.tokens}

    def shape(self, cell: AnyCell) -> tuple[int, ...]:
        """Return the shape of an example in the data set of `cell` (the experiment)."""
        return self.data(cell.dataset.name, cell.dataset.params).shape


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSchedule:
    """Plan of a run: the cells (experiments) of a matrix file with a record, the impossible cells, and the groups of
    cells to run, with time estimates."""

    done: tuple[AnyCell, ...]
    """Cells with a record from equal code and inputs."""
    again: Mapping[str, str]
    """Cell id → reason to run a cell again, for example changed code."""
    impossible: tuple[tuple[AnyCell, str], ...]
    """Cells with the reason why they cannot run; recorded as n/a."""
    groups: tuple[CellGroup, ...]
    """Remaining cells in groups, trainings first."""
    estimates: Estimates
    """Estimates of a cell's run time, from finished cells in the run folder."""

    @property
    def waiting(self) -> tuple[AnyCell, ...]:
        """The remaining cells of all groups, in order."""
        return tuple(cell for group in self.groups for cell in group.cells)

    @property
    def seconds(self) -> float:
        """Estimated remaining seconds on a single core."""
        return sum(map(self.estimates.seconds, self.waiting))


def schedule(
    planned: Iterable[PlannedCell],
    run: Path,
    resolver: Resolver,
    known: Callable[[AnyCell], float | None] = lambda cell: None,
) -> RunSchedule:
    """Decide which cells (experiments) of a matrix a run must still compute, by the records in the run folder `run`:
    cells are done, impossible, or to run. Cells to run are grouped by common work: a training, or attacks on equal
    readings (observed updates).

    - `planned`: the cells of the matrix.
    - `resolver`: gives data set shapes for time estimates.
    - `known`: function that returns a cell's published run time in seconds, or None."""
    done: list[AnyCell] = []
    again: dict[str, str] = {}
    impossible: list[tuple[AnyCell, str]] = []
    trainings: list[AnyCell] = []
    attacks: dict[str, list[AttackCell]] = {}
    estimates = Estimates(resolver.shape, known)
    planned = tuple(planned)
    keys = _reading_keys(planned)
    pending: set[str] = set()  # cells which run again; attacks on their weights or after them follow
    for item in planned:
        cell = item.cell
        record, stale = _state(cell, run, pending)
        if record is not None and record.status == "done":
            estimates.learn(cell, record.cost)
        if stale is None:
            done.append(cell)
            continue
        if stale:
            again[cell.id] = stale
        if item.impossible is not None:
            impossible.append((cell, item.impossible))
        elif isinstance(cell, TrainingCell):
            trainings.append(cell)
            pending.add(cell.id)
        else:
            pending.add(cell.id)
            attacks.setdefault(keys[cell.id], []).append(cell)
    groups = [CellGroup(cells=(cell,)) for cell in trainings]
    groups += [CellGroup(cells=tuple(cells), after=training_id(cells[0])) for cells in attacks.values()]
    return RunSchedule(
        done=tuple(done), again=again, impossible=tuple(impossible), groups=tuple(groups), estimates=estimates
    )


def shard_of(planned: Sequence[PlannedCell], number: int, count: int, resolver: Resolver) -> tuple[PlannedCell, ...]:
    """Divide a matrix among several machines: return the cells (experiments) in shard `number` of `count` (from 1).
    Shards have about equal run times, and depend only on the matrix, so all machines agree. `planned` are the cells of
    the matrix, and `resolver` gives data set shapes for time estimates.

    Attacks on a training's weights stay in the same shard, and so do attacks on equal readings (observed updates),
    unless these take longer than half a shard; they are then divided by defense."""
    fresh = Estimates(resolver.shape)

    keys = _reading_keys(planned)

    def _part(item: PlannedCell) -> str:
        cell = item.cell
        return cell.id if isinstance(cell, TrainingCell) else training_id(cell) or keys[cell.id]

    def cost(items: Iterable[PlannedCell]) -> float:
        return sum(fresh.seconds(item.cell) for item in items if item.impossible is None)

    parts = grouped(planned, _part)
    most = cost(planned) / count / 2
    for part in [part for part, items in parts.items() if cost(items) > most]:
        if all(isinstance(item.cell, AttackCell) and training_id(item.cell) is None for item in parts[part]):
            parts |= grouped(parts.pop(part), lambda item: f"{_part(item)} {item.cell.defense.model_dump_json()}")
    costs = {part: cost(items) for part, items in parts.items()}
    loads = [0.0] * count
    mine: set[str] = set()
    for part in sorted(parts, key=lambda part: (-costs[part], part)):
        lightest = loads.index(min(loads))
        loads[lightest] += costs[part]
        if lightest == number - 1:
            mine |= {item.cell.id for item in parts[part]}
    return tuple(item for item in planned if item.cell.id in mine)


def _state(cell: AnyCell, run: Path, pending: set[str]) -> tuple[Record | None, str | None]:
    """Return a cell's record, and the reason to run the cell again: None for a valid record, "" without a record.
    `pending` are the ids of trainings that will run."""
    path = records.record_path(run, cell.id)
    if not path.exists():
        return None, ""
    try:
        record = records.read(path)
    except RecordError as error:
        return None, str(error)
    if record.status == "crashed":
        return record, f"crashed: {record.reason}"
    if missing := _missing(record, cell, run):
        return record, f"{missing} is missing"
    differences = fingerprint.changed(record.provenance, provenance(cell, run))
    if training_id(cell) in pending:
        differences.append("its training runs again")
    if isinstance(cell, AttackCell) and not pending.isdisjoint(cell.after):
        differences.append("a cell before it in its cascade runs again")
    return record, "; ".join(differences) or None


def _missing(record: Record, cell: AnyCell, run: Path) -> str | None:
    """Return the first missing file of a record (arrays, or a checkpoint named by the cell), or None."""
    files = [run / "arrays" / f"{record.arrays}.npz"] if record.arrays else []
    if (training := record.training) is not None and isinstance(cell, TrainingCell):
        rounds = {*training.checkpoints}
        if not training.diverged:  # a stopped training has no later rounds
            rounds |= {round_ for round_ in cell.checkpoints if round_ <= training.rounds}
        files += [checkpoint_path(run, cell.id, round_) for round_ in sorted(rounds)]
    return next((str(path.relative_to(run)) for path in files if not path.exists()), None)


def _reading_keys(planned: Iterable[PlannedCell]) -> dict[str, str]:
    """Return attack cell's id → key of its readings; a cascade has the key of its first cell."""
    keys: dict[str, str] = {}
    for cell in (item.cell for item in planned):
        if isinstance(cell, AttackCell):
            keys[cell.id] = keys.get(cell.after[0] if cell.after else "") or _reading_key(cell)
    return keys


def _reading_key(cell: AttackCell) -> str:
    """Return a text that is equal for cells with possibly equal readings; defense, draw and knowledge do not count. For
    batches above 1 the text contains the point's scope: example, local step, client's update, or mean of updates."""
    scope = point(cell.point).scope if cell.federated.batch > 1 else ""
    equal = {"defense": Entry(name="any"), "point": str(scope), "knowledge": "plain", "draw": 0}
    return cell.model_copy(update=equal).canonical()
