"""Show a full cross of attacks in the terminal, as Markdown, and as text for a page."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.text import Text

from bench.leaderboard.attackers import Attacker, Contest, Cross, common
from bench.leaderboard.forms.cells import colour
from bench.leaderboard.forms.columns import short_attack
from bench.leaderboard.forms.markdown import table as markdown_table
from bench.leaderboard.forms.numbers import NONE, formatted, interval, share
from bench.leaderboard.forms.standings import OWN
from bench.leaderboard.forms.tables import Table
from bench.record.names import distinct

ABSENT = "·"  # in place of a rate: not applicable
LEGEND = (
    "mean: success rate over the conditions with its 95 % interval over weight seeds; 1, 2, …: percent of each "
    "condition's examples, ·: not applicable, which counts 0. only: examples that no other attack reconstructs. dB: "
    "median PSNR over the reconstructed examples; below it CPU seconds for each, on the machine that made them."
)


def labels(contests: Sequence[Contest], *, full: bool = False) -> list[str]:
    """Return a short name for each condition in `contests`, in the same order: its number, the parts (such as `B = 1`)
    that most conditions do not share, and its defense. `full` True keeps the defense's parameters."""
    shared, short = common(contests), distinct(contest.defense for contest in contests)
    texts = []
    for number, contest in enumerate(contests, 1):
        parts = [part for part in contest.parts if part not in shared]
        parts += [contest.defense if full else short[contest.defense]] if contest.defense else []
        texts.append(f"{number} {', '.join(parts)}" if parts else f"{number} undefended")
    return texts


def names(cross: Cross) -> dict[str, str]:
    """Map each attack's full name (with parameters and knowledge) in the table `cross` to a short distinct name, with a
    mark for the user's attacks."""
    full, short = distinct(each.attack for each in cross.attackers), {}
    for each in cross.attackers:
        brief = short_attack(each.attack)
        alike = [other for other in cross.attackers if short_attack(other.attack) == brief]
        short[each.attack] = (f"{OWN} " if each.own else "") + (brief if len(alike) == 1 else full[each.attack])
    return short


def terminal(cross: Cross, title: str) -> RenderableType:
    """Return the table `cross` of attacks by conditions for a terminal, below `title`: a row for each attack, a column
    for each condition, then the list of conditions. 12 conditions fit into 80 columns."""
    shown, table = names(cross), Table(box=SIMPLE_HEAD, padding=0)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("attack", overflow="fold", min_width=8)
    table.add_column("mean", justify="right", no_wrap=True)
    for number in range(1, len(cross.contests) + 1):
        table.add_column(str(number), justify="right", no_wrap=True)
    for heading in ("only", "dB\ns"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in cross.attackers:
        table.add_row(
            _rank(each),
            Text(shown[each.attack], style="bold" if each.own else ""),
            Text(share(each.rate).removesuffix(" %")).append(f"\n{_ends(each)}", style="dim"),
            *(Text(_percent(rate), style=colour(rate)) for rate in each.rates),
            str(sum(each.only)),
            Text(formatted(each.psnr_db, ".0f")).append(f"\n{_seconds(each)}", style="dim"),
        )
    together = Text(share(cross.union).removesuffix(" %"))
    table.add_row("", Text("together", style="dim"), together, *map(_percent, cross.unions), "", "")
    lines = [Text(label, style="dim") for label in _described(cross)]
    return Group(Text(title, style="bold"), table, *lines, Text(f"\n{LEGEND}", style="dim"))


def markdown(cross: Cross) -> str:
    """Return the table `cross` as Markdown: a table of attacks, and a table of conditions with the most successful
    attack and the share that any attack reconstructed."""
    shown = names(cross)
    numbers = [str(number) for number in range(1, len(cross.contests) + 1)]
    head = ["#", "attack", "mean", *numbers, "only", "dB", "CPU s a success"]
    rows = [
        [
            _rank(each),
            shown[each.attack],
            f"{share(each.rate)} [{interval(each.interval)}]",
            *(_percent(rate) for rate in each.rates),
            str(sum(each.only)),
            formatted(each.psnr_db, ".0f"),
            _seconds(each),
        ]
        for each in cross.attackers
    ]
    together = ["", "together", share(cross.union), *map(_percent, cross.unions), "", "", ""]
    conditions = [["", "condition", "examples", "best attack", "rate", "together"]]
    for number, (contest, union) in enumerate(zip(cross.contests, cross.unions, strict=True)):
        best, rate = cross.best(number, "")
        title, examples = contest.title, len(contest.examples())
        conditions.append([str(number + 1), title, str(examples), shown.get(best, NONE), share(rate), share(union)])
    return markdown_table([head, *rows, together]) + "\n" + markdown_table(conditions)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRow:
    """An attack's row in the table of attacks by conditions, with all figures as text for the HTML page."""

    rank: str
    """Rank as text, from 1."""
    name: str
    """The attack's short name."""
    title: str
    """The attack's full name, with parameters."""
    own: bool
    """True for the user's attack."""
    mean: str
    """Mean success rate over conditions."""
    interval: str
    """95 % confidence interval for the mean, as text."""
    rates: tuple[tuple[str, float | None], ...]
    """For each condition, the pair (success rate as text, success rate); None for no rate."""
    only: str
    """Number of examples that only this attack reconstructs."""
    psnr_db: str
    """Median PSNR in dB over the reconstructed examples."""
    seconds: str
    """CPU seconds for each reconstructed example."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """The table of attacks by conditions (`Cross`), with all figures as text for the HTML page."""

    heading: str
    """Heading of the table."""
    conditions: tuple[str, ...]
    """Full title for each condition (column)."""
    labels: tuple[str, ...]
    """Short name for each condition (column)."""
    rows: tuple[PageRow, ...]
    """A row per attack."""
    together: str
    """Mean share of examples that at least one attack reconstructs."""
    unions: tuple[tuple[str, float], ...]
    """For each condition, the share of examples that at least one attack reconstructs: (text, number)."""


def page_table(heading: str, cross: Cross) -> PageTable:
    """Format the table `cross` of attacks by conditions for the HTML page, below `heading`: all figures become text."""
    shown = names(cross)
    rows = tuple(
        PageRow(
            rank=_rank(each),
            name=shown[each.attack],
            title=each.attack,
            own=each.own,
            mean=share(each.rate),
            interval=interval(each.interval),
            rates=tuple((_percent(rate), rate) for rate in each.rates),
            only=str(sum(each.only)),
            psnr_db=formatted(each.psnr_db, ".0f"),
            seconds=_seconds(each),
        )
        for each in cross.attackers
    )
    return PageTable(
        heading=heading,
        conditions=tuple(contest.title for contest in cross.contests),
        labels=tuple(labels(cross.contests)),
        rows=rows,
        together=share(cross.union),
        unions=tuple((_percent(union), union) for union in cross.unions),
    )


def _described(cross: Cross) -> list[str]:
    """Return a line with the common parts, then a line for each condition: label, and the attack with the highest
    rate."""
    shown, told = names(cross), labels(cross.contests, full=True)
    width = max(map(len, told))
    texts = [f"conditions: {' · '.join(common(cross.contests))}, unless stated"] if common(cross.contests) else []
    for number, label in enumerate(told):
        best, rate = cross.best(number, "")
        texts.append(f"{label:{width}}  {shown[best]} {share(rate)}" if rate else label)
    return texts


def _rank(attacker: Attacker) -> str:
    return ABSENT if attacker.missing else str(attacker.rank)


def _ends(attacker: Attacker) -> str:
    return interval(attacker.interval).removesuffix(" %")


def _percent(rate: float | None) -> str:
    return ABSENT if rate is None else f"{100 * rate:.0f}"


def _seconds(attacker: Attacker) -> str:
    value = attacker.seconds
    return formatted(value, ".0f" if value is not None and value >= 100 else ".2g")
