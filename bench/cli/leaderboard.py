"""`bench leaderboard`: the board of one or more runs, and results that can be handed on and checked."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from bench.leaderboard.board import Row
    from bench.record.schema import Record

_SHOW = "show"
# subcommand → its name in `bench.cli.submission`
_OF_SUBMISSIONS = {"export": "export", "check": "check", "import": "import_command", "verify": "verify"}


class _Board(click.Group):
    """`bench leaderboard RUN` shows; the other subcommands are loaded when called."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = args and (args[0] in self.list_commands(ctx) or args[0] in ("-h", "--help"))
        return super().parse_args(ctx, args if named else [_SHOW, *args])

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return [_SHOW, *_OF_SUBMISSIONS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name == _SHOW:
            return show
        if cmd_name not in _OF_SUBMISSIONS:
            return None
        from bench.cli import submission

        command: click.Command = getattr(submission, _OF_SUBMISSIONS[cmd_name])
        return command


@click.command(cls=_Board)
def command() -> None:
    """Rank defenses by what they protect and cost; hand a result on, check and verify one.

    \b
    bench leaderboard                       the newest run below runs/ (the same as `show`)
    bench leaderboard runs/a runs/b         several runs on one board
    bench leaderboard --html board.html     one page that opens offline
    bench leaderboard show --help           all of its options
    """


@click.command()
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--only", multiple=True, metavar="TEXT", help="Only defenses whose text holds this [repeatable]."
)
@click.option("--html", type=click.Path(path_type=Path), help="Write a page that opens offline.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Write it as Markdown.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Write it as CSV.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw victims and reconstructions as PNG.")
@click.option("--point", default="type-2", show_default=True, help="The interception point of --picture.")
@click.option("--include-pictures", is_flag=True, help="Show examples of private data, too.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, all points, attacks and flags.")
def show(
    runs: tuple[Path, ...], only: tuple[str, ...], html: Path | None, markdown: Path | None, csv_file: Path | None,
    picture: Path | None, point: str, include_pictures: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show the board of RUNS (by default the newest below runs/).

    One row for each defense on a data set, model and condition: the worst case over attacks at each
    point, the best single attack, accuracy, ε, overhead; incomplete rows rank below complete ones.
    """
    from bench.leaderboard.forms import csv as csv_form
    from bench.leaderboard.forms import markdown as markdown_form

    rows, records_of = _rows(runs)
    folders = {record.id: run for run, records in records_of.items() for record in records}
    if only:
        rows = [row for row in rows if any(text in row.defense for text in only)]
    if html is not None:
        _write(html, _page(rows, folders, list(records_of), include_pictures))
    if markdown is not None:
        _write(markdown, markdown_form.board(rows))
    if csv_file is not None:
        _write(csv_file, csv_form.board(rows))
    if picture is not None:
        _draw(picture, rows, folders, point, include_pictures)
    names = [str(run) for run in records_of]
    if as_json:
        click.echo(json.dumps({"runs": names, "rows": [row.json() for row in rows]}, indent=1))
    elif not rows:
        which = " with --only" if only else ""
        click.echo(f"no attack in {', '.join(names)}: there is nothing to rank{which}")
    elif not any((html, markdown, csv_file, picture)):
        _print(rows)


def _rows(runs: tuple[Path, ...]) -> "tuple[list[Row], dict[Path, list[Record]]]":
    """The board's rows, and the records of each run folder.

    A cell that several runs have counts once, as the last named run answered it.
    """
    from bench.cli import lookup
    from bench.leaderboard.board import board
    from bench.record.runs import checked_run

    folders = [checked_run(run) for run in runs] or [checked_run(None)]
    records_of = {folder: lookup.compared(folder) for folder in folders}
    last = {record.cell.id: record for records in records_of.values() for record in records}
    return board(last.values()), records_of


def _page(rows: "list[Row]", folders: dict[str, Path], runs: list[Path], include_pictures: bool) -> str:
    from bench.leaderboard.forms import page, reconstructions

    names = ", ".join(run.resolve().name for run in runs)  # a published page names no folders
    return page.render(
        rows, thumbnails=reconstructions.thumbnails(rows, folders, private=include_pictures),
        title="Gradient leakage leaderboard", context=[f"Runs: {names}"],
    )  # fmt: skip


def _draw(
    path: Path, rows: "list[Row]", folders: dict[str, Path], point: str, include_pictures: bool
) -> None:
    from bench.errors import BenchError
    from bench.leaderboard.forms.figure import figure
    from bench.pictures import grid

    image = figure(rows, folders, point=point, private=include_pictures)
    if image is None:
        raise BenchError(
            f"no examples to draw at {point}; give another --point, or (private data) --include-pictures"
        )
    grid.save(image, path)


def _write(path: Path, text: str) -> None:
    from bench.record.files import write_atomically

    write_atomically(path, text.encode())
    click.echo(f"{path}: {path.stat().st_size / 1e6:.1f} MB", err=True)


def _print(rows: "list[Row]") -> None:
    from rich.console import Console

    from bench.cli.columns import width
    from bench.leaderboard.forms import terminal

    Console(width=max(width(), 80), highlight=False).print(terminal.board(rows))
