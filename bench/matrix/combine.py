"""Axes → combinations: the product, `exclude` and `include`, with GitHub Actions' meaning.

Source: GitHub Docs, "Running variations of jobs in a workflow".  `exclude` drops every combination
that agrees with all keys of an entry.  Then, in order, the pairs of each `include` entry are added
to every combination of the product in which they overwrite no value of an axis (values added
earlier may be overwritten); an entry that fits none becomes a combination of its own.

Our one addition: a value that is a table agrees with every value that has those parameters, so
that `attack = "cpl"` fits `cpl` with any parameters.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of an axis: `plain` as TOML could have it, defaults written out, for matching."""

    plain: Any
    value: Any


@dataclass(frozen=True, slots=True)
class Extra:
    """One value in an `include` entry: `pattern` is the part of it that the file spells out."""

    pattern: Any
    choice: Choice


@dataclass(frozen=True, slots=True)
class Combination:
    """One choice for each axis; `alone` numbers the `include` entry that made it by itself."""

    choices: Mapping[str, Choice]
    alone: int | None = None


def agrees(pattern: Any, plain: Any) -> bool:
    """Whether `plain` has all that `pattern` asks: tables in part, everything else in full."""
    if isinstance(pattern, dict):
        return isinstance(plain, dict) and all(
            key in plain and agrees(value, plain[key]) for key, value in pattern.items()
        )
    return bool(pattern == plain)


def combine(
    axes: Mapping[str, Sequence[Choice]],
    exclude: Sequence[Mapping[str, Any]] = (),
    include: Sequence[Mapping[str, Extra]] = (),
) -> tuple[Combination, ...]:
    """The combinations, the last axis fastest, then those that stand alone, in the file's order."""
    rows = [dict(zip(axes, row, strict=True)) for row in product(*axes.values())] if axes else []
    kept = [
        row
        for row in rows
        if not any(all(agrees(p, row[key].plain) for key, p in entry.items()) for entry in exclude)
    ]
    grown = [dict(row) for row in kept]
    alone = []
    for number, entry in enumerate(include):
        new = {key: extra.choice for key, extra in entry.items() if key not in axes}
        tests = [(key, extra.pattern) for key, extra in entry.items() if key in axes]
        fits = [i for i, row in enumerate(kept) if all(agrees(p, row[key].plain) for key, p in tests)]
        for i in fits:
            grown[i].update(new)
        if not fits:
            alone.append(Combination({key: extra.choice for key, extra in entry.items()}, number))
    return (*(Combination(row) for row in grown), *alone)
