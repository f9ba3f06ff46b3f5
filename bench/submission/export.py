"""A run folder → one file that can be reviewed, imported elsewhere and verified."""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bench import __version__
from bench.errors import BenchError, RecordError
from bench.record import store as _records
from bench.record.files import new_file
from bench.record.runs import checked_run
from bench.record.store import SCHEMA, Record, is_private
from bench.sanitize import first_error
from bench.submission.archive import MANIFEST, write
from bench.submission.check import Checked, check
from bench.submission.manifest import ABSENT, PRIVATE, UNASKED, Listed, Manifest, Suite

UNDEFENDED = "none"  # goes with every defense: without it nothing shows that the attacks work


def export(
    run: Path, file: Path, *, include_pictures: bool = False, arrays: bool = True,
    defenses: Collection[str] | None = None, name: str = "", url: str = "", when: str = "",
) -> Checked:  # fmt: skip
    """Write the run's records to `file`, whole or not at all, and return its check.

    Pictures of data marked private stay out unless `include_pictures`, all of them without `arrays`.
    `defenses` (names) keeps theirs and the undefended ones, with the trainings they were attacked on.  The
    same folder gives the same bytes.  Raises `BenchError` for a folder without records, an unknown defense,
    records of several protocols, or records that would not pass their check elsewhere.
    """
    found = _chosen([_read(path) for path in sorted((checked_run(run) / "records").glob("*.json"))], defenses)
    if not found:
        raise BenchError(f"{run}: there is no record in it; `bench run --out {run}` makes some")
    left_out = _left_out(run, found, include_pictures=include_pictures, arrays=arrays)
    members: dict[str, Callable[[], bytes]] = {}
    for record in found:
        members[f"records/{record.id}.json"] = _records.record_path(run, record.id).read_bytes
        if record.arrays is not None and record.id not in left_out:
            members[f"arrays/{record.arrays}.npz"] = (run / "arrays" / f"{record.arrays}.npz").read_bytes
    try:
        manifest = Manifest(
            record_schema=SCHEMA, protocol=_protocol(run, found), bench=__version__, name=name, url=url,
            when=when, suites=_suites(run), pictures=include_pictures, left_out=left_out,
            files={member: _listed(content()) for member, content in members.items()},
        )  # fmt: skip
    except ValidationError as error:
        raise BenchError(f"the submission's {first_error(error)}; say it otherwise") from None
    members[MANIFEST] = partial(bytes, manifest.text().encode())
    with new_file(file, replace=False) as part:
        write(part, members)
        result = check(part)
        if not result.ok:
            raise BenchError(f"{run}: would not pass its check: {result.findings[0]}; run that cell again")
    return replace(result, file=file)


def _read(path: Path) -> Record:
    record = _records.read(path)
    if record.id != path.stem:
        raise RecordError(f"{path}: calls itself by another id; name the file by its id")
    return record


def _chosen(records: list[Record], defenses: Collection[str] | None) -> list[Record]:
    if defenses is None:
        return records
    there = sorted({str(record.cell["defense"]["name"]) for record in records})
    if unknown := sorted({*defenses} - {*there}):
        raise BenchError(f"no record of defense {unknown[0]!r}; the run has {', '.join(there)}")
    kept = [record for record in records if record.cell["defense"]["name"] in {UNDEFENDED, *defenses}]
    trained = {record.cell.get("weights", {}).get("training") for record in kept}
    ids = trained | {record.id for record in kept}
    return [record for record in records if record.id in ids]


def _left_out(run: Path, records: list[Record], *, include_pictures: bool, arrays: bool) -> dict[str, Any]:
    # By content: what a private record names stays, though another record names the same.
    private = {record.arrays for record in records if is_private(record)} if not include_pictures else set()
    reasons: dict[str, Any] = {}
    for record in records:
        if record.arrays in private and record.arrays is not None:
            reasons[record.id] = PRIVATE
        elif record.arrays is not None and not arrays:
            reasons[record.id] = UNASKED
        elif record.arrays is not None and not (run / "arrays" / f"{record.arrays}.npz").is_file():
            reasons[record.id] = ABSENT
    return reasons


def _protocol(run: Path, records: list[Record]) -> int:
    found: set[Any] = {record.source.get("bench", {}).get("protocol") for record in records}
    if len(found) > 1 or not all(isinstance(one, int) for one in found):
        told = ", ".join(sorted(map(str, found)))
        raise BenchError(f"{run}: records of protocols {told}; a submission has one: run the matrix again")
    return int(found.pop())


def _suites(run: Path) -> tuple[Suite, ...]:
    return tuple(suite(path) for path in sorted(run.glob("suite-*.json")))


def suite(path: Path) -> Suite:
    """What a run says of a suite; raises `RecordError` for a damaged file."""
    try:
        return Suite.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        why = first_error(error) if isinstance(error, ValidationError) else error.strerror
        raise RecordError(f"{path}: cannot be read ({why}); run the suite again") from None


def _listed(content: bytes) -> Listed:
    return Listed(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))


def suite_text(said: Mapping[str, Any]) -> bytes:
    """The text of RUN/suite-<name>.json."""
    return f"{json.dumps(said, indent=1)}\n".encode()
