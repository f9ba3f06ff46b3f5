"""Write standings as text for the terminal, Markdown and CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.text import Text

from bench.leaderboard.conditions import ordered
from bench.leaderboard.forms.cells import below, colour
from bench.leaderboard.forms.markdown import table as markdown_table
from bench.leaderboard.forms.numbers import ALL, NONE, epsilon, fine, interval, rate, share
from bench.leaderboard.forms.tables import Table
from bench.leaderboard.standings import Place, Standing
from bench.record.names import distinct

OWN = "▸"  # before a setting that is not of the reference
_BROKEN = {"aggregate": "aggre-\ngate", "recognised": "recog-\nnised"}  # heads that would be wider than their column
SERVER = "type-0"  # what an honest server sees of one client
LEGEND = (
    "type-2, type-1, type-0: share of examples that some attacker reconstructs from one example's gradient inside "
    "the client, from the client's update, from the same at the server; aggregate: from the mean over the clients "
    "alone. Each is the mean over the conditions in which at least half are reconstructed without a defense, with "
    "its 95 % interval over weight seeds; ≥: attacks failed on some of the rest, so that more may leak. "
    "recognised, at the server: named out of a gallery, or identified among strangers; below it the most that ε "
    "allows (≤), or chance. accuracy: the mean over the suite's trainings that did not diverge, and its change in "
    "points. Ranks: by the mean over the points, to one percent; ·: incomplete."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of a standing (a defense's means over a suite of conditions) as text for a table."""

    rank: str
    """Rank as text, from 1."""
    name: str
    """The defense's short name."""
    points: tuple[str, ...]
    """Leakage (mean success rate of attackers) at each interception point, from inside the client outwards."""
    intervals: tuple[str, ...]
    """95 % confidence interval for the leakage at each point."""
    recognised: str
    """Share of examples that attackers at the server recognise."""
    chance: str
    """Share of examples that blind guesses recognise."""
    ceiling: str
    """Upper bound on the share of recognised examples, from ε."""
    accuracy: str
    """Mean test accuracy over the trained models."""
    change: str
    """Mean accuracy minus the undefended accuracy, in percentage points; or the number of diverged trainings."""
    epsilon: str
    """ε of the released models, as text."""
    epsilon_of: str
    """Relation between neighbouring data sets for this ε, such as "one client replaced"."""
    overhead: str
    """Training time with the defense divided by the time without."""

    @property
    def cells(self) -> tuple[str, ...]:
        """Cells of a table's row, from rank to change in accuracy; a point's cell has leakage and interval."""
        leaked = (f"{each} [{within}]" for each, within in zip(self.points, self.intervals, strict=True))
        recognised = (self.recognised, self.chance or NONE, self.ceiling or NONE)
        return (self.rank, self.name, *leaked, *recognised, self.accuracy, self.change or NONE)


def figures(standings: Sequence[Standing]) -> list[Figures]:
    """Format each of `standings` (a defense's means over a suite of conditions) as text, with the shortest distinct
    names for the defenses."""
    names, points = distinct(each.defense for each in standings), columns(standings)
    return [
        Figures(
            rank="✗" if each.faults else "·" if each.missing else str(each.rank),
            name=(f"{OWN} " if each.own else "") + names[each.defense],
            points=tuple(_leaked(each.points.get(point)) for point in points),
            intervals=tuple(_interval(each.points.get(point)) for point in points),
            recognised=_recognised(_server(each)),
            chance=_chance(_server(each)),
            ceiling=_ceiling(_server(each)),
            accuracy=share(each.accuracy),
            change=_change(each),
            epsilon=epsilon(each.epsilon),
            epsilon_of=each.epsilon_of or "",
            overhead=NONE if each.overhead is None else f"{each.overhead:.1f}×",
        )
        for each in standings
    ]


def columns(standings: Sequence[Standing]) -> tuple[str, ...]:
    """Return the interception points with a figure in any of `standings` (a defense's means over a suite of
    conditions), sorted from inside the client outwards. Each point is a column of the table."""
    return ordered(point for each in standings for point in each.points)


def heads(standings: Sequence[Standing]) -> tuple[str, ...]:
    """Return the heads of a table of `standings` (a defense's means over a suite of conditions): those of
    `Figures.cells`, then ε."""
    return ("#", "defense", *columns(standings), "recognised", "chance", "ceiling", "accuracy", "change", "ε")


def terminal(standings: Sequence[Standing], title: str) -> RenderableType:
    """Return `standings` (defenses ranked by their means over a suite of conditions) as a terminal table with at most
    80 columns, below `title`."""
    points = columns(standings)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("defense", overflow="fold", min_width=8)
    for name in (*points, "recognised", "accuracy", "ε"):
        table.add_column(_BROKEN.get(name, name), justify="right", no_wrap=True)
    for each, line in zip(standings, figures(standings), strict=True):
        leaks = [
            below(Text(text, style=colour(place.leaked if place else None)), within.removesuffix(" %"))
            for place, text, within in zip(map(each.points.get, points), line.points, line.intervals, strict=True)
        ]
        table.add_row(
            line.rank,
            Text(line.name.replace("(", " (", 1), style="bold" if each.own else ""),
            *leaks,
            below(Text(line.recognised), line.ceiling or (line.chance and f"({line.chance})")),
            below(Text(line.accuracy), "diverged" if each.diverged else line.change),
            line.epsilon,
        )
    return Group(Text(title, style="bold"), table, Text(LEGEND, style="dim"))


def markdown(standings: Sequence[Standing]) -> str:
    """Return `standings` (defenses ranked by their means over a suite of conditions) as a Markdown table."""
    rows = [
        [*line.cells, f"{line.epsilon}, {line.epsilon_of}" if line.epsilon_of else line.epsilon, line.overhead]
        for line in figures(standings)
    ]
    return markdown_table([[*heads(standings), "client time"], *rows])


def comma_separated(standings: Sequence[Standing]) -> str:
    """Return `standings` (defenses ranked by their means over a suite of conditions) as CSV, with unrounded figures."""
    points, out = columns(standings), io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    fields = ("leaked", "lower_bound", "most", "recognised", "chance", "ceiling", "conditions")
    own = ("leaked", "recognised", "accuracy", "lost", "epsilon", "epsilon_of", "delta", "overhead", "missing")
    ends = (f"{point} {end}" for point in points for end in ("low", "high"))
    writer.writerow(
        [
            "rank",
            "defense",
            "own",
            *(f"{point} {field}" for point in points for field in fields),
            *ends,
            *own,
            "diverged",
            "faults",
        ]
    )
    for each in standings:
        places = [each.points.get(point) for point in points]
        writer.writerow(
            [
                each.rank,
                each.defense,
                int(each.own),
                *(getattr(place, field) if place else None for place in places for field in fields),
                *(end for place in places for end in (place.interval if place else (None, None))),
                *(getattr(each, name) for name in own),
                " ".join(each.diverged),
                " ".join(each.faults),
            ]
        )
    return out.getvalue()


def _server(standing: Standing) -> Place | None:
    return standing.points.get(SERVER)


def _leaked(place: Place | None) -> str:
    return NONE if place is None else rate(place.leaked, lower_bound=place.lower_bound)


def _interval(place: Place | None) -> str:
    return NONE if place is None else interval(place.interval)


def _recognised(place: Place | None) -> str:
    recognised = None if place is None else place.recognised
    return share(recognised) if not recognised else fine(recognised)


def _chance(place: Place | None) -> str:
    return "" if place is None or place.chance is None else fine(place.chance)


def _ceiling(place: Place | None) -> str:
    """Format the upper bound on recognition; empty for None, and for a bound of nearly 1 (ε in the hundreds)."""
    trivial = place is None or place.ceiling is None or place.ceiling >= ALL
    return "" if trivial or place is None else f"≤ {fine(place.ceiling)}"


def _change(standing: Standing) -> str:
    """Format the change in accuracy in percentage points, such as −17, or the number of diverged trainings."""
    if standing.diverged:
        return f"{len(standing.diverged)} of {len(standing.costs)} diverged"
    lost = standing.lost
    return "" if lost is None or round(100 * lost) == 0 else f"{-100 * lost:+.0f}".replace("-", "−")
