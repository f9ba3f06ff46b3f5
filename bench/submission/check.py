"""The check of a submission file without running a cell: every contradiction in the file becomes a finding."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.errors import MALFORMED, DataError, RecordError
from bench.leaderboard.board import board
from bench.leaderboard.cascades import torn
from bench.record import store
from bench.record.schema import Record
from bench.sanitize import first_line, sanitize
from bench.submission import arrays, figures
from bench.submission.archive import LIMITS, MANIFEST, Archive, ArchiveFault, Limits, opened
from bench.submission.manifest import Manifest, digest, parsed

MOST = 100  # listed findings
LONGEST = 4000  # characters in any text in a record


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of checking a submission file: valid records, and a line for each contradiction."""

    file: Path
    """The submission file."""
    sha256: str
    """Hash of the submission file."""
    manifest: Manifest | None = None
    """Content of manifest.json; None for an unreadable file."""
    records: tuple[Record, ...] = ()
    """Valid records."""
    arrays: tuple[str, ...] = ()
    """SHA-256 of each array file."""
    findings: tuple[str, ...] = ()
    """A line for each contradiction; empty if the check passed."""

    @property
    def ok(self) -> bool:
        """True if the check found no contradiction."""
        return not self.findings

    def json(self) -> dict[str, Any]:
        """Return the report as JSON types, with the ids of the valid records, for `--json`."""
        manifest = self.manifest and self.manifest.model_dump(mode="json", exclude={"files"})
        return {
            "file": str(self.file),
            "sha256": self.sha256,
            "ok": self.ok,
            "findings": list(self.findings),
            "manifest": manifest,
            "records": [record.id for record in self.records],
            "arrays": len(self.arrays),
        }


class FailedCheck(RecordError):
    """Error for a submission file with contradictions, which are in `report`."""

    def __init__(self, report: Report) -> None:
        more = f" (and {len(report.findings) - 1} more)" if len(report.findings) > 1 else ""
        super().__init__(f"{report.file}: does not pass its check: {report.findings[0]}{more}")
        self.report = report


@dataclass(slots=True)
class _Gathered:
    """Valid records and findings so far. `findings` are lines of text. `named` maps the hash of an array file to the
    records that name it."""

    records: list[Record] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    named: dict[str, list[Record]] = field(default_factory=dict)

    def add(self, where: str, findings: Iterable[str]) -> None:
        self.findings += [f"{where}: {finding}" for finding in findings]


def check(file: Path, limits: Limits = LIMITS) -> Report:
    """Check the submission `file` without new runs: form, hashes and records, and the figures in each record against
    each other. Return a report with a line for each fault. `limits` are the largest accepted sizes. No file is written.

    Raises `RecordError` for a missing or unreadable file."""
    try:
        with opened(file, limits) as archive:
            return _report(file, archive)
    except ArchiveFault as error:
        return Report(file=file, sha256=_sha256(file), findings=(str(error),))


def passed(file: Path) -> Report:
    """Check the submission `file` as `check` does, and return the report only if the check finds no contradiction;
    otherwise raise `FailedCheck`. Called before an import or new runs."""
    report = check(file)
    if not report.ok:
        raise FailedCheck(report)
    return report


def _report(file: Path, archive: Archive) -> Report:
    manifest = parsed(archive.read(MANIFEST))
    gathered = _Gathered(findings=list(_listing(manifest, archive)))
    for name in archive.names:
        if name.startswith("records/"):
            _record(name, _content(name, archive, manifest, gathered), manifest, gathered)
    hashes = tuple(Path(name).stem for name in archive.names if name.startswith("arrays/"))
    if not gathered.records and not gathered.findings:
        gathered.findings.append("no record in it")
    for sha256 in hashes:
        _arrays(sha256, _content(f"arrays/{sha256}.npz", archive, manifest, gathered), gathered)
    gathered.findings += _left_out(manifest, gathered, set(hashes))
    if not gathered.findings:
        gathered.findings += cascades(gathered.records)
        gathered.findings += _on_a_board(gathered.records)
    findings = gathered.findings[:MOST]
    if len(gathered.findings) > MOST:
        findings.append(f"… and {len(gathered.findings) - MOST} more")
    return Report(
        file=file,
        sha256=_sha256(file),
        manifest=manifest,
        records=tuple(gathered.records),
        arrays=hashes,
        findings=tuple(findings),
    )


def _listing(manifest: Manifest, archive: Archive) -> Iterator[str]:
    inside = {name for name in archive.names if name != MANIFEST}
    listed = {*manifest.files}
    yield from (f"{sanitize(name)}: in the manifest, not in the file" for name in sorted(listed - inside))
    yield from (f"{name}: in the file, not in the manifest" for name in sorted(inside - listed))


def _content(name: str, archive: Archive, manifest: Manifest, gathered: _Gathered) -> bytes:
    """Read a file in the submission; add a finding if its hash differs from the manifest's. Unreadable: b""."""
    try:
        content = archive.read(name)
    except ArchiveFault as error:
        gathered.findings.append(str(error))
        return b""
    listed = manifest.files.get(name)
    if listed not in (None, digest(content)):
        gathered.findings.append(f"{name}: not the content that the manifest has the hash of")
    return content


def _record(name: str, content: bytes, manifest: Manifest, gathered: _Gathered) -> None:
    try:
        record = _parsed(name, content)
        if f"records/{record.id}.json" != name:
            raise RecordError("calls itself by another id than its file")
        if record.protocol != manifest.protocol:
            raise RecordError(f"is not of protocol {manifest.protocol}, as the manifest says")
        wrong = figures.findings(record)
    except RecordError as error:
        gathered.add(name, [sanitize(str(error).removeprefix(f"{name}: "))])
        return
    except MALFORMED as error:  # numbers beyond every float
        gathered.add(name, [f"its fields are not a record's ({type(error).__name__}: {sanitize(error, 80)})"])
        return
    gathered.add(name, wrong)
    if not wrong:
        gathered.records.append(record)
        if record.arrays is not None:
            gathered.named.setdefault(record.arrays, []).append(record)


def _parsed(name: str, content: bytes) -> Record:
    """Parse a record; raises `RecordError` for an invalid record, or for bytes that the bench would write differently.
    The rule on bytes excludes repeated JSON keys, which could show a reader and a program different values."""
    try:
        text = content.decode()
        record = store.parse(text, name, remedy="get it from who wrote it", foreign=True)
    except UnicodeDecodeError as error:
        raise RecordError(first_line(error)) from None
    if text != store.to_json(record):
        raise RecordError("not as bench writes it: keys twice, in another order or with other spaces")
    if unprintable := _unprintable(json.loads(text)):
        raise RecordError(unprintable)
    return record


def _unprintable(value: Any) -> str | None:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and len(value) > LONGEST:
            return f"a text in it has {len(value)} letters, at most {LONGEST}: {sanitize(value, 40)}"
        if isinstance(value, str) and not value.isprintable():
            return f"a text in it has unprintable letters: {sanitize(value, 40)}"
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            waiting += value
    return None


def _arrays(sha256: str, content: bytes, gathered: _Gathered) -> None:
    name, named = f"arrays/{sha256}.npz", gathered.named.get(sha256, [])
    if not named:
        gathered.add(name, ["no record of the file names it"])
    if not content:
        return
    try:
        values = arrays.read(content)
        if store.arrays_hash(values) != sha256:
            raise DataError("its name is not the hash of its content")
    except DataError as error:
        gathered.add(name, [str(error)])
        return
    for record in named:
        if record.attack is not None:
            gathered.add(f"records/{record.id}.json", arrays.findings(record.attack, values))


def _left_out(manifest: Manifest, gathered: _Gathered, hashes: set[str]) -> Iterator[str]:
    """Yield a finding for each array file outside `hashes` without a reason in the manifest; and for private data."""
    for record in gathered.records:
        name, inside = f"records/{record.id}.json", record.arrays in hashes
        if record.arrays is not None and inside == (record.id in manifest.left_out):
            state = "there, and said to be left out" if inside else "not there, and not said to be left out"
            yield f"{name}: its arrays are {state}"
        if inside and record.private and not manifest.pictures:
            yield f"{name}: is of private data, and its examples are in the file"
    known = {record.id for record in gathered.records if record.arrays is not None}
    if not gathered.findings:
        for missing in sorted({*manifest.left_out} - known):
            yield f"records/{missing}.json: said to lack its arrays, and has none or is not there"


def cascades(records: Iterable[Record]) -> Iterator[str]:
    """Yield a line of text for each submitted attack in a cascade (attacks in a fixed order) that attacked the wrong
    readings (observed updates): the attack must read exactly the readings with an example that no earlier attack
    reconstructed."""
    yield from (f"records/{record.id}.json: {what}" for record, what in torn(records))


def _on_a_board(records: Iterable[Record]) -> Iterator[str]:
    try:
        board(records)
    except MALFORMED as error:
        yield f"its records make no board ({type(error).__name__}: {first_line(error)})"


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
