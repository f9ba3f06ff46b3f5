"""What others published of a matrix's cells: `[[published]]` of its file, kept beside the run's records.

An entry is a pattern over axes, as in `[[exclude]]`, with figures and where they stand.  It is no part
of any question: tables show it beside the measured figure.  RUN/published.json holds the entries of
the last matrix that was run there and had any.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.errors import MALFORMED, RecordError
from bench.matrix.axes import one, pattern
from bench.matrix.border import Border, number
from bench.matrix.combine import agrees
from bench.record.files import write_atomically

AXES = ("dataset", "model", "attack", "knowledge", "point", "defense", "federated")
# Figure → its least and greatest value; from `accuracy` to `overhead` they are of trainings.
FIGURES = {
    "asr": (0.0, 1.0), "rmse": (0.0, 10.0), "iterations": (0.0, 1e9), "accuracy": (0.0, 1.0),
    "epsilon": (0.0, 1e6), "rounds": (0.0, 1e9), "milliseconds": (0.0, 1e9), "overhead": (0.0, 1e9),
    "psnr_db": (-1e3, 1e3), "ssim": (-1.0, 1.0),
}  # fmt: skip
FILE = "published.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """`where`: axis → pattern, for cells that it speaks of; `figures` by name (`FIGURES`); `source`: the
    paper and its table."""

    where: Mapping[str, Any]
    figures: Mapping[str, float]
    source: str


def published(border: Border, entries: Iterable[tuple[str, dict[str, Any]]]) -> tuple[Published, ...]:
    """The checked entries; each must name an axis, a figure and a source, and nothing else."""
    part, found = replace(border, part=True), []
    for key, table in entries:
        part.known(key, table, (*AXES, *FIGURES, "source"))
        where = {}
        for axis in AXES:
            choice = one(part, axis, f"{key}.{axis}", table[axis]) if axis in table else None
            if choice is not None:
                where[axis] = pattern(table[axis], choice.plain)
        given = {
            name: number(part, f"{key}.{name}", table[name], *FIGURES[name])
            for name in FIGURES
            if name in table
        }
        figures = {name: value for name, value in given.items() if value is not None}
        source = table.get("source")
        if not isinstance(source, str) or not source or len(source) > 200 or not source.isprintable():
            part.bad(f"{key}.source", "one line of at most 200 characters", source, 'source = "paper, table"')
        if not set(table) & set(AXES):
            part.faults.add(key, "names no axis", f"say which cells, by {', '.join(AXES)}")
        if not given:
            part.faults.add(key, "gives no figure", f"give one of {', '.join(FIGURES)}")
        found.append(Published(where=where, figures=figures, source=str(source)))
    return tuple(found)


def beside(entries: Iterable[Published], cell: Mapping[str, Any]) -> Published | None:
    """The first entry that speaks of a cell (as its record holds it), or None."""
    plain = {axis: _plain(cell[axis]) for axis in AXES if axis in cell}
    return next((entry for entry in entries if agrees(entry.where, plain)), None)


def row_json(row: Any) -> dict[str, Any]:
    """A table's row, a dataclass with a field `published`, as JSON types."""
    plain = {name: getattr(row, name) for name in row.__slots__ if name != "published"}
    said: Published | None = row.published
    return {**plain, "published": None if said is None else {**said.figures, "source": said.source}}


def keep(run: Path, entries: Iterable[Published]) -> None:
    """Write the entries beside the run's records; nothing where there are none."""
    content = [asdict(entry) for entry in entries]
    if content:
        write_atomically(run / FILE, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode())


def kept(run: Path) -> tuple[Published, ...]:
    """The entries of a run, none where it has no file; raises `RecordError` for a file that is damaged."""
    path = run / FILE
    try:
        return tuple(_read(entry) for entry in json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return ()
    except (OSError, *MALFORMED) as error:
        raise RecordError(f"{path}: no published figures ({error}); run the matrix again") from None


def _read(entry: Any) -> Published:
    figures = {name: float(entry["figures"][name]) for name in FIGURES if name in entry["figures"]}
    return Published(where=dict(entry["where"]), figures=figures, source=str(entry["source"]))


def _plain(value: Any) -> Any:
    """A cell's value as a pattern meets it: a registered entry is one table with its parameters."""
    return (
        {**value["params"], "name": value["name"]} if isinstance(value, dict) and "params" in value else value
    )
