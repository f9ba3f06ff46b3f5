"""Records with fewer fields, for a board, a gate or a baseline, so that 10⁵ records fit into memory."""

from collections.abc import Callable
from dataclasses import replace
from operator import attrgetter
from typing import Any

from bench.cell import AnyCell, Frozen
from bench.record import schema
from bench.record.metrics import COMPARED
from bench.record.schema import ExampleScore, ReadingScore, Record

_Shorten = Callable[[ReadingScore], ReadingScore]


def _only(readings: tuple[str, ...], examples: tuple[str, ...]) -> _Shorten:
    """Return a function that keeps these fields of a reading and of its examples; other fields get their defaults."""
    of_reading, of_example = attrgetter(*readings), attrgetter(*examples)

    # made anew: `replace` of each example takes a quarter of the time in which a board is made
    def example(score: ExampleScore) -> ExampleScore:
        return ExampleScore(**dict(zip(examples, of_example(score), strict=True)))

    def shorten(reading: ReadingScore) -> ReadingScore:
        kept = dict(zip(readings, of_reading(reading), strict=True))
        return ReadingScore(examples=tuple(map(example, reading.examples)), **kept)

    return shorten


_BOARD = _only(
    ("status", "restarts", "snr_db", "cosine", "clients", "indices", "number"),
    (
        *("status", "success", "identified", "named", "place", "label", "prior_db"),
        *(metric.name for metric in COMPARED),
    ),
)
_GATE = _only(
    ("status", "clients", "indices", "snr_db", "cosine", "number"), ("status", "success", "rmse", "identified", "named")
)


def for_board(record: Record) -> Record:
    """Return the record with only the fields that a board (results table) needs, to save memory."""
    result = record.result
    if not isinstance(result, schema.AttackResult):
        return record
    way = result.trajectory
    readings = tuple(map(_BOARD, result.readings))
    return replace(record, result=replace(result, readings=readings, trajectory=way and replace(way, evaluations=())))


class Interner:
    """Function that shortens records for a board (results table), so that thousands of records fit in memory: it maps a
    record to a record with the needed fields only. Equal parts of records (attacks, defenses, code hashes, machines)
    are kept only once."""

    def __init__(self) -> None:
        self._seen: dict[Any, Any] = {}

    def __call__(self, record: Record) -> Record:
        once = self._seen.setdefault
        return replace(
            for_board(record),
            cell=self._cell(record.cell),
            provenance=once(record.provenance, record.provenance),
            environment=once(record.environment, record.environment),
        )

    def _cell(self, cell: AnyCell) -> AnyCell:
        shared = {}
        for name in type(cell).model_fields:
            value = getattr(cell, name)
            key = (name, value.model_dump_json() if isinstance(value, Frozen) else value)
            shared[name] = self._seen.setdefault(key, value)
        # a copy with the parts that are shared, which were checked.  Of the set of its fields, which pydantic keeps
        # for each value, nothing here makes use, and it is large: all have one empty set
        return type(cell).model_construct(_fields_set=_NO_SET, **shared)


_NO_SET: set[str] = set()


def for_baseline(record: Record) -> Record:
    """Return the record with only the fields that the regression gate compares, for a short baseline file."""
    result = record.result
    if isinstance(result, schema.AttackResult):
        result = schema.AttackResult(
            readings=tuple(map(_GATE, result.readings)),
            distortion=schema.Distortion(snr_db_least=result.distortion.snr_db_least),
            conditions=schema.AttackConditions(weights_norm=result.conditions.weights_norm),
            privacy=result.privacy,
        )
    elif isinstance(result, schema.TrainingResult):
        result = schema.TrainingResult(
            accuracy=result.accuracy, curve=(), rounds=result.rounds, diverged=result.diverged
        )
    timed = record.cost.training
    cost = schema.Cost(training=timed and schema.TrainingCost(overhead=timed.overhead))
    return replace(record, result=result, environment=None, cost=cost)


def short_json(record: Record) -> dict[str, Any]:
    """Return the record as JSON types without default values, for a short baseline file; the cell (experiment) is
    complete."""
    content: dict[str, Any] = schema.adapter().dump_python(record, mode="json", exclude_defaults=True)
    content["cell"] = record.cell.model_dump(mode="json")
    if record.result is not None:
        content["result"]["kind"] = record.result.kind
    return content
