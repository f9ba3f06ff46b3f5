"""Compare two cells (experiments): their configurations, and the paired difference in leakage on common examples."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose
from typing import Any

import numpy as np

from bench.cell import ENTRIES, NOT_IN_ID, AttackCell, FileWeights, InitialWeights, marked
from bench.record import fingerprint
from bench.record.metrics import PSNR_DB, RMSE, Metric
from bench.record.names import with_params
from bench.record.schema import AttackResult, ExampleScore, Provenance, Record
from bench.scoring.intervals import mcnemar, paired_difference
from bench.scoring.summary import median

_ELSEWHERE = marked(FileWeights, NOT_IN_ID)
Place = tuple[int, int]  # reading, example


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A setting with different values in two compared cells (experiments) A and B; "absent" marks a value that a cell
    does not have."""

    field: str
    """Name of the setting."""
    a: Any
    """Value in cell A."""
    b: Any
    """Value in cell B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """Difference in leakage between cells (experiments) A and B on their common examples: each value is A minus B."""

    examples: int
    """Number of common examples."""
    difference: float
    """Success rate in cell A minus success rate in cell B, in [-1, 1]."""
    interval: tuple[float, float]
    """95 % interval for the difference in success rate."""
    p_value: float
    """p-value of McNemar's test for equal success rates."""
    different: bool
    """True if the interval of the difference excludes 0."""
    rmse: float | None
    """Median over examples of the difference in root mean square error; None if unknown."""
    psnr_db: float | None
    """Median over examples of the difference in PSNR, in dB; None if unknown."""
    only_a: tuple[Place, ...]
    """Examples, as (reading, example), that leaked in cell A only."""
    only_b: tuple[Place, ...]
    """Examples, as (reading, example), that leaked in cell B only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The differences between two cells (experiments), as `bench compare` prints them."""

    configuration: tuple[Difference, ...]
    """Settings that differ."""
    provenance: tuple[str, ...]
    """Parts of code or weights that differ between the two cells, as texts."""
    unpaired: str | None
    """Reason why the two cells have no paired difference; None if `paired` is given."""
    paired: PairedDifference | None
    """Difference on common examples; None if the cells cannot be paired."""


def compare(a: Record, b: Record) -> Comparison:
    """Return the differences in configuration and code between the cells (experiments) of the records `a` and `b`, and
    the paired difference in leakage if their examples match."""
    reason = unpaired(a, b)
    fields = (record.cell.model_dump(mode="json") for record in (a, b))
    return Comparison(
        configuration=tuple(differences(*fields)),
        provenance=tuple(fingerprint.changed(a.provenance, _of_same_entries(a, b))),
        unpaired=reason,
        paired=_paired(a.attack, b.attack) if reason is None and a.attack and b.attack else None,
    )


def _of_same_entries(a: Record, b: Record) -> Provenance:
    """Return B's provenance, with A's code for entries of another name: a different attack is not a code change."""
    names = ([getattr(getattr(record.cell, part, None), "name", "") for part in ENTRIES] for record in (a, b))
    others = [part for part, mine, other in zip(ENTRIES, *names, strict=True) if mine != other]
    return replace(b.provenance, **{part: getattr(a.provenance, part) for part in others})


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the settings with different values in the configurations `a` and `b` of two cells (experiments), both
    setting → value. If an entry (such as the attack) has different names, the names with their parameters are a single
    difference."""
    for key in sorted({*a, *b}):
        first, second = a.get(key, "absent"), b.get(key, "absent")
        if first == second:
            continue
        both = isinstance(first, dict) and isinstance(second, dict)
        if both and key in ENTRIES and first["name"] != second["name"]:
            named = (with_params(value["name"], value["params"]) for value in (first, second))
            yield Difference(field=key, a=next(named), b=next(named))
        elif both:
            for each in differences(first, second):
                yield replace(each, field=f"{key}.{each.field.removeprefix('params.')}")
        elif key not in _ELSEWHERE:
            yield Difference(field=key, a=first, b=second)


def unpaired(a: Record, b: Record) -> str | None:
    """Return the reason, in words, why the cells (experiments) of the records `a` and `b` cannot be compared example by
    example; None if victims and weights are the same."""
    for name, record in (("A", a), ("B", b)):
        if record.cell.kind != "attack":
            return f"{name} is a training, which has no victims"
        if record.attack is None:
            return f"{name} is {record.status}: {record.reason}"
    assert isinstance(a.cell, AttackCell) and isinstance(b.cell, AttackCell) and a.attack and b.attack
    if a.cell.dataset.sha256 != b.cell.dataset.sha256:
        return "they are of different data"
    if _weights(a.cell) != _weights(b.cell):
        return "they are under different weights"
    first, second = (result.conditions.weights_norm for result in (a.attack, b.attack))
    if first is not None and second is not None and not isclose(first, second, rel_tol=1e-6):
        return f"their weights have norms {first:g} and {second:g}, so they are not the same"
    if len(a.attack.readings) != len(b.attack.readings):
        return f"they have {len(a.attack.readings)} and {len(b.attack.readings)} readings"
    pairs = zip(a.attack.numbered(), b.attack.numbered(), strict=True)
    for (row, mine), (number, other) in pairs:
        if row != number:
            return f"cascades left them other readings: {row} and {number}"
        if mine.clients != other.clients:
            return f"reading {row} is of client {_some(mine.clients)} and of {_some(other.clients)}"
        if mine.indices != other.indices:
            return f"reading {row} is of example {_some(mine.indices)} and of {_some(other.indices)}"
    return None if a.attack.readings else "they have no readings"


def _weights(cell: AttackCell) -> tuple[Any, ...]:
    """Return the configuration of the attacked weights: the model, with its seed, file or training round."""
    weights = cell.weights.configuration()
    return cell.model, weights, cell.seed if isinstance(cell.weights, InitialWeights) else None


def _paired(a: AttackResult, b: AttackResult) -> PairedDifference:
    places = [(row, n) for row, reading in enumerate(a.readings) for n in range(len(reading.examples))]
    mine, other = ([result.readings[row].examples[n] for row, n in places] for result in (a, b))
    first, second = (np.array([example.success for example in examples]) for examples in (mine, other))
    rows = [row for row, _ in places]
    # Examples in a batch leak together: whole readings are resampled.
    clusters = rows if 1 < len(set(rows)) < len(rows) else None
    difference, low, high = paired_difference(first, second, clusters=clusters)
    return PairedDifference(
        examples=len(places),
        difference=difference,
        interval=(low, high),
        p_value=mcnemar(first, second),
        different=not low <= 0 <= high,
        rmse=_median(mine, other, RMSE),
        psnr_db=_median(mine, other, PSNR_DB),
        only_a=tuple(place for place, x, y in zip(places, first, second, strict=True) if x and not y),
        only_b=tuple(place for place, x, y in zip(places, first, second, strict=True) if y and not x),
    )


def _median(a: Sequence[ExampleScore], b: Sequence[ExampleScore], metric: Metric) -> float | None:
    """Return the median over examples of the metric in A minus B; None without examples. A failed example is worse than
    any number; two failed examples are equal."""
    columns = (np.array([example.value(metric) for example in examples], np.float64) for examples in (a, b))
    first, second = (np.where(np.isnan(column), metric.failed, column) for column in columns)
    with np.errstate(invalid="ignore"):
        return median(np.where(first == second, 0.0, first - second), 0.0)


def _some(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:6])) + (", …" if len(numbers) > 6 else "")
