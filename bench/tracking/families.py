"""The families of a calibration as MLflow runs, among the shipped families of the same federation: the shares of named
examples and the accuracy kept, with the strengths as steps from weak to strong.

This module does not import mlflow."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from bench.cell import AttackCell, Entry
from bench.errors import RecordError
from bench.leaderboard.forms.markdown import cell as escaped
from bench.leaderboard.forms.numbers import share
from bench.leaderboard.tradeoff import LISTENERS, Standing, setting, standings, strength
from bench.pictures import grid
from bench.record import tradeoff as values
from bench.record.names import distinct
from bench.record.schema import Record
from bench.record.store import read_arrays
from bench.record.tradeoff import LEVELS, Row, Tradeoff
from bench.reference.tradeoff import with_shipped
from bench.tracking import rows, view
from bench.tracking.rows import RowView
from bench.tracking.store import digest
from bench.tracking.view import Attached, RunView

_COLUMNS, _FADED = 8, 0.15  # victims side by side in a picture; contrast of a victim that is not named
Family = Mapping[str, Standing]  # listener → figures


def of_run(run: Path) -> list[RowView]:
    """Make the rows for display in MLflow of a calibration (a search for the strengths at which defenses meet a level
    of leakage) in the folder `run`: its defense families (a defense at all its strengths) together with the shipped
    families, the most accurate at equal leakage first. The result is empty for an unreadable calibration."""
    try:
        own = values.read(run)
    except RecordError:
        return []
    tradeoff = with_shipped(own)
    assert tradeoff is not None  # the own rows are in
    behind = list(rows.readable(run))
    views = []
    for place in dict.fromkeys((row.dataset, row.model) for row in own.rows):
        families = _families(tradeoff, place)
        short = distinct(families)
        params = rows.differing([_params(short[name], family) for name, family in families.items()])
        for (name, family), given in zip(families.items(), params, strict=True):
            first = next(iter(family.values())).row
            its = [record for record in behind if _is_of(record, first)] if first in own.rows else []
            data = next((r.cell.dataset.sha256 for r in behind if r.cell.dataset.name == place[0]), None)
            shown = short[name] if its else f"{short[name]} · shipped"
            views.append(_view(run, tradeoff, (name, shown), family, given, its, data))
    return views


def _families(tradeoff: Tradeoff, place: tuple[str, str]) -> dict[str, Family]:
    """Return the families on the data set and model `place`, the best first."""
    families: dict[str, dict[str, Standing]] = {}
    for name, (point, _) in LISTENERS.items():
        for each in standings(tradeoff, point).get(place, ()):
            families.setdefault(each.row.family, {})[name] = each

    for name in reversed(LISTENERS):  # two listeners with the same readings have the same charts
        at = [family for family in families.values() if name in family]
        if all(any(each.row is family[name].row for other, each in family.items() if other != name) for family in at):
            for family in at:
                del family[name]

    def order(item: tuple[str, Family]) -> list[float]:
        kept = [item[1][name].kept if name in item[1] else {} for name in LISTENERS]  # the first listener decides
        return [-its.get(level, 0.0) for its in kept for level in LEVELS]

    return dict(sorted(families.items(), key=order))


def _view(
    run: Path,
    tradeoff: Tradeoff,
    names: tuple[str, str],
    family: Family,
    params: dict[str, str],
    behind: Sequence[Record],
    sha256: str | None,
) -> RowView:
    """Return the view of the `family` with the full and the shown name `names`; `behind` are its records in the folder
    `run`, empty for a shipped family, and `sha256` identifies the data set."""
    name, shown = names
    row = next(iter(family.values())).row
    return RowView.of(
        board=f"trade-off {row.dataset} {row.model}",
        key=["family", row.dataset, row.model, name],
        shown=RunView(
            sha256=digest(json.dumps(sorted(record.arrays or "" for record in behind)).encode()),
            name=view.clean(shown, 250),
            status="FINISHED",
            tags={
                "bench.kind": "family",
                "bench.dataset": row.dataset,
                "bench.model": row.model,
                "bench.defense": name,
                "bench.shipped": str(not behind).lower(),
            },
            params=params,
            metrics=[figure for each, at in family.items() for figure in _metrics(tradeoff, each, at)],
            seconds=sum(record.cost.wall_seconds for record in behind) if behind else None,
            datasets=() if sha256 is None else ((row.dataset, sha256),),
        ),
        text=_words(tradeoff, name, family),
        private=any(record.private for record in behind),
        attached=lambda: Attached(images=list(_images(run, family, behind))),
    )


def _params(name: str, family: Family) -> dict[str, str]:
    """Return the parameters of the compare page: the family, and its strength at L1 for each listener."""
    at = {f"L1 {each}": strength(its.row, its.at["L1"]) for each, its in family.items() if "L1" in its.at}
    return {key: view.clean(text, 500) for key, text in ({"defense": name} | at).items()}


def _steps(row: Row) -> dict[float | None, int]:
    """Return strength → step, from weak to strong; step 1 for a family without a strength."""
    strengths = {each.value for each in row.curve} | {each.value for each in row.at_levels}
    downwards = len(row.curve) > 1 and (row.curve[0].value or 0) > (row.curve[-1].value or 0)
    return {value: step for step, value in enumerate(sorted(strengths, key=lambda v: v or 0.0, reverse=downwards), 1)}


def _metrics(tradeoff: Tradeoff, name: str, standing: Standing) -> Iterator[tuple[str, float, int]]:
    """Yield the curve of a listener `name`: at most three metrics, because MLflow draws a chart of each."""
    row, steps = standing.row, _steps(standing.row)
    named = {each.value: each.share for each in row.at_levels} | {each.value: each.share for each in row.curve}
    kept = {each.value: tradeoff.kept(row, each) for each in row.at_levels}
    for metric, figures in (("named", named), ("accuracy kept", kept)):
        for at, figure in sorted(figures.items(), key=lambda each: steps[each[0]]):
            yield f"{name}/{metric}", figure, steps[at]
    if "L1" in standing.kept:
        yield f"{name}/kept at L1", standing.kept["L1"], 0


def _words(tradeoff: Tradeoff, name: str, family: Family) -> Iterator[str]:
    yield f"**{escaped(name)}**"
    for listener, standing in family.items():
        row, at = standing.row, standing.at.get("L1")
        level = "no useful strength meets L1"
        if at is not None:
            level = f"{share(at.share)} named, {share(tradeoff.kept(row, at))} accuracy kept: `{setting(row, at)}`"
        steps = ", ".join(f"{step} = {value:.3g}" for value, step in _steps(row).items() if value is not None)
        yield f"- {listener}: {level}" + (f"; steps of {escaped(row.parameter or '')}: {steps}" if steps else "")


def _is_of(record: Record, row: Row) -> bool:
    """Return whether a record belongs to the family in `row`, at any strength."""
    defense = record.cell.defense
    rest = {key: value for key, value in defense.params.items() if key != row.parameter}
    return str(Entry(name=defense.name, params=rest)) == row.family and record.cell.dataset.name == row.dataset


def _images(run: Path, family: Family, behind: Sequence[Record]) -> Iterator[tuple[str, int, Image.Image]]:
    """Yield for each listener and tuning strength the same victims, faded if not named."""
    drawn = set()
    for name, standing in family.items():
        row, steps = standing.row, _steps(standing.row)
        if row.point in drawn:  # later listeners have the same reading
            continue
        drawn.add(row.point)
        curve = {each.value for each in row.curve}
        first: dict[float | None, tuple[int, Record]] = {}
        for record in behind:
            cell = record.cell
            if isinstance(cell, AttackCell) and cell.point == row.point and cell.weights.kind == "init":
                value = cell.defense.params.get(row.parameter or "")
                if value in curve and (value not in first or cell.seed < first[value][0]):
                    first[value] = cell.seed, record
        for value, (_, record) in first.items():
            if (page := _page(run, record)) is not None:
                yield f"{name} named victims", steps[value], page


def _page(run: Path, record: Record) -> Image.Image | None:
    """Draw the victims of a record, one of each reading; None without arrays."""
    if record.attack is None or record.arrays is None:
        return None
    try:
        truth = read_arrays(run, record.arrays)["truth"][:, 0]
        tiles = grid.drawn(truth, record.attack.data_kind, side=28).astype(float)
    except (RecordError, ValueError, LookupError):  # the record's upload reports the error
        return None
    named = np.array([bool(reading.examples[0].named) for reading in record.attack.readings])
    tiles[~named] = _FADED * tiles[~named] + (1 - _FADED) * grid.PAPER
    blank = np.full((-len(tiles) % _COLUMNS, *tiles.shape[1:]), float(grid.PAPER))
    page = np.concatenate([tiles, blank]).astype(np.uint8)
    return Image.fromarray(grid.sheet(page.reshape(-1, _COLUMNS, *page.shape[1:]), 2))
