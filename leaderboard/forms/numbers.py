"""Rows → a table in the terminal."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bench.leaderboard.blocks import Block
from bench.leaderboard.worst import Worst


def render(found: Iterable[Block], *, detail: bool = True) -> RenderableType:
    """One table a block; `detail` adds to each figure the interval, the best single attack with its
    median PSNR, and that of the best guess without the gradient."""
    return Group(*(_table(block, detail) for block in found))


def _table(block: Block, detail: bool) -> Table:
    names = distinct(list(block.rows))
    table = Table(title=escape(block.title), title_justify="left", title_style="bold")
    table.add_column("defense", min_width=18, overflow="fold")
    for point in block.points:
        table.add_column(point, justify="left")
    for defense, row in block.rows.items():
        cells = [_cell(row[point], detail) if point in row else Text("") for point in block.points]
        table.add_row(escape(names[defense]), *cells)
    return table


def distinct(names: list[str]) -> dict[str, str]:
    """Names as short as they can be: parameters only where two share a name, and only what differs."""
    found: dict[str, str] = {}
    for full in names:
        name, params, knowledge = _parts(full)
        same = [own for other, own, knows in map(_parts, names) if (other, knows) == (name, knowledge)]
        common = set.intersection(*map(set, same))
        differing = ", ".join(part for part in params if part not in common)
        found[full] = (f"{name}({differing})" if len(same) > 1 else name) + knowledge
    return found


def _parts(full: str) -> tuple[str, list[str], str]:
    """A name, its parameters, and ` · adaptive` where that follows."""
    head, mark, knowledge = full.partition(" · ")
    name, _, inner = head.partition("(")
    return name, inner.removesuffix(")").split(", ") if inner else [], mark + knowledge


def _cell(worst: Worst, detail: bool) -> Text:
    if worst.asr is None:
        if worst.crashed:
            return Text("crashed", style="red")
        return Text("n/a" if worst.absent else "…", style="dim")
    style = "red" if worst.asr >= 0.5 else "yellow" if worst.asr > 0 or worst.lower_bound else "green"
    mark = "≥" if worst.lower_bound else ""
    text = Text(f"{mark}{share(worst.asr)}", style=style)
    if not detail:
        return text
    interval, best = worst.interval, worst.best
    if interval is not None:
        text.append(f" [{share(interval[0])}, {share(interval[1])}]", style="dim")
    if best is not None and best[1] > 0:
        text.append(f"\n{best[0].partition('(')[0]} {share(best[1])}", style="dim")
    if worst.prior_psnr_db is not None:
        text.append(f"\n{against_prior(worst)}", style="dim")
    return text


def against_prior(worst: Worst) -> str:
    """The best attack's median PSNR beside that of the best guess without the gradient: 31 dB, prior 12 dB."""
    return f"{decibels(worst.best_psnr_db)}, prior {decibels(worst.prior_psnr_db)}"


def decibels(value: float | None) -> str:
    """A PSNR in whole decibels, a dash where the median picture failed."""
    return "– dB" if value is None else f"{value:.0f} dB"


def share(value: float) -> str:
    """A share in two places, without the zero that three columns have no room for: .68, -.10, 1.00."""
    return _bare(value, 2)


def three(value: float | None) -> str:
    """A figure in three places without the zero, as the papers print RMSE; a dash where there is none."""
    return "–" if value is None else _bare(value, 3)


def dash(value: float | None, form: str = "g") -> str:
    """A figure in this format; a dash where there is none."""
    return "–" if value is None else format(value, form)


def with_paper(measured: Text, value: float | None, form: str = "") -> Text:
    """The measured figure with the published one dim below it; without `form` in three places."""
    if value is not None:
        measured.append(f"\npaper {format(value, form) if form else three(value)}", style="dim")
    return measured


def _bare(value: float, places: int) -> str:
    text = f"{value:.{places}f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text
