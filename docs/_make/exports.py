"""A preset's run as one file, small enough to commit: what a page of results is made from.

The first line says what was run, from which commit, and what was published of it; a record a line follows, numbers
to five digits (`store`).
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench.errors import MALFORMED, BenchError
from bench.matrix.published import PublishedFigures, restored
from bench.record.schema import AttackResult, Record
from bench.reference import store

SUFFIX = ".json.xz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """`matrix` and `scale` as `bench run` takes them, None where there is one scale; `published` of its cells."""

    matrix: str
    scale: str | None
    title: str
    commit: str
    published: tuple[PublishedFigures, ...]
    records: tuple[Record, ...]

    @property
    def name(self) -> str:
        """The name of its file and of its page: `fed-alpha-cdp-table-1`."""
        return store.slug(self.matrix)


def write(folder: Path, export: Export) -> Path:
    """Write it over what was there of this matrix; returns the file."""
    path = folder / f"{export.name}{SUFFIX}"
    head = {
        "matrix": export.matrix,
        "scale": export.scale,
        "title": export.title,
        "commit": export.commit,
        "published": [asdict(figures) for figures in export.published],
    }
    store.pack(path, [json.dumps(head, sort_keys=True), *store.lines(map(_without_course, export.records))])
    return path


def read(path: Path) -> Export:
    """An export; raises `BenchError` where it is damaged."""
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
        )
    except MALFORMED as error:
        raise BenchError(f"{path}: no export ({error}); {store.AGAIN}") from None


def _without_course(record: Record) -> Record:
    """The record without the losses on the way, which no page shows."""
    result = record.result
    return replace(record, result=replace(result, trajectory=None)) if isinstance(result, AttackResult) else record


def every(folder: Path) -> Iterable[Export]:
    """The exports of a folder, by name."""
    return [read(path) for path in sorted(folder.glob(f"*{SUFFIX}"))]
