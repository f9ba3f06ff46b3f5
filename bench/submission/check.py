"""A submission from a stranger → its records, and every finding that speaks against it."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.errors import MALFORMED, DataError, RecordError
from bench.leaderboard.board import board
from bench.record import store as _records
from bench.record.store import SCHEMA, Record, cell_of, is_private
from bench.sanitize import first_line, sanitize
from bench.submission import arrays as _arrays
from bench.submission import figures
from bench.submission.archive import LIMITS, MANIFEST, Archive, ArchiveFault, Limits, opened
from bench.submission.manifest import Manifest, parsed

MOST = 100  # findings that are listed
LONGEST = 4000  # characters of any text in a record


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check found: `ok` without `findings`, one line each; `records` are those that are well formed,
    `arrays` the content hashes of the arrays in the file, `sha256` the whole file's."""

    file: Path
    sha256: str
    manifest: Manifest | None = None
    records: tuple[Record, ...] = ()
    arrays: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.findings

    def json(self) -> dict[str, Any]:
        """The report as JSON types, the records by id alone."""
        about = None
        if self.manifest is not None:
            about = self.manifest.model_dump(mode="json", exclude={"files"})
        return {
            "file": str(self.file), "sha256": self.sha256, "ok": self.ok, "findings": list(self.findings),
            "manifest": about, "records": [record.id for record in self.records], "arrays": len(self.arrays),
        }  # fmt: skip


class FailedCheck(RecordError):
    """A submission that does not pass its check; `checked` says why."""

    def __init__(self, checked: Checked) -> None:
        more = f" (and {len(checked.findings) - 1} more)" if len(checked.findings) > 1 else ""
        super().__init__(f"{checked.file}: does not pass its check: {checked.findings[0]}{more}")
        self.checked = checked


@dataclass(slots=True)
class _Found:
    """What is gathered: the records that can be read, findings, and which records name which arrays."""

    records: list[Record] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    named: dict[str, list[Record]] = field(default_factory=dict)

    def add(self, where: str, findings: Iterable[str]) -> None:
        self.findings += [f"{where}: {finding}" for finding in findings]


def check(file: Path, limits: Limits = LIMITS) -> Checked:
    """Check form, hashes, records, and figures against one another; nothing is run and nothing written.

    Raises `RecordError` where the file is not there or cannot be read; all else is a finding.
    """
    try:
        with opened(file, limits) as archive:
            return _checked(file, archive)
    except ArchiveFault as error:
        return Checked(file=file, sha256=_sha256(file), findings=(str(error),))


def passed(file: Path) -> Checked:
    """`check`, for who goes on with the file; raises `FailedCheck` where it has findings."""
    found = check(file)
    if not found.ok:
        raise FailedCheck(found)
    return found


def _checked(file: Path, archive: Archive) -> Checked:
    manifest = parsed(archive.read(MANIFEST))
    found = _Found()
    if manifest.record_schema != SCHEMA:
        found.findings.append(f"records of schema {manifest.record_schema}, this bench reads {SCHEMA}")
    found.findings += _listing(manifest, archive)
    for name in archive.names:
        if name.startswith("records/"):
            _record(name, _content(name, archive, manifest, found), manifest, found)
    held = tuple(Path(name).stem for name in archive.names if name.startswith("arrays/"))
    if not found.records and not found.findings:
        found.findings.append("no record in it")
    for sha256 in held:
        name = f"arrays/{sha256}.npz"
        _array(sha256, name, _content(name, archive, manifest, found), found)
    found.findings += _left_out(manifest, found, set(held))
    if not found.findings:
        found.findings += _on_a_board(found.records)
    listed = found.findings[:MOST]
    if len(found.findings) > MOST:
        listed.append(f"… and {len(found.findings) - MOST} more")
    return Checked(
        file=file, sha256=_sha256(file), manifest=manifest, records=tuple(found.records), arrays=held,
        findings=tuple(listed),
    )  # fmt: skip


def _listing(manifest: Manifest, archive: Archive) -> Iterator[str]:
    inside = {name for name in archive.names if name != MANIFEST}
    yield from (
        f"{sanitize(name)}: in the manifest, not in the file" for name in sorted({*manifest.files} - inside)
    )
    yield from (f"{name}: in the file, not in the manifest" for name in sorted(inside - {*manifest.files}))


def _content(name: str, archive: Archive, manifest: Manifest, found: _Found) -> bytes:
    """An entry's bytes, held against the manifest; empty where they cannot be read."""
    try:
        content = archive.read(name)
    except ArchiveFault as error:
        found.findings.append(str(error))
        return b""
    said = manifest.files.get(name)
    if said is not None and (said.sha256, said.bytes) != (hashlib.sha256(content).hexdigest(), len(content)):
        found.findings.append(f"{name}: not the content that the manifest has the hash of")
    return content


def _record(name: str, content: bytes, manifest: Manifest, found: _Found) -> None:
    """Read one record by the harness's own rules; what is well formed goes to `found.records`."""
    try:
        record = _parsed(content)
        if f"records/{record.id}.json" != name:
            raise RecordError("calls itself by another id than its file")
        cell = cell_of(record)
        if unprintable := _unprintable(record):
            raise RecordError(unprintable)
        if record.source.get("bench", {}).get("protocol") != manifest.protocol:
            raise RecordError(f"is not of protocol {manifest.protocol}, as the manifest says")
        wrong = figures.findings(record, cell)
    except RecordError as error:
        found.add(name, [str(error)])
        return
    except MALFORMED as error:
        found.add(name, [f"its fields are not a record's ({type(error).__name__}: {sanitize(error, 80)})"])
        return
    found.add(name, wrong)
    if wrong:
        return
    found.records.append(record)
    if record.arrays is not None:
        found.named.setdefault(record.arrays, []).append(record)


def _parsed(content: bytes) -> Record:
    """`bench.record.store.read` of these bytes, which must be the ones that bench writes of that record: else a
    key that is in them twice would show a reader one value and a program another."""
    try:
        record = _records.parse(content.decode(), "")
    except (RecordError, UnicodeDecodeError) as error:
        raise RecordError(sanitize(str(error).removeprefix(": "))) from None
    if record.json().encode() != content:
        raise RecordError("not as bench writes it: keys twice, in another order or with other spaces")
    return record


def _unprintable(record: Record) -> str | None:
    """What the texts of a record must not hold, wherever they stand: control characters, or pages."""
    waiting: list[Any] = [record.reason, record.cell, record.source, record.summary, record.victims,
                          record.environment, record.cost]  # fmt: skip
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and (len(value) > LONGEST or not value.isprintable()):
            what = (
                f"{len(value)} letters, at most {LONGEST}" if len(value) > LONGEST else "unprintable letters"
            )
            return f"a text in it has {what}: {sanitize(value, 40)}"
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            waiting += value
    return None


def _array(sha256: str, name: str, content: bytes, found: _Found) -> None:
    named = found.named.get(sha256, [])
    if not named:
        found.add(name, ["no record of the file names it"])
    if not content:
        return
    try:
        arrays = _arrays.read(content)
    except DataError as error:
        found.add(name, [str(error)])
        return
    if _records.arrays_hash(arrays) != sha256:
        found.add(name, ["its name is not the hash of its content"])
        return
    for record in named:
        try:
            found.add(f"records/{record.id}.json", _arrays.findings(record, arrays))
        except MALFORMED as error:
            found.add(name, [f"does not fit its record ({type(error).__name__}: {sanitize(error, 80)})"])


def _left_out(manifest: Manifest, found: _Found, held: set[str]) -> Iterator[str]:
    """Arrays that are neither there nor said to be left out, and pictures that should not have left."""
    for record in found.records:
        name, inside = f"records/{record.id}.json", record.arrays in held
        if record.arrays is not None and inside == (record.id in manifest.left_out):
            said = "there, and said to be left out" if inside else "not there, and not said to be left out"
            yield f"{name}: its arrays are {said}"
        if inside and is_private(record) and not manifest.pictures:
            yield f"{name}: is of private data, and its pictures are in the file"
    known = {record.id for record in found.records if record.arrays is not None}
    for missing in sorted({*manifest.left_out} - known):
        if not found.findings:
            yield f"records/{missing}.json: said to lack its arrays, and has none or is not there"


def _on_a_board(records: Iterable[Record]) -> Iterator[str]:
    try:
        board(records)
    except MALFORMED as error:
        yield f"its records make no board ({type(error).__name__}: {first_line(error)})"


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
