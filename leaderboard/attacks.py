"""Records → rows: how each attack fares on each data set, what it costs, and what was published of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bench.leaderboard.blocks import attack_name, blocks, dataset_name, entry, of_one_series, question, rank
from bench.leaderboard.forms.numbers import dash, decibels, distinct, share, three, with_paper
from bench.leaderboard.worst import number_of, pictures, share_interval
from bench.matrix.published import Published, beside, row_json
from bench.record.store import Record
from bench.scoring.summary import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Fared:
    """One attack on one data set, against one defense at one point.

    `title` names what is shared with other rows (all but data set, attack, defense, point).  Medians count a
    failed picture as worse than any; `rmse_of_successes` is over the pictures that leaked.  `evaluations` and
    `outer` are medians over readings, `diverged` the share of pictures.  None: no such figure.
    """

    title: str
    dataset: str
    attack: str
    defense: str
    point: str
    pictures: int
    asr: float | None
    interval: tuple[float, float] | None
    rmse: float | None
    rmse_of_successes: float | None
    psnr_db: float | None
    ssim: float | None
    prior_psnr_db: float | None
    evaluations: float | None
    outer: float | None
    diverged: float | None
    crashed: int
    published: Published | None

    def json(self) -> dict[str, Any]:
        """The row as JSON types."""
        return row_json(self)


def attacks(records: Iterable[Record], published: Sequence[Published] = ()) -> list[Fared]:
    """A row for each attack, data set, defense and point, over all seeds and draws, by name, no defense
    first; what does not apply has none.  A crashed cell has no figures and is counted."""
    found: dict[tuple[str, ...], list[Record]] = {}
    for record in of_one_series(records):
        if record.cell.get("kind") == "attack" and record.status != "n/a":
            cell = record.cell
            asked = (attack_name(cell), entry(cell["defense"]), cell["point"])
            found.setdefault((question(record), *asked), []).append(record)
    titles = _titles(record for own in found.values() for record in own)
    rows = [_row(titles[key[0]], own, published) for key, own in found.items()]
    return sorted(rows, key=lambda row: (row.title, row.dataset, rank(row.defense, row.point), row.attack))


def render(rows: Iterable[Fared]) -> RenderableType:
    """One table for what differs in data set, attack, defense and point alone; published figures stand
    dim below the measured ones."""
    by_title: dict[str, list[Fared]] = {}
    for row in rows:
        by_title.setdefault(row.title, []).append(row)
    sources = dict.fromkeys(row.published.source for own in by_title.values() for row in own if row.published)
    said = [Text(f"paper: {source}", style="dim") for source in sources]
    return Group(*(_table(title, own) for title, own in by_title.items()), *said)


def _row(title: str, records: Sequence[Record], published: Sequence[Published]) -> Fared:
    cell, done = records[0].cell, [record for record in records if record.status == "done"]
    seen = [pair for record in done for pair in pictures(record)]
    hits = {key: bool(picture["success"]) for key, picture in seen}
    rmse, psnr, ssim, prior = (
        np.array([number_of(picture, name) for _, picture in seen])
        for name in ("rmse", "psnr_db", "ssim", "best_floor_db")
    )
    won = rmse[list(hits.values())] if hits else rmse
    readings = [victim for record in done for victim in record.victims]
    return Fared(
        title=title, dataset=dataset_name(cell), attack=attack_name(cell), defense=entry(cell["defense"]),
        point=cell["point"], pictures=len(hits), asr=sum(hits.values()) / len(hits) if hits else None,
        interval=share_interval(hits), rmse=_median(rmse, np.inf), rmse_of_successes=_median(won, np.inf),
        psnr_db=_median(psnr, -np.inf), ssim=_median(ssim, -np.inf), prior_psnr_db=_median(prior, -np.inf),
        evaluations=_median([number_of(reading, "evaluations") for reading in readings], np.inf),
        outer=_median([number_of(reading, "outer") for reading in readings], np.inf),
        diverged=float(np.mean([p["status"] == "diverged" for _, p in seen])) if seen else None,
        crashed=len(records) - len(done), published=beside(published, cell),
    )  # fmt: skip


def _median(values: Any, worst: float) -> float | None:
    array = np.asarray(values, np.float64)
    return median(array, worst) if array.size else None


def _titles(records: Iterable[Record]) -> dict[str, str]:
    """Block key → its title without the data set; blocks that differ in more get a title each."""
    found = {block.key: block.title for block in blocks(records)}
    # A block's title starts with its data set; what follows tells apart all else that differs.
    return {key: title.partition(" · ")[2] for key, title in found.items()}


def _table(title: str, rows: list[Fared]) -> Table:
    """What all rows share stands in the title; only names are folded, figures stay whole."""
    names = [name for name in ("defense", "point") if len({getattr(row, name) for row in rows}) > 1]
    constant = [getattr(rows[0], name) for name in ("defense", "point") if name not in names]
    told = " · ".join([title, *constant])
    table = Table(
        title=escape(told), title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    # Names of their own columns would be squeezed to nothing beside seven figures: then they stand in one.
    headings = ("data set", "attack") if not names else (" · ".join(("data set", "attack", *names)),)
    for heading in headings:
        table.add_column(heading, overflow="fold", min_width=8 if not names else 12)
    # SSIM where a paper gives it: seven figures fill 80 columns
    with_ssim = any("ssim" in row.published.figures for row in rows if row.published)
    for heading in (
        "ASR",
        "RMSE",
        "SSIM" if with_ssim else "of leaked",
        "PSNR",
        "evals",
        "outer",
        "diverged",
    ):
        table.add_column(heading, no_wrap=True)
    short = {
        name: distinct(list(dict.fromkeys(getattr(row, name) for row in rows)))
        for name in ("attack", "defense")
    }
    for row in rows:
        said = row.published.figures if row.published else {}
        varied = (getattr(row, name) for name in names)
        told_of = [row.dataset, short["attack"][row.attack], *(short["defense"].get(v, v) for v in varied)]
        table.add_row(
            *(map(escape, told_of) if not names else [escape(" · ".join(told_of))]),
            with_paper(_rate(row, "\n" if names else " "), said.get("asr")),
            with_paper(Text(three(row.rmse)), said.get("rmse")),
            with_paper(Text(three(row.ssim)), said.get("ssim")) if with_ssim else three(row.rmse_of_successes),
            with_paper(
                Text.assemble(decibels(row.psnr_db), (f"\nprior {decibels(row.prior_psnr_db)}", "dim")),
                said.get("psnr_db"),
            ),
            dash(row.evaluations), with_paper(Text(dash(row.outer)), said.get("iterations"), "g"),
            "–" if row.diverged is None else share(row.diverged),
        )  # fmt: skip
    return table


def _rate(row: Fared, gap: str) -> Text:
    if row.asr is None or row.interval is None:
        return Text("crashed" if row.crashed else "–", style="red" if row.crashed else "dim")
    text = Text(share(row.asr))
    text.append(f"{gap}[{share(row.interval[0])}, {share(row.interval[1])}]", style="dim")
    return text
