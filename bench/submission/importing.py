"""A checked submission → records of a run folder, which `bench leaderboard` then ranks with those there."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.errors import BenchError, RecordError
from bench.record import store as _records
from bench.record.files import write_atomically
from bench.record.store import Record
from bench.submission.archive import Archive, opened
from bench.submission.check import Checked, passed
from bench.submission.export import suite, suite_text
from bench.submission.manifest import Manifest, Suite

_ANSWER = (
    "cell",
    "status",
    "summary",
    "victims",
    "arrays",
)  # what makes two records the same (docs/RECORDS.md)


@dataclass(slots=True, kw_only=True)
class Imported:
    """What came of an import, in ids: `new` records, `same` answers there before, and those `aside` that
    answer a question otherwise than the run's own record, which stays; `suites` one line for each."""

    run: Path
    sha256: str
    new: list[str] = field(default_factory=list)
    same: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    suites: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        return {
            "run": str(self.run), "sha256": self.sha256, "new": self.new, "same": self.same,
            "aside": self.aside, "suites": self.suites,
        }  # fmt: skip


def import_(file: Path, run: Path) -> Imported:
    """Check `file` and bring its records, with the arrays they name, into `run`, which is made if need be.

    Each file is written whole, arrays before the records that name them, so that an import that is cut off
    can be done again.  A record there is never replaced: one that answers otherwise goes to RUN/kept/.
    RUN/submissions/<sha256>.json says where the records came from.  Raises `FailedCheck`, or `BenchError`
    where the folder cannot be written or the file changed meanwhile.
    """
    checked = passed(file)
    manifest = checked.manifest
    assert manifest is not None
    result = Imported(run=run, sha256=checked.sha256)
    said = {one.suite: _agreed(run, one) for one in manifest.suites}  # reads: a damaged file stops it here
    try:
        with opened(file) as archive:
            for sha256 in checked.arrays:
                path = run / "arrays" / f"{sha256}.npz"
                if not path.exists():
                    write_atomically(path, _unchanged(archive, f"arrays/{sha256}.npz", manifest))
            for record in checked.records:
                content = _unchanged(archive, f"records/{record.id}.json", manifest)
                _settle(run, record, content, result)
        for name, one in said.items():
            _write(run / f"suite-{name}.json", suite_text(one.model_dump(mode="json")))
            told = "; ".join(one.why_not) or "ranked, as the submitter says"
            result.suites.append(f"suite {name}, protocol {one.protocol}: {told}")
        _write(run / "submissions" / f"{checked.sha256}.json", _whence(checked))
    except OSError as error:
        raise BenchError(f"{run}: cannot be written ({error.strerror}); choose another folder") from None
    return result


def _settle(run: Path, record: Record, content: bytes, result: Imported) -> None:
    path = _records.record_path(run, record.id)
    if not path.exists():
        write_atomically(path, content)
        result.new.append(record.id)
    elif _answers(path) == [getattr(record, name) for name in _ANSWER]:
        result.same.append(record.id)
    else:
        result.aside.append(record.id)
        others = sorted((run / "kept").glob(f"{record.id}.*.json"))
        if all(other.read_bytes() != content for other in others):
            write_atomically(run / "kept" / f"{record.id}.{len(others)}.json", content)


def _answers(path: Path) -> list[Any] | None:
    try:
        there = _records.read(path)
    except RecordError:
        return None
    return [getattr(there, name) for name in _ANSWER]


def _unchanged(archive: Archive, name: str, manifest: Manifest) -> bytes:
    """An entry that is still what was checked."""
    content = archive.read(name)
    if hashlib.sha256(content).hexdigest() != manifest.files[name].sha256:
        raise RecordError(f"{name}: changed since it was checked; import the file again")
    return content


def _agreed(run: Path, brought: Suite) -> Suite:
    """What the folder may say of a suite once these records are in it: ranked only if both were."""
    path = run / f"suite-{brought.suite}.json"
    if not path.exists():
        return brought
    there = suite(path)
    why = [*there.why_not, *brought.why_not]
    if there.protocol != brought.protocol:
        why.append(f"records of protocols {there.protocol} and {brought.protocol} are in one folder")
    why = list(dict.fromkeys(why))
    return there.model_copy(
        update={"ranked": there.ranked and brought.ranked and not why, "why_not": tuple(why)}
    )


def _whence(checked: Checked) -> bytes:
    assert checked.manifest is not None
    return checked.manifest.text().encode()


def _write(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        write_atomically(path, content)
