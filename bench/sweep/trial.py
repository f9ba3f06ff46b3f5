"""How many times as long an attack takes behind a defense that was never timed: a few evaluations behind it, and behind
a cheap one.

How many evaluations an attack needs, the run itself tells.  What one takes is soon tried: a transform that sorts, draws
eight times or takes a Jacobian may cost more than the gradients.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.answer.context import RunContext
from bench.cell import AnyCell, AttackCell, Entry
from bench.errors import BenchError
from bench.matrix.expand import PlannedCell
from bench.points import STAGES, point
from bench.record.schema import Record
from bench.registry import entries as registry
from bench.sweep.observer import Observer
from bench.sweep.plan import Resolver, schedule
from bench.sweep.pool import WorkerPool
from bench.sweep.session import run_schedule

_EVALUATIONS, _READINGS = 30, 4  # of a cell that is tried
_CHEAP = "sign"  # acts on updates or on examples, and takes as long as most published ones
_Kind = tuple[str, str, str]  # defense, attack, knowledge


@dataclass(frozen=True, slots=True)
class Trial:
    """How many times as long as behind a cheap one each attack takes behind each defense; at least 1."""

    ratios: dict[_Kind, float]

    def ratio(self, cell: AnyCell) -> float:
        """1 of what was not tried, or crashed."""
        return self.ratios.get(_kind(cell), 1.0) if isinstance(cell, AttackCell) else 1.0


def tried(
    cells: Iterable[AnyCell],
    defenses: Mapping[str, str],
    resolver: Resolver,
    data_dir: Path | None,
    start_pool: Callable[[RunContext], WorkerPool],
) -> Trial:
    """Try each attack that knows one of these defenses on a few readings of its first condition, on the CPU, in a
    folder that is gone afterwards.  Of a black box nothing is tried: its simulations would take minutes.

    `defenses`: each defense as text → the stage that it acts at, "client" or "example".
    """
    pairs: dict[_Kind, tuple[AttackCell, AttackCell]] = {}
    for cell in sorted((cell for cell in cells if isinstance(cell, AttackCell)), key=_order):
        if str(cell.defense) in defenses and _can_be_short(cell):
            short, cheap = _short(cell), Entry(name=_CHEAP, params={"at": defenses[str(cell.defense)]})
            pairs.setdefault(_kind(cell), (short, short.model_copy(update={"defense": cheap})))
    every = {cell.id: cell for pair in pairs.values() for cell in pair}
    taken = _Taken()
    with TemporaryDirectory() as folder:
        run = Path(folder)
        (run / "records").mkdir()
        context = RunContext(run=run, data_dir=data_dir)
        planned = schedule([PlannedCell(cell, None) for cell in every.values()], run, resolver)
        try:
            run_schedule(planned, context, lambda: start_pool(context), taken)
        except BenchError:
            return Trial({})  # the run itself will say why
    return Trial({kind: ratio for kind, pair in pairs.items() if (ratio := taken.ratio(*pair)) is not None})


class _Taken(Observer):
    """The records of what was tried."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}

    def on_record(self, record: Record) -> None:
        self._records[record.id] = record

    def ratio(self, behind: AttackCell, cheap: AttackCell) -> float | None:
        """None where either crashed, or both attacked an equal reading, which is done once."""
        seconds, at_least = (self._records[cell.id].cost.attack_seconds for cell in (behind, cheap))
        return max(1.0, seconds / at_least) if seconds and at_least else None


def _kind(cell: AttackCell) -> _Kind:
    return str(cell.defense), cell.attack.name, cell.knowledge


def _can_be_short(cell: AttackCell) -> bool:
    """Whether it is a search, whose evaluations can be cut, or a gallery, on an untrained model."""
    iterative = getattr(registry.load("attacks", cell.attack.name), "iterative", True)
    return cell.knowledge == "adaptive" and cell.weights.kind == "init" and (iterative or cell.grants.gallery > 0)


def _order(cell: AttackCell) -> tuple[int, int]:
    """Few examples behind a reading first, as there a defense's part is largest; of points the one that sees most."""
    where = point(cell.point)
    setting = cell.federated
    behind = where.examples(batch=setting.batch, steps=setting.steps, senders=setting.per_round)
    return behind, -STAGES.index(where.after)


def _short(cell: AttackCell) -> AttackCell:
    evaluations, readings = min(cell.evaluations, _EVALUATIONS), min(cell.readings, _READINGS)
    return cell.model_copy(update={"evaluations": evaluations, "readings": readings, "after": ()})
