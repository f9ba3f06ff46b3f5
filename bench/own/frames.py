"""A run as pandas DataFrames: a row for each cell, and a row for each attacked example."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.cell import ENTRIES
from bench.errors import RecordError
from bench.record.names import dataset_name, entry_text
from bench.record.schema import ExampleScore, Record, Share, Summary
from bench.record.store import records

if TYPE_CHECKING:
    from pandas import DataFrame


class Frames(NamedTuple):
    """The results of a run as two pandas DataFrames."""

    cells: "DataFrame"
    """A row per cell (experiment), indexed by cell id."""
    victims: "DataFrame"
    """A row per attacked example, indexed by cell id, reading and example."""


def frames(run: Path) -> Frames:
    """Return the cells and the attacked examples of the run folder `run` as DataFrames.

    A cell's row has the configuration (`defense`, `federated.batch`, …), `status`, `reason`, figures (`asr`, `asr.low`,
    medians such as `psnr_db`, `epsilon`, `accuracy`, …) and cost. An example's row has the example's metrics. Raises
    `RecordError` for a folder without records, or an unreadable record."""
    import pandas

    run_records = list(records(run))
    if not run_records:
        raise RecordError(f"{run}: no records there; name a run's folder, e.g. runs/quickstart")
    cells = pandas.DataFrame([_cell(record) for record in run_records]).set_index("cell")
    victims = pandas.DataFrame([row for record in run_records for row in _victims(record)])
    if len(victims):
        victims = victims.set_index(["cell", "reading", "example"])
    return Frames(cells=cells, victims=victims)


def _cell(record: Record) -> dict[str, Any]:
    cell, result = record.cell, record.result
    plain = cell.model_dump(mode="json", exclude=set(ENTRIES))
    row: dict[str, Any] = {"cell": record.id, "status": record.status, "reason": record.reason}
    row |= {part: entry_text(getattr(cell, part)) for part in ENTRIES if hasattr(cell, part)}
    row |= {"dataset": dataset_name(cell), **flat(plain)}
    if record.attack is not None:
        if record.attack.summary is not None:
            row |= _summary(record.attack.summary)
        row |= flat(asdict(record.attack.distortion)) | flat(asdict(record.attack.conditions))
    if record.training is not None:
        row |= {"accuracy": record.training.accuracy, "rounds_run": record.training.rounds}
    if result is not None:
        row |= {"epsilon": result.privacy.epsilon, "private": result.private}
    return row | flat(asdict(record.cost))


def _summary(summary: Summary) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in ((field.name, getattr(summary, field.name)) for field in fields(summary)):
        if isinstance(value, Share):
            row |= {name: value.value, f"{name}.low": value.low, f"{name}.high": value.high}
        elif isinstance(value, int | float):
            row[name] = value
    return row | summary.medians


def _victims(record: Record) -> Iterator[dict[str, Any]]:
    names = [field.name for field in fields(ExampleScore) if field.name != "priors_db"]
    for number, reading in record.attack.numbered() if record.attack else ():
        shared = {
            "cell": record.id,
            "reading": number,
            "snr_db": reading.snr_db,
            "cosine": reading.cosine,
            "loss": reading.loss,
            "evaluations": reading.evaluations,
            "restarts": reading.restarts,
            "certificate": reading.certificate,
        }
        for position, example in enumerate(reading.examples):
            yield {**shared, "example": position, **{name: getattr(example, name) for name in names}}


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the nested mappings in `values` as a single mapping with names joined by dots: `{"a": {"b": 1}}` →
    `{"a.b": 1}`. Each name begins with `prefix`; the results are columns of a table."""
    row: dict[str, Any] = {}
    for name, value in values.items():
        row |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return row
