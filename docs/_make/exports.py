"""A preset's run in a single small file, the source of a page of results.

First line: matrix, scale, title, commit, published figures.  Then a record a line, numbers to five digits (`store`).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from bench.errors import MALFORMED, BenchError
from bench.matrix.published import PublishedFigures, restored
from bench.record.schema import AttackResult, Record
from bench.reference import store

SUFFIX = ".json.xz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A training's place in a table of a paper."""

    record: str
    """Id of the record."""
    until: float | None = None
    """Accuracy at which the table's training stops; None: it runs to its last round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A preset's run."""

    matrix: str
    """Name as in `bench run --matrix`."""
    scale: str | None
    """Name as in `bench run --scale`; None for a matrix with a single scale."""
    title: str
    commit: str
    published: tuple[PublishedFigures, ...]
    """The papers' figures for these cells."""
    records: tuple[Record, ...]
    unfinished: int = 0
    """Cells of the matrix that have not run."""
    tables: Mapping[str, tuple[Place, ...]] = field(default_factory=dict)
    """Other presets of the same paper → the trainings that belong to them at full scale."""

    @property
    def name(self) -> str:
        """Name for the file and the page: `fed-alpha-cdp-table-1`."""
        return store.slug(self.matrix)


def write(folder: Path, export: Export) -> Path:
    """Write the export, replacing an earlier export with the same matrix; returns the file."""
    path = folder / f"{export.name}{SUFFIX}"
    head = {
        "matrix": export.matrix,
        "scale": export.scale,
        "title": export.title,
        "commit": export.commit,
        "published": [asdict(figures) for figures in export.published],
        **({"unfinished": export.unfinished} if export.unfinished else {}),
        "tables": {name: [asdict(place) for place in places] for name, places in export.tables.items()},
    }
    store.pack(path, [json.dumps(head, sort_keys=True), *store.lines(map(without_course, export.records))])
    return path


def read(path: Path) -> Export:
    """Read an export; raises `BenchError` if damaged."""
    try:
        first, *lines = store.unpack(path)
        head = json.loads(first)
        return Export(
            matrix=head["matrix"],
            scale=head["scale"],
            title=head["title"],
            commit=head["commit"],
            published=tuple(map(restored, head["published"])),
            records=tuple(store.parsed(path, lines)),
            unfinished=head.get("unfinished", 0),
            tables={name: tuple(Place(**place) for place in places) for name, places in head.get("tables", {}).items()},
        )
    except MALFORMED as error:
        raise BenchError(f"{path}: no export ({error}); {store.AGAIN}") from None


def without_course(record: Record) -> Record:
    """The record as an export keeps it: without the trajectory, which no page shows."""
    result = record.result
    return replace(record, result=replace(result, trajectory=None)) if isinstance(result, AttackResult) else record


def every(folder: Path) -> Iterable[Export]:
    """All exports in a folder, by name."""
    return [read(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]
