"""What others published of a matrix's cells: `[[published]]` of its file, kept beside the run's records.

A row is a pattern over axes with figures and their source.  It is no part of any configuration: tables show it
beside the measured figure.  RUN/published.json holds the rows of the last matrix that was run there and had any.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.cell import AnyCell, Entry, Federated
from bench.errors import MALFORMED, RecordError
from bench.matrix.schema import PATTERN_AXES, Figures, PublishedRow
from bench.record.files import write_atomically

FIGURES = tuple(Figures.model_fields)
FILE = "published.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigures:
    """`where`: axis → pattern, for the cells that it is about; `figures` by name (`FIGURES`); `source`: the paper
    and its table."""

    where: Mapping[str, Any]
    figures: Mapping[str, float]
    source: str


def published(rows: Iterable[PublishedRow]) -> tuple[PublishedFigures, ...]:
    """The rows of a matrix file."""
    return tuple(
        PublishedFigures(where=row.written(PATTERN_AXES), figures=row.written(FIGURES), source=row.source)
        for row in rows
    )


def beside(rows: Iterable[PublishedFigures], cell: AnyCell) -> PublishedFigures | None:
    """The first row that is about a cell, or None."""
    values = {axis: _plain(getattr(cell, axis)) for axis in PATTERN_AXES if hasattr(cell, axis)}
    return next((row for row in rows if _agrees(row.where, values)), None)


def row_json(row: Any) -> dict[str, Any]:
    """A table's row, a dataclass with a field `published`, as JSON types."""
    plain = {name: getattr(row, name) for name in row.__slots__ if name != "published"}
    beside: PublishedFigures | None = row.published
    return {**plain, "published": beside and {**beside.figures, "source": beside.source}}


def save(run: Path, rows: Iterable[PublishedFigures]) -> None:
    """Write the rows beside the run's records; nothing where there are none."""
    content = [asdict(row) for row in rows]
    if content:
        write_atomically(run / FILE, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())


def saved(run: Path) -> tuple[PublishedFigures, ...]:
    """The rows of a run, none where it has no file; raises `RecordError` for a file that is damaged."""
    path = run / FILE
    try:
        return tuple(restored(row) for row in json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return ()
    except (OSError, *MALFORMED) as error:
        raise RecordError(f"{path}: no published figures ({error}); run the matrix again") from None


def restored(row: Any) -> PublishedFigures:
    """Figures from their JSON; raises one of `MALFORMED` where they are none."""
    figures = {name: float(row["figures"][name]) for name in FIGURES if name in row["figures"]}
    return PublishedFigures(where=dict(row["where"]), figures=figures, source=str(row["source"]))


def _agrees(pattern: Any, value: Any) -> bool:
    """Whether `value` has all that `pattern` names: tables in part, everything else in full."""
    if isinstance(pattern, Mapping):
        return isinstance(value, Mapping) and all(
            key in value and _agrees(part, value[key]) for key, part in pattern.items()
        )
    return bool(pattern == value)


def _plain(value: Any) -> Any:
    """A cell's value as a pattern meets it: a registered entry is one table with its parameters."""
    if isinstance(value, Entry):
        return {**value.params, "name": value.name}
    return value.model_dump() if isinstance(value, Federated) else value
