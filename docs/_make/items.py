"""The papers' tables, figures and claims: a rating of each by the records, code and tests that exist."""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from bench.cell import AnyCell, Entry
from bench.record.schema import Record
from bench.registry import entries

ABSENT = "absent"  # a parameter at a default that its cells leave out
FULL, PARTLY, SMALL, MISSING = "full scale", "partly", "small", "missing"
RATINGS = {
    FULL: "every part has a record at the paper's own N, K, T, L, B, data set (or a named subset) and net; parts "
    "without figures have code and tests",
    PARTLY: "some parts",
    SMALL: "no part at this scale; records or figures at a smaller one",
    MISSING: "neither",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """An experiment of a paper at the paper's own scale."""

    dataset: str
    """Name."""
    where: Mapping[str, Any]
    """Axis or field of a cell → required value; a table needs each of its keys."""
    least: Mapping[str, float] = field(default_factory=dict)
    """Field of a cell → least value, such as the number of readings."""
    tested: int = 0
    """Examples in the test set; 0: no interval."""

    def covers(self, cell: Mapping[str, Any], defense: Any = None) -> bool:
        """Whether a cell (`fields_of`) of the data set is this experiment, with this defense if one is named."""
        wanted = self.where if defense is None else {**self.where, "defense": defense}
        return all(agrees(value, cell.get(name)) for name, value in wanted.items()) and all(
            (cell.get(name) or 0) >= value for name, value in self.least.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """Parts of an item: each setting with each defense."""

    at: tuple[str, ...]
    """Names of settings."""
    defense: tuple[Any, ...] = (None,)
    """Defenses as in a matrix; None: the setting's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A table, a figure or a claim of a paper."""

    id: str
    paper: str
    """Folder of presets."""
    place: str
    """Table, figure or section."""
    text: str
    """In our words."""
    cells: tuple[Cells, ...] = ()
    """Parts that need a record."""
    code: tuple[str, ...] = ()
    """Parts that need a registered entry: `defense:niss`."""
    tests: tuple[str, ...] = ()
    """Parts that need a test: `test_shares.py::test_name`."""
    lacking: tuple[str, ...] = ()
    """Parts without code, in words."""
    small: tuple[str, ...] = ()
    """Evidence at a smaller scale: a matrix with an export, a claim (`claim:niss`), or a section of a page by hand."""
    run: str = ""
    """Matrix with the parts that have not run."""
    hours: float = 0.0
    """Estimated hours of one core for these parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """A paper's main claim beside our figure from the records."""

    paper: str
    claim: str
    """In our words, with the paper's figure."""
    metric: str
    """`accuracy`, `difference` (of accuracies, in points), `asr`, `psnr_db`, `rmse`, `overhead`, `epsilon`."""
    value: float | None = None
    """The paper's figure."""
    at: str = ""
    """Setting."""
    defense: Any = None
    against: Any = None
    """Second defense of a difference."""
    verdict: str = ""
    """Verdict by hand; empty: by the distance of the figures."""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rated:
    """An item with the evidence found."""

    item: Item
    met: int
    wanted: int
    sources: tuple[str, ...]
    """Matrices with records of parts."""
    small: tuple[str, ...]
    subsets: tuple[str, ...] = ()
    """Data sets of which a part has records of a subset alone."""

    @property
    def rating(self) -> str:
        """The key of `RATINGS`."""
        if self.met == self.wanted and self.wanted:
            return FULL
        if self.met:
            return PARTLY
        return SMALL if self.small else MISSING


@dataclass(frozen=True)
class Evidence:
    """What exists: records by matrix, registered entries, tests, claims, pages by hand."""

    records: Mapping[str, Sequence[Record]]
    """Matrix → records."""
    claims: Mapping[str, str]
    """Claim's id → verdict."""
    sections: frozenset[str]
    """Headings of the pages by hand."""
    tests: Path
    """Folder of the tests."""

    @cached_property
    def _done(self) -> dict[str, list[tuple[str, Record, Mapping[str, Any]]]]:
        """Data set → matrix, record and fields of each finished cell."""
        done: dict[str, list[tuple[str, Record, Mapping[str, Any]]]] = {}
        for name, its in self.records.items():
            for each in its:
                if each.status == "done":
                    done.setdefault(each.cell.dataset.name, []).append((name, each, fields_of(each.cell)))
        return done

    def of(self, setting: Setting, defense: Any = None) -> list[tuple[str, Record]]:
        """Matrix and record of each finished cell of a setting."""
        known = self._done.get(setting.dataset, ())
        return [(name, each) for name, each, fields in known if setting.covers(fields, defense)]

    def tested(self, name: str) -> bool:
        file, _, function = name.partition("::")
        path = self.tests / file
        pattern = rf"^def {re.escape(function)}\("
        return path.is_file() and bool(re.search(pattern, path.read_text("utf-8"), re.MULTILINE))

    def small(self, name: str) -> bool:
        """Whether evidence at a smaller scale exists."""
        if name.startswith("claim:"):
            return self.claims.get(name.removeprefix("claim:"), "not measured yet") != "not measured yet"
        return name in self.records or name in self.sections


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """docs/papers.toml."""

    settings: Mapping[str, Setting]
    items: tuple[Item, ...]
    headlines: tuple[Headline, ...]
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Export → reason for the difference of a cell run again."""

    def rated(self, of: Evidence) -> list[Rated]:
        """Each item's rating."""
        return [_rated(item, self.settings, of) for item in self.items]


def read(path: Path) -> Book:
    """Read the file; raises `KeyError` for an unknown setting, `TypeError` for an unknown field."""
    content = tomllib.loads(path.read_text("utf-8"))
    settings = {name: Setting(**each) for name, each in content["setting"].items()}
    items = tuple(_item(each) for each in content["item"])
    headlines = tuple(Headline(**each) for each in content["headline"])
    for name in (
        *(at for item in items for cells in item.cells for at in cells.at),
        *(h.at for h in headlines if h.at),
    ):
        settings[name]
    return Book(settings=settings, items=items, headlines=headlines, reasons=content.get("again", {}))


def _item(table: dict[str, Any]) -> Item:
    cells = tuple(
        Cells(at=tuple(each["at"]), defense=tuple(each.get("defense", (None,)))) for each in table.pop("cells", ())
    )
    lists: dict[str, Any] = {name: tuple(table.pop(name, ())) for name in ("code", "tests", "lacking", "small")}
    return Item(cells=cells, **lists, **table)


def _rated(item: Item, settings: Mapping[str, Setting], of: Evidence) -> Rated:
    matching = [
        of.of(settings[name], defense) for cells in item.cells for name in cells.at for defense in cells.defense
    ]
    registered = [_registered(each) for each in item.code]
    tested = [of.tested(each) for each in item.tests]
    return Rated(
        item=item,
        met=sum(map(bool, matching)) + sum(registered) + sum(tested),
        wanted=len(matching) + len(registered) + len(tested) + len(item.lacking),
        sources=tuple(dict.fromkeys(name for its in matching for name, _ in its)),
        small=tuple(each for each in item.small if of.small(each)),
        subsets=tuple(dict.fromkeys(name for its in matching for name in _subset(its))),
    )


def _subset(records: Sequence[tuple[str, Record]]) -> set[str]:
    """Names of the data sets, where each record is of a subset."""
    whole = any(record.cell.dataset.subset is None for _, record in records)
    return set() if whole else {record.cell.dataset.name for _, record in records}


def _registered(name: str) -> bool:
    kind, _, entry = name.partition(":")
    return entry in entries.names(f"{kind}s")


def fields_of(cell: AnyCell) -> dict[str, Any]:
    """Field of a cell → value as plain types; an entry is a table of its parameters and its name."""
    return {name: _plain(getattr(cell, name)) for name in type(cell).model_fields}


def _plain(value: Any) -> Any:
    if isinstance(value, Entry):
        return {**value.params, "name": value.name}
    return value.model_dump() if isinstance(value, BaseModel) else value


def agrees(pattern: Any, value: Any) -> bool:
    """Whether a value of `fields_of` has a pattern: a name, a value, or a table of some keys, `ABSENT` for none."""
    if isinstance(value, Mapping):
        wanted = pattern if isinstance(pattern, Mapping) else {"name": pattern}
        return all(
            key not in value if part == ABSENT else key in value and agrees(part, value[key])
            for key, part in wanted.items()
        )
    if isinstance(value, tuple):
        value = list(value)
    return bool(pattern == value)


def counts(rated: Iterable[Rated]) -> dict[str, int]:
    """Rating → number of items."""
    made = dict.fromkeys(RATINGS, 0)
    for each in rated:
        made[each.rating] += 1
    return made
