"""The export of a run folder as a single submission file, for review, import and verification elsewhere."""

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bench import __version__
from bench.cell import AttackCell, CheckpointWeights
from bench.errors import BenchError, RecordError
from bench.leaderboard.costs import UNDEFENDED
from bench.record import store
from bench.record.files import new_file
from bench.record.runs import checked_run
from bench.record.schema import SCHEMA, Record
from bench.sanitize import first_error
from bench.submission.archive import MANIFEST, write
from bench.submission.check import Report, check
from bench.submission.manifest import ABSENT, EXCLUDED, PRIVATE, Manifest, Suite, digest


def export(
    run: Path,
    file: Path,
    *,
    include_pictures: bool = False,
    arrays: bool = True,
    defenses: Collection[str] | None = None,
    name: str = "",
    url: str = "",
    when: str = "",
) -> Report:
    """Write the records of the run folder `run` to a new submission file, atomically; return the report of its check.

    - `include_pictures`: True also exports arrays with examples from private data.
    - `arrays`: False omits all arrays.
    - `defenses`: names of defenses to export, together with the undefended records and the trainings of their weights;
      None exports all records.
    - `name`, `url`, `when`: submitter's name, address of a paper or page, and date, as texts for the manifest.

    Equal folders give equal bytes. Raises `BenchError` for a folder without records, an unknown defense, records with
    several protocols, or records that would not pass the check elsewhere."""
    paths = sorted((checked_run(run) / "records").glob("*.json"))
    records = _chosen([_read(path) for path in paths], defenses)
    if not records:
        raise BenchError(f"{run}: there is no record in it; `bench run --out {run}` makes some")
    left_out = _left_out(run, records, include_pictures=include_pictures, arrays=arrays)
    members: dict[str, Callable[[], bytes]] = {}
    for record in records:
        members[f"records/{record.id}.json"] = store.record_path(run, record.id).read_bytes
        if record.arrays is not None and record.id not in left_out:
            members[f"arrays/{record.arrays}.npz"] = (run / "arrays" / f"{record.arrays}.npz").read_bytes
    try:
        manifest = Manifest(
            record_schema=SCHEMA,
            protocol=_protocol(run, records),
            bench=__version__,
            name=name,
            url=url,
            when=when,
            suites=tuple(map(read_suite, sorted(run.glob("suite-*.json")))),
            pictures=include_pictures,
            left_out=left_out,
            files={member: digest(content()) for member, content in members.items()},
        )
    except ValidationError as error:
        raise BenchError(f"the submission's {first_error(error)}; say it otherwise") from None
    members[MANIFEST] = partial(bytes, manifest.text().encode())
    with new_file(file, replace=False) as part:
        write(part, members)
        report = check(part)
        if not report.ok:
            raise BenchError(f"{run}: would not pass its check: {report.findings[0]}; run that cell again")
    return replace(report, file=file)


def _read(path: Path) -> Record:
    record = store.read(path)
    if record.id != path.stem:
        raise RecordError(f"{path}: calls itself by another id; name the file by its id")
    return record


def _chosen(records: list[Record], defenses: Collection[str] | None) -> list[Record]:
    if defenses is None:
        return records
    names = sorted({record.cell.defense.name for record in records})
    if unknown := sorted({*defenses} - {*names}):
        raise BenchError(f"no record of defense {unknown[0]!r}; the run has {', '.join(names)}")
    # Undefended cells go with every defense: only they show that the attacks work.
    kept = [record for record in records if record.cell.defense.name in {UNDEFENDED, *defenses}]
    cells = [record.cell for record in kept]
    ids = {cell.id for cell in cells} | {
        cell.weights.training
        for cell in cells
        if isinstance(cell, AttackCell) and isinstance(cell.weights, CheckpointWeights)
    }
    return [record for record in records if record.cell.id in ids]


def _left_out(run: Path, records: list[Record], *, include_pictures: bool, arrays: bool) -> dict[str, Any]:
    # By content: a private record's arrays stay out, although a public record names the same arrays.
    private = {record.arrays for record in records if record.private} if not include_pictures else set()
    reasons: dict[str, Any] = {}
    for record in records:
        if record.arrays is None:
            continue
        if record.arrays in private:
            reasons[record.id] = PRIVATE
        elif not arrays:
            reasons[record.id] = EXCLUDED
        elif not (run / "arrays" / f"{record.arrays}.npz").is_file():
            reasons[record.id] = ABSENT
    return reasons


def _protocol(run: Path, records: list[Record]) -> int:
    protocols = {record.protocol for record in records}
    protocol = protocols.pop()
    if protocols or protocol is None:
        listed = ", ".join(sorted(map(str, {protocol, *protocols})))
        raise BenchError(f"{run}: records of protocols {listed}; a submission has one: run the matrix again")
    return protocol


def read_suite(path: Path) -> Suite:
    """Read the suite file RUN/suite-<name>.json at `path`, which says whether the run of a suite (a fixed set of
    experiments) is ranked, that is complete and unmodified. Raises `RecordError` for a damaged file."""
    try:
        return Suite.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = first_error(error) if isinstance(error, ValidationError) else error.strerror
        raise RecordError(f"{path}: cannot be read ({reason}); run the suite again") from None


def suite_text(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of a suite file with the claims `content`, exactly as a run writes the file; an imported suite
    file then equals the original."""
    return f"{json.dumps(content, indent=1)}\n".encode()
