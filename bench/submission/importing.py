"""The import of a checked submission into a run folder; `bench leaderboard` then ranks all records together."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.errors import BenchError, RecordError
from bench.record.equality import differences
from bench.record.files import write_atomically
from bench.record.schema import Record
from bench.record.store import read, record_path
from bench.submission.archive import Archive, opened
from bench.submission.check import passed
from bench.submission.export import read_suite, suite_text
from bench.submission.manifest import Manifest, Suite, digest


@dataclass(slots=True, kw_only=True)
class Import:
    """Result of importing a submission into a run folder: ids of new, equal and differing records."""

    run: Path
    """The run folder into which the records were copied."""
    sha256: str
    """Hash of the submission file."""
    new: list[str] = field(default_factory=list)
    """Ids of records that the folder lacked."""
    same: list[str] = field(default_factory=list)
    """Ids of records that the folder already had."""
    aside: list[str] = field(default_factory=list)
    """Ids of records that differ from the folder's record of the same cell; the folder's record stays in use."""
    suites: list[str] = field(default_factory=list)
    """For each suite in the submission, a line of text about its rank."""

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "run": str(self.run)}


def import_(file: Path, run: Path) -> Import:
    """Check a submission file, and copy its records and arrays into the run folder `run`, which is created if
    necessary. Return the ids of new, equal and differing records.

    Arrays are written before records, each file atomically, so an interrupted import can be repeated. A record that
    differs from the folder's record goes to RUN/kept/; the manifest goes to RUN/submissions/<sha256>.json. Raises
    `FailedCheck`, or `BenchError` for an unwritable folder or a submission file changed since the check."""
    report = passed(file)
    manifest = report.manifest
    assert manifest is not None
    result = Import(run=run, sha256=report.sha256)
    suites = [
        _agreed(run, suite) for suite in manifest.suites
    ]  # reads first: a damaged file stops the import before any write
    try:
        with opened(file) as archive:
            for sha256 in report.arrays:
                path = run / "arrays" / f"{sha256}.npz"
                if not path.exists():
                    write_atomically(path, _unchanged(archive, f"arrays/{sha256}.npz", manifest))
            for record in report.records:
                content = _unchanged(archive, f"records/{record.id}.json", manifest)
                _import_record(run, record, content, result)
        for suite in suites:
            _write(run / f"suite-{suite.suite}.json", suite_text(suite.model_dump(mode="json")))
            words = "; ".join(suite.why_not) or "ranked, as the submitter says"
            result.suites.append(f"suite {suite.suite}, protocol {suite.protocol}: {words}")
        _write(run / "submissions" / f"{report.sha256}.json", manifest.text().encode())
    except OSError as error:
        raise BenchError(f"{run}: cannot be written ({error.strerror}); choose another folder") from None
    return result


def _import_record(run: Path, record: Record, content: bytes, result: Import) -> None:
    path = record_path(run, record.id)
    if not path.exists():
        write_atomically(path, content)
        result.new.append(record.id)
    elif _same(path, record):
        result.same.append(record.id)
    else:
        result.aside.append(record.id)
        others = sorted((run / "kept").glob(f"{record.id}.*.json"))
        if all(other.read_bytes() != content for other in others):
            write_atomically(run / "kept" / f"{record.id}.{len(others)}.json", content)


def _same(path: Path, record: Record) -> bool:
    try:
        return not differences(read(path), record)
    except RecordError:
        return False


def _unchanged(archive: Archive, name: str, manifest: Manifest) -> bytes:
    content = archive.read(name)
    if digest(content) != manifest.files[name]:
        raise RecordError(f"{name}: changed since it was checked; import the file again")
    return content


def _agreed(run: Path, new: Suite) -> Suite:
    """Return the folder's suite file after the import: ranked only if the old and the new records both were ranked."""
    path = run / f"suite-{new.suite}.json"
    if not path.exists():
        return new
    old = read_suite(path)
    reasons = dict.fromkeys((*old.why_not, *new.why_not))
    if old.protocol != new.protocol:
        reasons[f"records of protocols {old.protocol} and {new.protocol} are in one folder"] = None
    ranked = old.ranked and new.ranked and not reasons
    return old.model_copy(update={"ranked": ranked, "why_not": tuple(reasons)})


def _write(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        write_atomically(path, content)
