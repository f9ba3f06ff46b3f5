"""`bench leaderboard`: the board of one or more runs, and results that can be handed on and checked."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from bench.leaderboard.board import Row
    from bench.record.store import Record

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
@click.option("--include-pictures", is_flag=True, help="Show pictures of private data, too.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, all points, attacks and flags.")
def show(
    runs: tuple[Path, ...], only: tuple[str, ...], html: Path | None, markdown: Path | None, csv_file: Path | None,
    picture: Path | None, point: str, include_pictures: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show the board of RUNS (by default the newest below runs/).

    One row for each defense on a data set, model and condition: the worst case over attacks at each
    point, the best single attack, accuracy, ε, overhead; incomplete rows rank below complete ones.
    """
    from bench.leaderboard.forms import board as board_text

    rows, places = _rows(runs)
    if only:
        rows = [row for row in rows if any(text in row.defense for text in only)]
    if html is not None:
        _page(html, rows, places, include_pictures)
    if markdown is not None:
        _written(markdown, board_text.markdown(rows))
    if csv_file is not None:
        _written(csv_file, board_text.to_csv(rows))
    if picture is not None:
        _picture(picture, rows, places, point, include_pictures)
    if as_json:
        click.echo(
            json.dumps({"runs": [str(run) for run in places], "rows": [row.json() for row in rows]}, indent=1)
        )
    elif not rows:
        click.echo(
            f"no attack in {', '.join(map(str, places))}: there is nothing to rank"
            + (" with --only" if only else "")
        )
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
    places = {folder: lookup.compared(folder) for folder in folders}
    last = {record.id: record for records in places.values() for record in records}
    with lookup.together(", ".join(map(str, folders))):
        return board(last.values()), places


def _page(path: Path, rows: "list[Row]", places: "dict[Path, list[Record]]", include_pictures: bool) -> None:
    from bench.leaderboard.forms import page
    from bench.pictures import thumbnails

    names = ", ".join(folder.resolve().name for folder in places)  # a published page names no folders
    pictures = thumbnails.of_rows(rows, _folders(places), include_pictures=include_pictures)
    text = page.render(
        rows, thumbnails=pictures, title="Gradient leakage leaderboard", said=[f"Runs: {names}"]
    )
    _written(path, text)


def _picture(
    path: Path, rows: "list[Row]", places: "dict[Path, list[Record]]", point: str, include_pictures: bool
) -> None:
    from bench.errors import BenchError
    from bench.leaderboard.forms.figure import sheet
    from bench.pictures import grid as strips

    image = sheet(rows, _folders(places), point=point, include_pictures=include_pictures)
    if image is None:
        raise BenchError(
            f"no pictures at {point}; give another --point, or (private data) --include-pictures"
        )
    strips.save(image, path)


def _folders(places: "dict[Path, list[Record]]") -> dict[str, Path]:
    """Cell id → the run folder of the record that counts."""
    return {record.id: folder for folder, records in places.items() for record in records}


def _written(path: Path, text: str) -> None:
    from bench.record.files import write_atomically

    write_atomically(path, text.encode())
    click.echo(f"{path}: {path.stat().st_size / 1e6:.1f} MB", err=True)


def _print(rows: "list[Row]") -> None:
    from rich.console import Console

    from bench.cli.columns import width
    from bench.leaderboard.forms import board as board_text

    Console(width=max(width(), 80), highlight=False).print(board_text.render(rows))
