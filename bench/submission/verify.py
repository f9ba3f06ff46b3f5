"""A submission, verified: cells drawn after it was handed in, run here under seeds that nobody chose.

Another seed means other victims, and where weights are an initialisation other weights.  No path that the
file names is opened: weights files are found by content, trainings are run again, data come from here.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench import PROTOCOL
from bench.answer.run import Place
from bench.cell import AnyCell, AttackCell, CheckpointWeights, FileWeights, InitialWeights, TrainingCell
from bench.errors import BenchError, RecordError, UnknownName
from bench.matrix.document import PRESETS
from bench.matrix.expand import Planned
from bench.matrix.feasible import impossible
from bench.record import fingerprint as source
from bench.record import store as records
from bench.record.checkpoints import file_sha256
from bench.record.folder import opened
from bench.record.store import Record, cell_of
from bench.registry import entries as registry
from bench.sanitize import sanitize
from bench.scoring.intervals import simultaneous
from bench.submission.check import passed
from bench.submission.draw import Drawn, draw, groups
from bench.submission.verdicts import Verification, verdict
from bench.sweep.dispatch import Watch
from bench.sweep.plan import Resolver, schedule
from bench.sweep.processes import Processes
from bench.sweep.session import carry_out

_KINDS = ("*.safetensors", "*.npz", "*.pt", "*.pth")  # of weights files


@dataclass(slots=True, kw_only=True)
class _Trip:
    """What is gathered on the way; `notes` and `sources` in the order in which they came up."""

    resolver: Resolver
    weights: "_WeightsFiles"
    trainings: Mapping[str, Record]
    planned: dict[str, Planned] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    sources: dict[str, None] = field(default_factory=dict)


def verify(
    file: Path, *, cells: int = 12, seed: int | None = None, data_dir: Path | None = None,
    device: str = "cpu", jobs: int = 1, plugins: Sequence[str] = (), out: Path | None = None,
    weights: Path | None = None, told: Callable[[str], None] = lambda line: None,
) -> Verification:  # fmt: skip
    """Run `cells` of the submission's cells again under fresh seeds and compare; all is drawn from `seed`.

    `plugins` are the entries that the submission was made with, `weights` a folder in which its weights files
    are looked for; `out` keeps the new records (those there are not run again).  `told` hears what is going
    on, a line at a time.

    Raises `FailedCheck` where the file does not pass its check, `BenchError` for a plug-in that cannot be
    loaded or a folder that cannot be written.
    """
    if cells < 1:
        raise BenchError(f"cells: at least 1, got {cells}")
    checked = passed(file)
    for plugin in plugins:
        registry.add_plugin(plugin)
    seed = int.from_bytes(os.urandom(6)) if seed is None else seed
    among = groups(checked.records)
    chosen = draw(among, cells, seed)
    seeds = tuple(dict.fromkeys(fresh for drawn in chosen for fresh in drawn.seeds))
    told(f"seed {seed}, fresh seeds {', '.join(map(str, seeds))}: {len(chosen)} of {len(among)} groups")
    trip = _Trip(
        resolver=Resolver(data_dir), weights=_WeightsFiles(weights),
        trainings={record.id: record for record in checked.records if record.cell["kind"] == "training"},
    )  # fmt: skip
    prepared = [_prepared(drawn, trip) for drawn in chosen]
    with _folder(out) as run:
        todo = schedule(trip.planned.values(), run, trip.resolver)
        told(f"{len(todo.waiting)} cells to run, about {todo.seconds / jobs:.0f} s")
        watch = Watch(finished=lambda record: told(f"{record.id[:8]} {record.status}"))
        place = Place(run=run, data_dir=data_dir, device=device)
        carry_out(todo, place, partial(Processes, place, jobs=jobs, plugins=plugins), watch=watch)
        here = {id_: records.read(records.record_path(run, id_)) for id_ in trip.planned}
    _compare_trainings(trip, here)
    level = simultaneous(max(1, len(chosen)))
    verdicts = [
        verdict(drawn, [here[cell.id] for cell in asked], obstacle, level)
        for drawn, (asked, obstacle) in zip(chosen, prepared, strict=True)
    ]
    return Verification(
        file=file, sha256=checked.sha256, seed=seed, seeds=seeds, level=level, groups=len(among),
        verdicts=tuple(verdicts), sources=tuple(trip.sources), notes=tuple(trip.notes),
    )  # fmt: skip


def _prepared(drawn: Drawn, trip: _Trip) -> tuple[list[AttackCell], str]:
    """The cells of a group that are to be run, added to the plan; and why its verdict stays open, or ""."""
    try:
        cells = [_asked_again(drawn.asked, seed, trip) for seed in drawn.seeds]
        wanted: list[AnyCell] = [*_trainings(cells, trip), *cells]
        planned = [Planned(cell, _impossible(cell, trip.resolver)) for cell in wanted]
    except BenchError as error:
        return [], sanitize(error, 300)
    for item in planned:
        trip.planned[item.cell.id] = _merged(trip.planned.get(item.cell.id), item)
    return cells, _other_code(drawn.asked, cells[0], trip)


def _asked_again(record: Record, seed: int, trip: _Trip) -> AttackCell:
    """The record's cell under another seed; raises `BenchError` for what cannot be asked here."""
    cell = cell_of(record)
    assert isinstance(cell, AttackCell)
    protocol = record.source["bench"]["protocol"]
    if protocol != PROTOCOL:
        raise RecordError(
            f"it is of protocol {protocol}, this bench answers {PROTOCOL}; install that version"
        )
    if any(name == "path" or _may_be_path(value) for name, value in cell.dataset.params.items()):
        raise RecordError(
            f"its data ({cell.dataset.name}) are the submitter's own; who has them can verify it"
        )
    changed: dict[str, Any] = {"seed": seed}
    if isinstance(cell.weights, FileWeights):
        found = trip.weights.find(cell.weights.sha256)
        changed["weights"] = cell.weights.model_copy(update={"path": str(found)})
    if not isinstance(cell.weights, InitialWeights):
        trip.notes[f"weights of a {cell.weights.kind} are not drawn anew, only the victims"] = None
    return cell.model_copy(update=changed)


def _may_be_path(value: Any) -> bool:
    """Whether a data set's parameter could name a file."""
    return isinstance(value, str) and ("/" in value or "\\" in value or value.startswith(("~", ".")))


def _trainings(cells: Sequence[AttackCell], trip: _Trip) -> Iterator[TrainingCell]:
    """The trainings whose checkpoints the cells attack, to be run again: weights do not travel."""
    for cell in cells:
        if not isinstance(cell.weights, CheckpointWeights):
            continue
        made = trip.trainings.get(cell.weights.training)
        training = cell_of(made) if made is not None else None
        if not isinstance(training, TrainingCell):
            raise RecordError(f"the training {cell.weights.training[:8]} of its weights is not in the file")
        yield training.model_copy(update={"checkpoints": (cell.weights.round,)})


def _impossible(cell: AnyCell, resolver: Resolver) -> str | None:
    """Why the cell cannot run anywhere; raises `BenchError` where it cannot be asked here."""
    named = [("defenses", cell.defense), ("datasets", cell.dataset), ("models", cell.model)]
    named += [("attacks", cell.attack)] if isinstance(cell, AttackCell) else []
    for kind, entry in named:
        if entry.name not in registry.names(kind):
            raise UnknownName(
                f"{registry.SINGULAR[kind]} {entry.name!r} is not here; give its file by --plugin"
            )
    facts = resolver.data(cell.dataset.name, cell.dataset.params)
    if facts.sha256 != cell.dataset.sha256:
        raise RecordError(f"data set {cell.dataset.name} has other content here; get the submitter's version")
    return impossible(
        cell, data_kind=facts.kind, shape=facts.shape, classes=facts.classes, training=facts.training
    )


def _merged(there: Planned | None, item: Planned) -> Planned:
    """A training that several cells ask for keeps the rounds of all of them."""
    if there is None or not (isinstance(item.cell, TrainingCell) and isinstance(there.cell, TrainingCell)):
        return item
    kept = tuple(sorted({*there.cell.checkpoints, *item.cell.checkpoints}))
    return replace(item, cell=item.cell.model_copy(update={"checkpoints": kept}))


def _other_code(record: Record, cell: AttackCell, trip: _Trip) -> str:
    """What other code stands behind the cell here is told; where it is an entry's, the verdict stays open."""
    old, new = dict(record.source), source.cell_source(cell)
    old.pop("weights", None)  # of a checkpoint: `_compare_trainings`
    for line in source.changed(old, new):
        trip.sources[sanitize(line, 300)] = None
    for part in sorted({*old, *new} - {"bench"}):
        one, other = old.get(part), new.get(part)
        if not isinstance(one, dict) or one.get("sha256") != (other or {}).get("sha256"):
            return f"its {sanitize(part, 20)} is other code here than was submitted"
    return ""


def _compare_trainings(trip: _Trip, here: Mapping[str, Record]) -> None:
    for id_ in sorted({*trip.trainings} & {*here}):
        old = trip.trainings[id_].summary.get("checkpoints", {})
        new = here[id_].summary.get("checkpoints", {})
        same = bool(new) and all(old.get(round_) == sha256 for round_, sha256 in new.items())
        came = "the same weights" if same else "other weights (another machine, or other code)"
        trip.notes[f"training {id_[:8]} was run again, and came to {came}"] = None


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out is not None:
        with opened(out) as run:
            yield run
        return
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as run:
        yield run


class _WeightsFiles:
    """Weights files by content: those that ship with bench and a folder's, looked through once one is asked."""

    def __init__(self, folder: Path | None) -> None:
        self._folders = [PRESETS, *([folder] if folder is not None else [])]
        self._found: dict[str, Path] | None = None

    def find(self, sha256: str) -> Path:
        """Raises `BenchError` where no file has this content."""
        if self._found is None:
            paths = [path for top in self._folders for kind in _KINDS for path in sorted(top.rglob(kind))]
            self._found = {file_sha256(path): path for path in paths if path.is_file()}
        if sha256 not in self._found:
            raise BenchError(
                f"its weights file {sha256[:8]} is not here; name a folder that has it by --weights"
            )
        return self._found[sha256]
