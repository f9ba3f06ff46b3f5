"""Comparison of two records, field by field, exactly or within a tolerance."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from math import isclose
from typing import Any

from bench.record.metrics import LEARNED
from bench.record.schema import Record

# Figures of these names, and the reasons for their absence, follow from the files on a machine.
_LEARNED = {name for metric in LEARNED for name in (metric.name, f"{metric.name}_absent")}


def differences(old: Record, new: Record, tolerance: float = 0.0) -> list[str]:
    """Return the differences between two records of the same cell (experiment), `old` and `new`, each as a line `field:
    old → new`.

    Cell, status, reason and result are compared; provenance, cost and environment are not. A learned metric is not
    compared if one of the machines lacked the metric. Numbers are equal if they differ by at most `tolerance`, relative
    or absolute."""
    fields_of = [
        ("cell", old.cell.canonical(), new.cell.canonical()),
        ("status", old.status, new.status),
        ("reason", old.reason, new.reason),
        ("result", old.result, new.result),
    ]
    return [
        f"{where}: {before} → {after}"
        for name, one, other in fields_of
        for where, before, after in unequal(name, one, other, tolerance)
        if not (where.rpartition(".")[2] in _LEARNED and None in (before, after))
    ]


def unequal(where: str, old: Any, new: Any, tolerance: float = 0.0) -> Iterator[tuple[str, Any, Any]]:
    """Compare two nested values (mappings, sequences, numbers) part by part: yield (field, old, new) for each
    difference. `old` and `new` are the values, and `where` is the name of the whole. Numbers are equal if they differ
    by at most `tolerance`, relative or absolute."""
    if is_dataclass(old) and type(old) is type(new):
        old, new = (
            {field.name: getattr(value, field.name) for field in fields(value) if field.compare} for value in (old, new)
        )
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in sorted({*old, *new}, key=str):
            yield from unequal(f"{where}.{name}", old.get(name), new.get(name), tolerance)
    elif isinstance(old, list | tuple) and isinstance(new, list | tuple) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from unequal(f"{where}[{number}]", one, other, tolerance)
    elif not _equal(old, new, tolerance):
        yield where, old, new


def _equal(old: Any, new: Any, tolerance: float) -> bool:
    if isinstance(old, bool) or isinstance(new, bool):
        return old is new
    if isinstance(old, int | float) and isinstance(new, int | float):
        return old == new or isclose(old, new, rel_tol=tolerance, abs_tol=tolerance)
    return bool(old == new)
