"""Planned cells → what is to be run: what is done already, what changed, in which groups and order."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from bench import records, registry, source
from bench.cell import AttackCell, CheckpointWeights, Entry, TrainingCell
from bench.datasets.base import Data
from bench.datasets.loading import load
from bench.errors import RecordError
from bench.matrix.expand import Planned
from bench.matrix.feasible import pictures
from bench.points import point
from bench.runner import answering
from bench.weights import checkpoint_path

AnyCell = AttackCell | TrainingCell


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What planning keeps of a data set."""

    sha256: str
    subset: str | None
    kind: str
    shape: tuple[int, ...]
    classes: int
    training: int  # examples of the training split


class Resolver:
    """Loads each data set once and keeps the facts, not the arrays (`bench.matrix.expand.Resolver`)."""

    def __init__(self, data_dir: Path | None) -> None:
        self._data_dir = data_dir
        self._facts: dict[str, Facts] = {}

    def data(self, name: str, params: Mapping[str, Any]) -> Facts:
        key = f"{name} {sorted(params.items())}"
        if key not in self._facts:
            found: Data = load(registry.instance("datasets", name, params), name, self._data_dir)
            self._facts[key] = Facts(
                sha256=found.sha256, subset=found.subset, kind=found.kind, shape=found.shape,
                classes=found.classes, training=len(found.training),
            )  # fmt: skip
        return self._facts[key]

    def shape(self, cell: AnyCell) -> tuple[int, ...]:
        """The shape of one example of the cell's data."""
        return self.data(cell.dataset.name, cell.dataset.params).shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """`done` have a record that answers the same question from the same source; `again` maps a cell's
    id to why its record does not count; `impossible` settle as n/a without running; `phases` are run
    one after another, each a list of groups, longest first; `seconds` estimates each cell's time on
    one core."""

    done: tuple[AnyCell, ...]
    again: Mapping[str, str]
    impossible: tuple[tuple[AnyCell, str], ...]
    phases: tuple[tuple[tuple[AnyCell, ...], ...], ...]
    seconds: Mapping[str, float]

    @property
    def waiting(self) -> tuple[AnyCell, ...]:
        return tuple(cell for phase in self.phases for group in phase for cell in group)


def schedule(planned: Iterable[Planned], run: Path, resolver: Resolver) -> Schedule:
    """What of `planned` is left to do in `run`: trainings first, then attacks by group."""
    done: list[AnyCell] = []
    again: dict[str, str] = {}
    impossible: list[tuple[AnyCell, str]] = []
    training: list[AnyCell] = []
    groups: dict[str, list[AnyCell]] = {}
    seconds: dict[str, float] = {}
    pending: set[str] = set()  # trainings that run again: what is attacked on their weights does, too
    for item in planned:
        cell = item.cell
        stale = _stale(cell, run, pending)
        if stale is None:
            done.append(cell)
            continue
        if stale:
            again[cell.id] = stale
        if item.impossible is not None:
            impossible.append((cell, item.impossible))
            continue
        seconds[cell.id] = estimate(cell, resolver.shape(cell))
        if isinstance(cell, TrainingCell):
            training.append(cell)
            pending.add(cell.id)
        else:
            groups.setdefault(_group(cell), []).append(cell)

    def cost(group: Iterable[AnyCell]) -> float:
        return -sum(seconds[cell.id] for cell in group)

    trainings = tuple((cell,) for cell in sorted(training, key=lambda cell: cost([cell])))
    attacks = tuple(tuple(group) for group in sorted(groups.values(), key=cost))
    return Schedule(
        done=tuple(done), again=again, impossible=tuple(impossible), phases=(trainings, attacks),
        seconds=seconds,
    )  # fmt: skip


def estimate(cell: AnyCell, shape: tuple[int, ...]) -> float:
    """Seconds on one core, to the order: from trials with the nets of DLG (0.5 ms an evaluation of one
    28×28 picture, growing with pixels and pictures) and with paper A's net (4 ms a client-step)."""
    federated = cell.federated
    if isinstance(cell, TrainingCell):
        return 1 + cell.rounds * federated.per_round * federated.steps * 0.004 * max(1, federated.batch / 5)
    attack = registry.load("attacks", cell.attack.name)
    if not getattr(attack, "iterative", True):
        return 0.2
    count = pictures(cell.point, federated)
    share = float(max(0.1, (count * prod(shape) / 784) ** 0.9))
    return 0.2 + cell.readings * cell.evaluations * 0.0005 * share


def _stale(cell: AnyCell, run: Path, pending: set[str]) -> str | None:
    """None: its record counts.  "": there is none.  Else why the one there does not count."""
    path = records.record_path(run, cell.id)
    if not path.exists():
        return ""
    try:
        found = records.read(path)
    except RecordError as error:
        return str(error)
    if found.status == "crashed":
        return f"crashed: {found.reason}"
    if missing := _missing(found, cell, run):
        return f"{missing} is missing"
    differs = source.changed(found.source, answering(cell, run))
    if isinstance(cell, AttackCell) and isinstance(cell.weights, CheckpointWeights):
        differs += ["its training runs again"] if cell.weights.training in pending else []
    return "; ".join(differs) if differs else None


def _missing(found: records.Record, cell: AnyCell, run: Path) -> str | None:
    """A file that the record names, or a round that the cell asks for, and that is not there."""
    if found.status != "done":
        return None
    named = [run / "arrays" / f"{found.arrays}.npz"] if found.arrays else []
    if isinstance(cell, TrainingCell):
        ran = found.summary.get("rounds", cell.rounds)  # a training that stopped has no later rounds
        rounds = {*map(int, found.summary["checkpoints"])}
        if not found.summary["diverged"]:
            rounds |= {round_ for round_ in cell.checkpoints if round_ <= ran}
        named += [checkpoint_path(run, cell.id, round_) for round_ in sorted(rounds)]
    return next((str(path.relative_to(run)) for path in named if not path.exists()), None)


def _group(cell: AttackCell) -> str:
    """Cells whose readings can be equal: they differ in defense, point and knowledge alone."""
    unit = point(cell.point).unit if cell.federated.batch > 1 else ""
    alike = {"defense": Entry(name="any"), "point": unit, "knowledge": "plain", "draw": 0}
    return cell.model_copy(update=alike).canonical()
