"""Published figures from papers: `[[published]]` in the matrix file, saved with the run's records.

A published figure has a pattern, for example `defense = "prune"`.  Tables show the figure next to the measured figures
of matching cells; cell ids do not depend on the figure.  RUN/published.json holds the published figures."""

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
    """Figures from a paper, shown in tables together with the bench's own figures for the same cells (experiments). A
    pattern selects these cells."""

    where: Mapping[str, Any]
    """Axis → pattern for the cell's value, such as `{"defense": {"name": "prune"}}`."""
    figures: Mapping[str, float]
    """Name of a metric, or of another figure in `FIGURES` → value."""
    source: str
    """The paper and its table."""


def published(rows: Iterable[PublishedRow]) -> tuple[PublishedFigures, ...]:
    """Return the figures that a matrix file quotes from papers, for tables with the bench's own figures. `rows` are the
    file's `[[published]]` blocks; a block names a cell (experiment), the paper's values, and the paper."""
    return tuple(
        PublishedFigures(where=row.written(PATTERN_AXES), figures=row.written(FIGURES), source=row.source)
        for row in rows
    )


def beside(rows: Iterable[PublishedFigures], cell: AnyCell) -> PublishedFigures | None:
    """Return the published figures for a cell (experiment): the first of `rows` whose pattern matches the cell; None if
    none matches."""
    values = {axis: _plain(getattr(cell, axis)) for axis in PATTERN_AXES if hasattr(cell, axis)}
    return next((row for row in rows if _agrees(row.where, values)), None)


def row_json(row: Any) -> dict[str, Any]:
    """Convert a row of a results table to JSON types, for `--json`. `row` is a dataclass; its field `published`, the
    paper's figures, is included."""
    plain = {name: getattr(row, name) for name in row.__slots__ if name != "published"}
    beside: PublishedFigures | None = row.published
    return {**plain, "published": beside and {**beside.figures, "source": beside.source}}


def save(run: Path, rows: Iterable[PublishedFigures]) -> None:
    """Write the published figures `rows` to a JSON file in the run folder `run`; without figures, no file is
    written."""
    content = [asdict(row) for row in rows]
    if content:
        write_atomically(run / FILE, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())


def saved(run: Path) -> tuple[PublishedFigures, ...]:
    """Return the figures from papers that are saved in the run folder `run`, for comparison with measured figures;
    empty without a file. Raises `RecordError` for a damaged file."""
    path = run / FILE
    try:
        return tuple(restored(row) for row in json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return ()
    except (OSError, *MALFORMED) as error:
        raise RecordError(f"{path}: no published figures ({error}); run the matrix again") from None


def restored(row: Any) -> PublishedFigures:
    """Make published figures from `row`, the parsed JSON of a saved figure; malformed content raises an exception of
    `bench.errors.MALFORMED`."""
    figures = {name: float(row["figures"][name]) for name in FIGURES if name in row["figures"]}
    return PublishedFigures(where=dict(row["where"]), figures=figures, source=str(row["source"]))


def _agrees(pattern: Any, value: Any) -> bool:
    """Compare a value with a pattern: a table needs all items of the pattern, another value must be equal."""
    if isinstance(pattern, Mapping):
        return isinstance(value, Mapping) and all(
            key in value and _agrees(part, value[key]) for key, part in pattern.items()
        )
    return bool(pattern == value)


def _plain(value: Any) -> Any:
    if isinstance(value, Entry):
        return {**value.params, "name": value.name}
    return value.model_dump() if isinstance(value, Federated) else value
