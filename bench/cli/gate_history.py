"""`bench gate history`: write a gate's history (a verdict per commit) as a page and as a badge."""

from pathlib import Path

import click

from bench.cli import common
from bench.gate import history
from bench.record.files import read_plain, write_atomically


@click.command("history")
@click.argument("file", type=common.PATH)
@click.option("--html", type=common.PATH, help="Write a page without outside parts: each comparison over the commits.")
@click.option("--strip", type=common.PATH, help="With --html: show the picture that `bench gate --strip` drew.")
@click.option("--badge", type=common.PATH, help="Write a badge: SVG, or JSON where the name ends in .json.")
def command(file: Path, html: Path | None, strip: Path | None, badge: Path | None) -> None:
    """Show the verdicts of all commits in the history FILE that `bench gate --history FILE` writes.

    \b
    bench gate history gate-history.jsonl --html gate.html --badge gate.svg
    """
    lines = history.read(file)
    if html is not None:
        shown = read_plain(strip) if strip is not None and strip.exists() else None  # not drawn: no victim came nearer
        write_atomically(html, history.page(lines, f"Leakage gate: {file.stem}", shown).encode())
    if badge is not None:
        if not lines:
            raise click.UsageError(f"{file}: the history is empty, so there is no badge")
        form = history.badge_json if badge.suffix == ".json" else history.badge_svg
        write_atomically(badge, form(lines[-1]).encode())
    for one in lines:
        click.echo(f"{one.time}  {one.commit[:10]}  {one.outcome}, {one.comparisons} comparisons")
