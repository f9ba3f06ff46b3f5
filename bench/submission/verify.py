"""Verification of a submission: random cells run again here, under seeds unknown to the submitter.

Another seed draws other victims and, for untrained weights, other weights.  File paths in the submission are never
opened: weights files are found by content hash, trainings run again, and data come from this machine."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from bench import PROTOCOL
from bench.answer.context import RunContext
from bench.cell import AnyCell, AttackCell, CheckpointWeights, FileWeights, InitialWeights, TrainingCell
from bench.errors import BenchError, RecordError, UnknownName
from bench.matrix.document import PRESETS
from bench.matrix.expand import PlannedCell
from bench.matrix.feasible import impossible
from bench.record import fingerprint, store
from bench.record.checkpoints import file_sha256
from bench.record.folder import locked
from bench.record.schema import Record
from bench.registry import entries as registry
from bench.sanitize import sanitize
from bench.scoring.intervals import simultaneous
from bench.submission import truth
from bench.submission.check import passed
from bench.submission.draw import Draw, draw, groups
from bench.submission.verdicts import Verification, verdict
from bench.sweep.observer import Observer
from bench.sweep.plan import Resolver, schedule
from bench.sweep.processes import ProcessPool
from bench.sweep.session import run_schedule

_SUFFIXES = ("*.safetensors", "*.npz", "*.pt", "*.pth")  # weights files


@dataclass(slots=True, kw_only=True)
class _Rerun:
    """State of a verification: the cells to run again (`cells`, by id), and the submitted records by cell id
    (`trainings`, `attacks`). The keys of `notes` and `changes` are lines of text for the report, in order of discovery.
    """

    resolver: Resolver
    weights: "_WeightsFiles"
    trainings: Mapping[str, Record]
    attacks: Mapping[str, Record]
    cells: dict[str, PlannedCell] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    changes: dict[str, None] = field(default_factory=dict)


def verify(
    file: Path,
    *,
    cells: int = 12,
    seed: int | None = None,
    data_dir: Path | None = None,
    device: str = "cpu",
    jobs: int = 1,
    plugins: Sequence[str] = (),
    out: Path | None = None,
    weights: Path | None = None,
    on_line: Callable[[str], None] = lambda line: None,
) -> Verification:
    """Run parts of the submission `file` again under fresh seeds. Return a comparison of the new success rates with the
    submitted rates.

    - `cells`: number of attack cells (experiments) to run.
    - `seed`: determines the chosen cells and fresh seeds; None is random.
    - `data_dir`: folder for data sets; None for the default folder.
    - `device`: torch device of the attacks.
    - `jobs`: number of worker processes.
    - `plugins`: files or modules that register the submission's attacks and defenses.
    - `weights`: a folder with the submission's weights files; None: only weights files of the bench.
    - `out`: run folder for the new records, None for a temporary folder; records already in `out` do not run again.
    - `on_line`: receives lines about the progress.

    Raises `FailedCheck` if the submission does not pass its check, and `BenchError` for an unloadable plug-in or an
    unwritable folder."""
    if cells < 1:
        raise BenchError(f"cells: at least 1, got {cells}")
    report = passed(file)
    for plugin in plugins:
        registry.add_plugin(plugin)
    against = tuple(sanitize(line, 300) for line in truth.findings(file, report.records, data_dir))
    seed = int.from_bytes(os.urandom(6)) if seed is None else seed
    among = groups(report.records)
    draws = draw(among, cells, seed)
    seeds = tuple(dict.fromkeys(fresh for one in draws for fresh in one.seeds))
    on_line(f"seed {seed}, fresh seeds {', '.join(map(str, seeds))}: {len(draws)} of {len(among)} groups")
    rerun = _Rerun(
        resolver=Resolver(data_dir),
        weights=_WeightsFiles(weights),
        trainings={record.cell.id: record for record in report.records if isinstance(record.cell, TrainingCell)},
        attacks={record.cell.id: record for record in report.records if isinstance(record.cell, AttackCell)},
    )
    prepared = [_prepared(one, rerun) for one in draws]
    place = nullcontext(str(out)) if out is not None else tempfile.TemporaryDirectory()
    with place as folder, locked(Path(folder)) as run:
        todo = schedule(rerun.cells.values(), run, rerun.resolver)
        on_line(f"{len(todo.waiting)} cells to run, about {todo.seconds / jobs:.0f} s")
        context = RunContext(run=run, data_dir=data_dir, device=device)
        pool = partial(ProcessPool, context, jobs=jobs, plugins=plugins)
        run_schedule(todo, context, pool, _Lines(on_line))
        here = {id_: store.read(store.record_path(run, id_)) for id_ in rerun.cells}
    _compare_trainings(rerun, here)
    level = simultaneous(max(1, len(draws)))
    verdicts = [
        verdict(one, [here[cell.id] for cell in ran], obstacle, level)
        for one, (ran, obstacle) in zip(draws, prepared, strict=True)
    ]
    return Verification(
        file=file,
        sha256=report.sha256,
        seed=seed,
        seeds=seeds,
        level=level,
        groups=len(among),
        verdicts=tuple(verdicts),
        changes=tuple(rerun.changes),
        notes=tuple(rerun.notes),
        findings=against,
    )


def _prepared(draw: Draw, rerun: _Rerun) -> tuple[list[AttackCell], str]:
    """Add a group's cells to `rerun`; return the attack cells, and the reason against a comparison ("": none)."""
    try:
        chains = [_with_seed(draw.record, seed, rerun) for seed in draw.seeds]
        cells = [chain[-1] for chain in chains]
        wanted: list[AnyCell] = [*_trainings(cells, rerun), *(cell for chain in chains for cell in chain)]
        planned = [PlannedCell(cell, _impossible(cell, rerun.resolver)) for cell in wanted]
    except BenchError as error:
        return [], sanitize(error, 300)
    for item in planned:
        rerun.cells[item.cell.id] = _merged(rerun.cells.get(item.cell.id), item)
    return cells, _other_code(draw.record, cells[0], rerun)


def _with_seed(record: Record, seed: int, rerun: _Rerun) -> list[AttackCell]:
    """Return the record's cell under another seed, last in its cascade. Raises `BenchError` if this machine cannot run
    it."""
    chain: list[AttackCell] = []
    for before in record.cell.after if isinstance(record.cell, AttackCell) else ():
        if before not in rerun.attacks:
            raise RecordError(f"the cell {before[:8]} before it in its cascade is not in the file")
        chain.append(_alone(rerun.attacks[before], seed, rerun, chain))
    return [*chain, _alone(record, seed, rerun, chain)]


def _alone(record: Record, seed: int, rerun: _Rerun, before: Sequence[AttackCell]) -> AttackCell:
    cell = record.cell
    assert isinstance(cell, AttackCell)
    if record.protocol != PROTOCOL:
        raise RecordError(f"it is of protocol {record.protocol}, this bench has {PROTOCOL}; install that version")
    if any(name == "path" or _may_be_path(value) for name, value in cell.dataset.params.items()):
        raise RecordError(f"its data ({cell.dataset.name}) are the submitter's own; who has them can verify it")
    changed: dict[str, Any] = {"seed": seed, "after": tuple(each.id for each in before)}
    if isinstance(cell.weights, FileWeights):
        path = rerun.weights.find(cell.weights.sha256)
        changed["weights"] = cell.weights.model_copy(update={"path": str(path)})
    if not isinstance(cell.weights, InitialWeights):
        rerun.notes[f"weights of a {cell.weights.kind} are not drawn anew, only the victims"] = None
    return cell.model_copy(update=changed)


def _may_be_path(value: Any) -> bool:
    return isinstance(value, str) and ("/" in value or "\\" in value or value.startswith(("~", ".")))


def _trainings(cells: Sequence[AttackCell], rerun: _Rerun) -> Iterator[TrainingCell]:
    """Yield the trainings that make the attacked weights; these run again, because submissions hold no weights."""
    for cell in cells:
        if not isinstance(cell.weights, CheckpointWeights):
            continue
        record = rerun.trainings.get(cell.weights.training)
        if record is None or not isinstance(record.cell, TrainingCell):
            raise RecordError(f"the training {cell.weights.training[:8]} of its weights is not in the file")
        yield record.cell.model_copy(update={"checkpoints": cell.weights.rounds})


def _impossible(cell: AnyCell, resolver: Resolver) -> str | None:
    """Return the reason why no machine can run the cell, or None; raises `BenchError` if only this machine cannot."""
    entries = [("defenses", cell.defense), ("datasets", cell.dataset), ("models", cell.model)]
    entries += [("attacks", cell.attack)] if isinstance(cell, AttackCell) else []
    for kind, entry in entries:
        if entry.name not in registry.names(kind):
            raise UnknownName(f"{registry.SINGULAR[kind]} {entry.name!r} is not here; give its file by --plugin")
    facts = resolver.data(cell.dataset.name, cell.dataset.params)
    if facts.sha256 != cell.dataset.sha256:
        raise RecordError(f"data set {cell.dataset.name} has other content here; get the submitter's version")
    return impossible(cell, facts)


def _merged(there: PlannedCell | None, item: PlannedCell) -> PlannedCell:
    if there is None or not (isinstance(item.cell, TrainingCell) and isinstance(there.cell, TrainingCell)):
        return item
    kept = tuple(sorted({*there.cell.checkpoints, *item.cell.checkpoints}))
    return replace(item, cell=item.cell.model_copy(update={"checkpoints": kept}))


def _other_code(record: Record, cell: AttackCell, rerun: _Rerun) -> str:
    """Add differences in code to `rerun.changes`. Return the reason if attack, data set, defense or model differ, or
    ""."""
    old, new = (
        replace(record.provenance, weights=None, left=None),
        fingerprint.of_cell(cell),
    )  # weights: `_compare_trainings`
    for line in fingerprint.changed(old, new):
        rerun.changes[sanitize(line, 300)] = None
    for part in ("attack", "dataset", "defense", "model"):
        submitted, here = getattr(old, part), getattr(new, part)
        shipped = submitted is not None and submitted.origin == here.origin == registry.DISTRIBUTION
        if not shipped and (submitted is None or submitted.sha256 != here.sha256):
            return f"its {part} is other code here than was submitted"
    return ""


def _compare_trainings(rerun: _Rerun, here: Mapping[str, Record]) -> None:
    for id_ in sorted({*rerun.trainings} & {*here}):
        old, new = (
            record.training.checkpoints if record.training else {} for record in (rerun.trainings[id_], here[id_])
        )
        same = bool(new) and all(old.get(round_) == sha256 for round_, sha256 in new.items())
        weights = "the same weights" if same else "other weights (another machine, or other code)"
        rerun.notes[f"training {id_[:8]} was run again, and came to {weights}"] = None


class _Lines(Observer):
    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line

    def on_record(self, record: Record) -> None:
        self._on_line(f"{record.id[:8]} {record.status}")


class _WeightsFiles:
    """Weights files by content hash, from bench's folder and the user's folder; the first search reads the folders."""

    def __init__(self, folder: Path | None) -> None:
        self._folders = [PRESETS, *([folder] if folder is not None else [])]

    @cached_property
    def _by_hash(self) -> dict[str, Path]:
        paths = (path for top in self._folders for kind in _SUFFIXES for path in sorted(top.rglob(kind)))
        return {file_sha256(path): path for path in paths if path.is_file()}

    def find(self, sha256: str) -> Path:
        """Return the path of the weights file with the content hash `sha256`; raises `BenchError` without such a
        file."""
        if sha256 not in self._by_hash:
            raise BenchError(f"its weights file {sha256[:8]} is not here; name a folder that has it by --weights")
        return self._by_hash[sha256]
