"""Show attack ranks in the terminal."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.text import Text

from bench.leaderboard.attack_ranks import AttackRank
from bench.leaderboard.forms.columns import short_attack
from bench.leaderboard.forms.numbers import formatted, interval, share
from bench.leaderboard.forms.tables import Table
from bench.record.groups import grouped
from bench.record.names import distinct

LEGEND = (
    "rate: share of the examples that it saw; of all: of the condition's, over all defenses and points, less where a "
    "cascade left it only some (bench run --full crosses everything, for medians); s a success: CPU seconds."
)


def terminal(ranks: Sequence[AttackRank]) -> RenderableType:
    """Return a terminal table for each condition with its attacks in `ranks`, sorted by rank."""
    parts: list[RenderableType] = []
    for title, group in grouped(ranks, lambda each: each.title).items():
        names, table = distinct(each.attack for each in group), Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        short = {each.attack: short_attack(each.attack) for each in group}
        for heading in ("#", "attack", "rate", "of all", "examples", "dB", "s a success"):
            words = heading == "attack"
            table.add_column(heading, justify="left" if words else "right", no_wrap=not words, overflow="fold")
        for each in group:
            name = short[each.attack]
            if list(short.values()).count(name) > 1:
                name = names[each.attack]
            table.add_row(
                str(each.rank),
                name,
                Text(share(each.rate)).append(f" {interval(each.interval)}", style="dim"),
                share(each.of_all),
                str(each.examples),
                formatted(each.psnr_db, ".0f"),
                formatted(each.seconds, ".3g"),
            )
        parts += [Text(title, style="bold"), table]
    return Group(*parts, Text(LEGEND, style="dim"))
