"""Rows → a table in the terminal."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bench.leaderboard.table import Block, Worst


def render(found: Iterable[Block], *, detail: bool = True) -> RenderableType:
    """One table a block; `detail` adds the interval and the best single attack to each figure."""
    return Group(*(_table(block, detail) for block in found))


def _table(block: Block, detail: bool) -> Table:
    names = _distinct(list(block.rows))
    table = Table(title=escape(block.title), title_justify="left", title_style="bold")
    table.add_column("defense", min_width=18, overflow="fold")
    for point in block.points:
        table.add_column(point, justify="left")
    for defense, row in block.rows.items():
        cells = [_cell(row[point], detail) if point in row else Text("") for point in block.points]
        table.add_row(escape(names[defense]), *cells)
    return table


def _distinct(defenses: list[str]) -> dict[str, str]:
    """Names as short as they can be: parameters only where two rows share a name, and only what differs."""
    found: dict[str, str] = {}
    for full in defenses:
        name = full.partition("(")[0]
        same = [other for other in defenses if other.partition("(")[0] == name]
        if len(same) == 1:
            found[full] = name
            continue
        own = set(_params(full))
        common = set.intersection(*(set(_params(other)) for other in same))
        differing = [part for part in _params(full) if part in own - common]
        found[full] = f"{name}({', '.join(differing)})"
    return found


def _params(full: str) -> list[str]:
    inner = full.partition("(")[2].removesuffix(")")
    return inner.split(", ") if inner else []


def _cell(worst: Worst, detail: bool) -> Text:
    if worst.asr is None:
        if worst.crashed:
            return Text("crashed", style="red")
        return Text("n/a" if worst.absent else "…", style="dim")
    style = "red" if worst.asr >= 0.5 else "yellow" if worst.asr > 0 or worst.lower_bound else "green"
    mark = "≥" if worst.lower_bound else ""
    text = Text(f"{mark}{_share(worst.asr)}", style=style)
    if not detail:
        return text
    interval, best = worst.interval, worst.best
    if interval is not None:
        text.append(f" [{_share(interval[0])}, {_share(interval[1])}]", style="dim")
    if best is not None and best[1] > 0:
        text.append(f"\n{best[0].partition('(')[0]} {_share(best[1])}", style="dim")
    return text


def _share(value: float) -> str:
    """A share in two places, without the nought that three columns have no room for: .68, 1.00."""
    return f"{value:.2f}".removeprefix("0")
