"""Files with reference results: the records of a defense with its parameters, small enough to ship.

A file is xz-compressed JSON with a record in each line (`bench.record.compact`); numbers keep five digits.  For images,
a strip with the best attack's reconstructions is added."""

import lzma
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from json import dumps
from pathlib import Path, PurePath
from typing import Any

from bench.cell import AttackCell, FileWeights
from bench.errors import BenchError, RecordError
from bench.matrix.suites import ATTACKS, VERSIONS
from bench.record import store
from bench.record.compact import Interner, for_board, short_json
from bench.record.files import write_atomically
from bench.record.groups import grouped
from bench.record.names import attack_name, entry_text
from bench.record.schema import AttackResult, Record, Trajectory

FOLDER = Path(__file__).parent
AGAIN = "get it from the repository again"
DIGITS = 5
_MOST_BYTES = 2**28  # unpacked size of a file
_EXACT = ("cell", "privacy", "provenance")  # numbers in these fields are not rounded


def versions(folder: Path = FOLDER) -> tuple[str, ...]:
    """Return the suite versions (such as `standard-v1`) that have reference results in `folder`. A suite is a fixed set
    of experiments."""
    return tuple(sorted(path.name for path in folder.iterdir() if any(path.glob("*.json.xz"))))


def of_defenses(versions: Iterable[str]) -> tuple[str, ...]:
    """Return those suite `versions` (such as `standard-v1`) that rank defenses; versions that rank attacks are left
    out. A suite is a fixed set of experiments."""
    return tuple(version for version in versions if version != VERSIONS[ATTACKS])


def read(version: str, folder: Path = FOLDER) -> list[Record]:
    """Read the reference results (records of published defenses or attacks) of the suite `version` from `folder`;
    raises `BenchError` for a missing or damaged file."""
    paths = sorted((folder / version).glob("*.json.xz"))
    if not paths:
        raise BenchError(f"no reference results of {version}; there are {', '.join(versions(folder)) or 'none'}")
    intern = Interner()
    return [intern(record) for path in paths for record in parsed(path, unpack(path))]


def strips(version: str, names: Iterable[str], folder: Path = FOLDER) -> dict[str, bytes]:
    """Return the shipped strips of reconstructed images for the defenses or attacks with these `names`: name → WebP.
    `version` is the suite version, a subfolder of `folder`. Names without a strip are left out."""
    paths = {name: folder / version / f"{slug(name)}.webp" for name in names}
    return {name: path.read_bytes() for name, path in paths.items() if path.is_file()}


def of_defense(record: Record) -> str:
    """Return the name of the record's defense with its parameters, such as `prune(share=0.9)`."""
    return entry_text(record.cell.defense)


def of_attack(record: Record) -> str:
    """Return the name of the record's attack with its parameters; raises `ValueError` for a training's record."""
    if not isinstance(record.cell, AttackCell):
        raise ValueError(f"record {record.id} is no attack")
    return attack_name(record.cell)


def write(
    version: str,
    records: Iterable[Record],
    strips: Mapping[str, bytes] | None = None,
    folder: Path = FOLDER,
    by: Callable[[Record], str] = of_defense,
) -> tuple[Path, ...]:
    """Write the reference results of a suite `version` below `folder`, in place of earlier files; return the paths.

    - `records`: results to write.
    - `strips`: name → WebP image; None writes none.
    - `by`: function from a record to the name of its defense or attack; each file has the records with equal name."""
    written = []
    for setting, its in grouped(records, by).items():
        path = folder / version / f"{slug(setting)}.json.xz"
        pack(path, lines(map(_compact, its)))
        written.append(path)
    for setting, content in (strips or {}).items():
        path = folder / version / f"{slug(setting)}.webp"
        write_atomically(path, content)
        written.append(path)
    return tuple(written)


def slug(setting: str) -> str:
    """Return a file name for a defense with parameters, such as `prune-at-example-share-0.9` for `setting`
    `prune(at=example, share=0.9)`."""
    return re.sub(r"[^a-z0-9.]+", "-", setting.lower()).strip("-.")


def lines(records: Iterable[Record]) -> list[str]:
    """Convert `records` to lines of text for a compressed reference file: compact JSON without default values, sorted
    by id. A weights file is named without its folder."""
    return [
        dumps(_rounded(short_json(_without_folder(record))), sort_keys=True, allow_nan=False, separators=(",", ":"))
        for record in sorted(records, key=lambda record: record.id)
    ]


def parsed(path: Path, lines: Iterable[str]) -> Iterator[Record]:
    """Parse `lines` of the file `path` into records; raises `BenchError` for a damaged line."""
    try:
        for line in lines:
            yield store.parse(line, str(path), AGAIN)
    except RecordError as error:
        raise BenchError(f"{path}: not reference results ({error}); {AGAIN}") from None


def pack(path: Path, lines: Iterable[str]) -> None:
    """Write `lines` of text, compressed, to the file `path`; equal lines give equal bytes."""
    content = "\n".join(lines).encode() + b"\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))


def unpack(path: Path) -> list[str]:
    """Return the lines in a file written by `pack`; raises `BenchError` for a damaged file."""
    try:
        with lzma.open(path) as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise BenchError(f"{path}: larger than reference results are; {AGAIN}")
        return content.decode().splitlines()
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise BenchError(f"{path}: not reference results ({error}); {AGAIN}") from None


def _compact(record: Record) -> Record:
    """Keep only the fields that a board reads, and a trajectory's first and last values."""
    kept = for_board(record)
    result = kept.result
    if not isinstance(result, AttackResult) or result.trajectory is None:
        return kept
    losses = result.trajectory.losses
    if len(losses) < 3:
        return kept
    return replace(kept, result=replace(result, trajectory=Trajectory(losses=losses[:1] + losses[-1:])))


def _without_folder(record: Record) -> Record:
    """The folder of a weights file is the machine's own; the hash identifies the file."""
    cell = record.cell
    if not isinstance(cell, AttackCell) or not isinstance(cell.weights, FileWeights):
        return record
    weights = cell.weights.model_copy(update={"path": PurePath(cell.weights.path).name})
    return replace(record, cell=cell.model_copy(update={"weights": weights}))


def _rounded(value: Any, exact: bool = False) -> Any:
    """Round all numbers in JSON data to `DIGITS` digits; `exact` True and the fields `_EXACT` keep all digits."""
    if isinstance(value, dict):
        return {name: _rounded(each, exact or name in _EXACT) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each, exact) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) and not exact else value
