"""Records → rows: what it gains an attacker to know the defense, plain beside adaptive, on the same pictures.

Only attacks that were asked both ways count, so that the change is the knowledge's and not another attack's.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bench.leaderboard.blocks import blocks, entry, of_one_series, question, rank
from bench.leaderboard.forms.numbers import decibels, distinct, share, three
from bench.leaderboard.worst import Worst, clusters
from bench.record.store import Record
from bench.scoring.intervals import paired

UNDESCRIBED = "plain: the defense describes nothing"
_Asked = tuple[str, str, str, str]  # block, defense, point, attack


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowing:
    """One defense at one point: the worst of the attacks that were asked both ways, plain and adaptive.

    `undescribed`: the defense says nothing of itself, so the adaptive attack was the plain one.
    """

    block: str
    defense: str
    point: str
    plain: Worst
    adaptive: Worst
    undescribed: bool

    @property
    def change(self) -> tuple[float, float, float] | None:
        """Adaptive less plain worst-case ASR over the pictures that both met, with its paired interval at
        95 % (`bench.scoring.intervals.paired`): (difference, low, high); None where they share no picture."""
        common = [picture for picture in self.plain.leaked if picture in self.adaptive.leaked]
        if not common:
            return None
        after, before = ([worst.leaked[p] for p in common] for worst in (self.adaptive, self.plain))
        return paired(after, before, clusters=clusters(common))

    def json(self) -> dict[str, Any]:
        """The row as JSON types."""
        return {
            "block": self.block, "defense": self.defense, "point": self.point, "change": self.change,
            "plain": _figures(self.plain), "adaptive": _figures(self.adaptive),
            "undescribed": self.undescribed,
        }  # fmt: skip


def knowledge(records: Iterable[Record]) -> list[Knowing]:
    """A row for each defense and point of each block with an attack that was asked plain and adaptive; none
    where the records hold only one kind.  By title of the block, no defense first.  An attack that does not
    apply one way counts in neither."""
    asked: dict[str, dict[_Asked, list[Record]]] = {"plain": {}, "adaptive": {}}
    for record in of_one_series(records):
        if record.cell.get("kind") == "attack" and record.status != "n/a":
            kind = asked.setdefault(record.cell["knowledge"], {})
            kind.setdefault(_asked(record), []).append(record)
    plain, adaptive = (
        [record for key, own in asked[kind].items() if key in asked[other] for record in own]
        for kind, other in (("plain", "adaptive"), ("adaptive", "plain"))
    )
    undescribed = {
        _asked(r)[:3] for r in adaptive if r.summary.get("conditions", {}).get("described") is False
    }
    knowing = {block.key: block for block in blocks(adaptive)}
    rows = [
        Knowing(
            block=block.title, defense=defense, point=point, plain=worst,
            adaptive=knowing[block.key].rows[defense][point],
            undescribed=(block.key, defense, point) in undescribed,
        )
        for block in blocks(plain)
        for defense, row in block.rows.items()
        for point, worst in row.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (row.block, rank(row.defense, row.point)))


def render(rows: Iterable[Knowing]) -> RenderableType:
    """One table a block."""
    by_block: dict[str, list[Knowing]] = {}
    for row in rows:
        by_block.setdefault(row.block, []).append(row)
    return Group(*(_table(title, own) for title, own in by_block.items()))


def _table(title: str, rows: list[Knowing]) -> Table:
    told = escape(f"{title} · what knowing the defense gains")
    table = Table(title=told, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("defense", overflow="fold")
    for heading in ("point", "plain", "adaptive"):
        table.add_column(heading, no_wrap=True)
    table.add_column("change")
    for heading in ("RMSE", "PSNR"):
        table.add_column(heading, no_wrap=True)
    names = distinct(list(dict.fromkeys(row.defense for row in rows)))
    for row in rows:
        priors = [db for db in (row.plain.prior_psnr_db, row.adaptive.prior_psnr_db) if db is not None]
        psnr = f"{decibels(row.plain.best_psnr_db)} → {decibels(row.adaptive.best_psnr_db)}"
        table.add_row(
            escape(names[row.defense]), row.point, _rate(row.plain), _rate(row.adaptive),
            Text(UNDESCRIBED, style="dim") if row.undescribed else _change(row.change),
            f"{three(row.plain.best_rmse)} → {three(row.adaptive.best_rmse)}",
            Text.assemble(psnr, (f"\nprior {decibels(max(priors, default=None))}", "dim")),
        )  # fmt: skip
    return table


def _rate(worst: Worst) -> Text:
    if worst.asr is None:
        return Text("crashed" if worst.crashed else "…", style="dim")
    text = Text(f"{'≥' if worst.lower_bound else ''}{share(worst.asr)}")
    if worst.best is not None and worst.best[1] > 0:
        text.append(f"\n{worst.best[0].partition('(')[0].partition(' ·')[0]}", style="dim")
    return text


def _change(change: tuple[float, float, float] | None) -> Text:
    """The change with its interval, in colour where 0 lies outside."""
    if change is None:
        return Text("–", style="dim")
    difference, low, high = change
    style = "red" if low > 0 else "green" if high < 0 else "dim"
    sign = "+" if difference > 0 else ""
    return Text(f"{sign}{share(difference)} [{share(low)}, {share(high)}]", style=style)


def _figures(worst: Worst) -> dict[str, Any]:
    return {
        "asr": worst.asr, "interval": worst.interval, "lower_bound": worst.lower_bound,
        "best_attack": worst.best, "rmse_median": worst.best_rmse, "psnr_db_median": worst.best_psnr_db,
        "prior_psnr_db_median": worst.prior_psnr_db,
    }  # fmt: skip


def _asked(record: Record) -> _Asked:
    cell = record.cell
    return question(record), entry(cell["defense"]), cell["point"], entry(cell["attack"])
