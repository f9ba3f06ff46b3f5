"""A cell of an export, run again: the choice of the cell, and a verdict on the two records."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from _make.exports import without_course
from bench.cell import AttackCell, CheckpointWeights, TrainingCell
from bench.errors import MALFORMED, BenchError
from bench.record import fingerprint
from bench.record.equality import unequal
from bench.record.schema import Environment, Record, TrainingResult
from bench.reference import store
from bench.scoring.intervals import wilson

EQUAL, ROUNDING, WITHIN, DIFFERS, OPEN = "equal", "equal to rounding", "within the interval", "differs", "not run"
VERDICTS = (EQUAL, ROUNDING, WITHIN, DIFFERS, OPEN)
ROUNDED = 1e-5  # of an accuracy: exports keep five digits
SMALL = 1e-3  # difference of a figure, relative or absolute, by another order of sums
FEW = 4  # names of differing fields in a line
FILE = "again.json"
_NO_LOSSES = "dp-accounting is not installed"
_HASHES = ("arrays", "checkpoints")  # SHA-256 of files: any bit changes the whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A cell's two records."""

    export: str
    cell: str
    """First eight digits of the id."""
    what: str
    """Data set, defense, and attack or `training`."""
    old: str
    """Main figure of the export."""
    new: str
    verdict: str
    """Of `VERDICTS`."""
    why: str
    """Differences of machine and code, and the most frequent names of differing fields with their counts."""
    commit: str
    """Commit of the second run."""
    rounds: int | None = None
    """Compared rounds of a training that was begun only; None for a whole cell."""

    @property
    def both(self) -> str:
        """The two figures, or the figure if they are equal."""
        return self.old if self.old == self.new else f"{self.old} → {self.new}"

    @property
    def text(self) -> str:
        why = f" ({self.why})" if self.why else ""
        return f"{self.export} {self.cell} {self.what}: {self.old} → {self.new}: {self.verdict}{why}"


def candidates(records: Iterable[Record], device: str) -> list[Record]:
    """The finished cells that need no file of another cell, cheapest first, those of `device` before others."""
    return sorted(
        (each for each in records if each.status == "done" and not each.cost.reused_from and _alone(each)),
        key=lambda each: (each.environment is None or each.environment.device != device, each.cost.cpu_seconds),
    )


def _alone(record: Record) -> bool:
    cell = record.cell
    return not isinstance(cell, AttackCell) or not (cell.after or isinstance(cell.weights, CheckpointWeights))


def compared(export: str, commit: str, old: Record, new: Record) -> Again:
    """Compare the record `old` of an export with the record `new` of a second run at `commit`, with numbers as exports
    keep them."""
    old, new = store.parsed(Path(export), store.lines([without_course(old), without_course(new)]))
    differ = _differences(old, new, 0.0)
    hashed = {name for name, *_ in differ if name.split(".")[1].partition("[")[0] in _HASHES}
    if not differ:
        verdict = EQUAL
    elif not [each for each in _differences(old, new, SMALL) if each[0] not in hashed]:
        verdict = ROUNDING
    else:
        verdict = WITHIN if _overlap(old, new) else DIFFERS
    counts = Counter(name.rpartition(".")[2] for name, *_ in differ if name not in hashed)
    more = ["other: " + ", ".join(f"{count} {name}" for name, count in counts.most_common(FEW))] if counts else []
    return Again(
        export=export,
        cell=old.id[:8],
        what=what(old),
        old=figure(old),
        new=figure(new),
        verdict=verdict,
        why="; ".join([*_machine(old.environment, new.environment), *_code(old, new), *more]),
        commit=commit,
    )


def begun(export: str, commit: str, old: Record, new: Record, curve: Sequence[tuple[int, float]]) -> Again:
    """Compare a training's first rounds: `curve`, (round, test accuracy) as far as the second run came, with the curve
    of `old` at the same rounds.  `new`: the unfinished record of the second run.  Raises `BenchError` without a common
    tested round."""
    assert isinstance(old.cell, TrainingCell) and isinstance(old.result, TrainingResult)
    count, here = old.cell.test_examples, dict(curve)
    both = [(at, before, here[at]) for at, before in old.result.curve if at and at in here]
    if not both:
        raise BenchError(f"{export}: no test within {len(curve)} rounds of {old.id[:8]}; give more --minutes")
    most, where = max((abs(before - after), at) for at, before, after in both)
    last, before, after = both[-1]
    near = _meet(wilson(before * count, count), wilson(after * count, count))  # as of a whole training
    farthest = [f"at most {100 * most:.2f} points, in round {where}"] if most >= ROUNDED else []
    return Again(
        export=export,
        cell=old.id[:8],
        what=what(old),
        old=f"{100 * before:.2f} % after {last} of {old.result.rounds} rounds",
        new=f"{100 * after:.2f} % after {last} of {old.result.rounds} rounds",
        verdict=EQUAL if most < ROUNDED else ROUNDING if most < SMALL else WITHIN if near else DIFFERS,
        why="; ".join([*farthest, *_machine(old.environment, new.environment), *_code(old, new)]),
        commit=commit,
        rounds=last,
    )


def failed(export: str, commit: str, old: Record, reason: str) -> Again:
    """A cell without a second record."""
    return Again(
        export=export,
        cell=old.id[:8],
        what=what(old),
        old=figure(old),
        new="–",
        verdict=OPEN,
        why=reason,
        commit=commit,
    )


def _differences(old: Record, new: Record, tolerance: float) -> list[tuple[str, object, object]]:
    """Field, old and new value; without fields that the older record had not yet, and without ε if one of the machines
    lacked a library."""
    lacked = any(_NO_LOSSES in str(each.result) for each in (old, new))
    pairs = (("status", old.status, new.status), ("result", old.result, new.result))
    return [
        (name, before, after)
        for where, one, other in pairs
        for name, before, after in unequal(where, one, other, tolerance)
        if before not in (None, (), {}) and name != "result.data" and not (lacked and name.startswith("result.privacy"))
    ]


def _overlap(old: Record, new: Record) -> bool:
    """Whether the 95 % intervals of the main figures overlap: of an accuracy or of a success rate."""
    return _meet(_interval(old), _interval(new))


def _meet(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return other[0] <= one[1] and one[0] <= other[1]


def _interval(record: Record) -> tuple[float, float]:
    if isinstance(record.cell, TrainingCell) and isinstance(result := record.result, TrainingResult):
        count = record.cell.test_examples
        return wilson(result.accuracy * count, count)
    share = record.attack.figures().asr if record.attack else None
    return (share.low, share.high) if share else (0.0, 0.0)


def _machine(old: Environment | None, new: Environment | None) -> list[str]:
    if old is None or new is None:
        return []
    return [
        f"{before} → {after}"
        for name in ("device_name", "torch")
        if (before := getattr(old, name)) != (after := getattr(new, name))
    ]


def _code(old: Record, new: Record) -> list[str]:
    names = [line.partition(":")[0] for line in fingerprint.changed(old.provenance, new.provenance)]
    return [f"later code of {', '.join(names)}"] if names else []


def what(record: Record) -> str:
    """Data set, defense, and attack or `training`."""
    cell = record.cell
    return " ".join((cell.dataset.name, cell.defense.name, getattr(getattr(cell, "attack", None), "name", "training")))


def figure(record: Record) -> str:
    """The main figure: an accuracy, or a success rate and a median PSNR."""
    if isinstance(record.result, TrainingResult):
        return f"{100 * record.result.accuracy:.2f} % in {record.result.rounds} rounds"
    if record.attack is None:
        return record.status
    summary = record.attack.figures()
    psnr = summary.medians.get("psnr_db")
    return f"ASR {summary.asr.value:.3f}" + (f", {psnr:.4f} dB" if psnr is not None else "")


def section(its: Sequence[Again], reasons: Mapping[str, str]) -> str:
    """A section for the page of all items; `reasons`: export → reason by hand for a difference."""
    counts = Counter(each.verdict for each in its)
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    others = [each for each in its if each.verdict not in (EQUAL, OPEN)]
    lines = [
        f"- `{each.export}`: {each.both}, {each.verdict}: {reasons.get(each.export, each.why)}." for each in others
    ]
    if first := [f"`{each.export}` ({each.old.partition(' after ')[2]})" for each in its if each.rounds is not None]:
        lines.append(f"- First rounds only: {', '.join(first)}.")
    if too_long := [f"`{each.export}`" for each in its if each.verdict == OPEN]:
        lines.append(f"- Not run: {', '.join(too_long)}.")
    return "\n".join([f"A cell of each export ran again (`python docs/again.py`): {said}.\n", *lines, ""])


def read(path: Path) -> list[Again]:
    """The committed comparisons, by export; raises `BenchError` for a damaged file."""
    try:
        return [Again(**each) for each in json.loads(path.read_text("utf-8"))] if path.is_file() else []
    except MALFORMED as error:
        raise BenchError(f"{path}: no comparisons ({error}); {store.AGAIN}") from None


def write(path: Path, its: Iterable[Again]) -> None:
    """Write the comparisons, one for each export and cell, over earlier ones of the same cells."""
    kept = {(each.export, each.cell): each for each in [*read(path), *its]}
    content = [asdict(kept[key]) for key in sorted(kept)]
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
