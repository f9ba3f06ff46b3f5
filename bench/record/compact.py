"""A record as far as a board, a gate or a baseline reads it: what makes 10⁵ of them fit into memory."""

from dataclasses import replace
from operator import attrgetter
from typing import Any

from bench.cell import AnyCell, Frozen
from bench.record.metrics import COMPARED
from bench.record.schema import AttackResult, ExampleScore, ReadingScore, Record

# What is compared of an example and of a reading; the rest is left at its default.
_EXAMPLE = ("status", "success", "prior_db", *(metric.name for metric in COMPARED))
_READING = ("status", "restarts", "snr_db", "cosine", "clients", "indices")
_example_values, _reading_values = attrgetter(*_EXAMPLE), attrgetter(*_READING)


def compact(record: Record) -> Record:
    """The record with what a comparison reads of each example, reading and trajectory."""
    result = record.result
    if not isinstance(result, AttackResult):
        return record
    way = result.trajectory
    readings = tuple(map(_reading, result.readings))
    return replace(
        record, result=replace(result, readings=readings, trajectory=way and replace(way, evaluations=()))
    )


def _reading(reading: ReadingScore) -> ReadingScore:
    # made anew: `replace` of each example takes a quarter of the time in which a board is made
    kept = dict(zip(_READING, _reading_values(reading), strict=True))
    return ReadingScore(examples=tuple(map(_example, reading.examples)), **kept)


def _example(example: ExampleScore) -> ExampleScore:
    return ExampleScore(**dict(zip(_EXAMPLE, _example_values(example), strict=True)))


class Sharing:
    """Cuts records; equal parts (cells' entries, code, machines) are held once."""

    def __init__(self) -> None:
        self._seen: dict[Any, Any] = {}

    def __call__(self, record: Record) -> Record:
        cut = compact(record)
        return replace(
            cut, cell=self._cell(record.cell), provenance=self._seen.setdefault(record.provenance,
            record.provenance), environment=self._seen.setdefault(record.environment, record.environment),
        )  # fmt: skip

    def _cell(self, cell: AnyCell) -> AnyCell:
        shared = {}
        for name in type(cell).model_fields:
            value = getattr(cell, name)
            key = (name, value.model_dump_json() if isinstance(value, Frozen) else value)
            shared[name] = self._seen.setdefault(key, value)
        # a copy with the parts that are shared: they were checked, and a set of all its fields is large
        return type(cell).model_construct(_fields_set=_ALL, **shared)


_ALL: set[str] = set()


def cut(record: Record) -> Record:
    """The record as a baseline file has it: without summary, machine and notes."""
    small = compact(record)
    result = small.result
    if isinstance(result, AttackResult):
        result = replace(result, summary=None, notes=(), lpips_absent=None, arrays=None)
    return replace(small, result=result, environment=None, cost=replace(record.cost, reused_from=None))
