"""`bench leaderboard`: the board of runs, and submissions to export, check, import and verify."""

from collections.abc import Sequence
from pathlib import Path

import click

from bench.cli import common, lookup, submission
from bench.errors import BenchError
from bench.leaderboard.attack_ranks import attack_ranks
from bench.leaderboard.board import Row, board
from bench.leaderboard.forms import attack_ranks as attack_ranks_form
from bench.leaderboard.forms import csv as csv_form
from bench.leaderboard.forms import figure, latex, page, poster, reconstructions, terminal
from bench.leaderboard.forms import markdown as markdown_form
from bench.leaderboard.forms import standings as standings_form
from bench.leaderboard.standings import Standing
from bench.record.files import write_atomically
from bench.record.runs import checked_run
from bench.record.schema import Record
from bench.reference import beside
from bench.reference import store as reference_store
from bench.reference.pictures import strips_of


class _Board(click.Group):
    """`bench leaderboard RUN` means `bench leaderboard show RUN`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = args and (args[0] in self.list_commands(ctx) or args[0] in ("-h", "--help"))
        return super().parse_args(ctx, args if named else ["show", *args])


@click.group(cls=_Board)
def command() -> None:
    """Rank defenses by protection and cost; export, check, import and verify results.

    \b
    bench leaderboard                       the newest run below runs/ (the same as `show`)
    bench leaderboard runs/a runs/b         several runs on one board
    bench leaderboard --html board.html     a page for offline use
    bench leaderboard --reference           the shipped reference results
    bench leaderboard show --help           all of its options
    """


@command.command()
@click.argument("runs", nargs=-1, type=common.PATH)
@click.option("--only", multiple=True, metavar="TEXT", help="Only defenses whose text holds this [repeatable].")
@click.option(
    "--reference/--no-reference",
    default=None,
    help="Put the shipped reference results beside it [default: for runs of a suite that has some].",
)
@click.option("--conditions", is_flag=True, help="Of a suite: a table for each condition, too.")
@click.option("--attacks", is_flag=True, help="Rank the attacks of each condition instead.")
@click.option("--html", type=common.PATH, help="Write a page that opens offline.")
@click.option("--markdown", type=common.PATH, help="Write it as Markdown.")
@click.option("--csv", "csv_file", type=common.PATH, help="Write it as CSV.")
@click.option("--latex", "latex_file", type=common.PATH, help="Write it as a LaTeX table, for booktabs.")
@click.option(
    "--picture",
    type=common.PATH,
    help="Draw victims and reconstructions, of a suite its standings: .png, .svg or .pdf.",
)
@click.option("--point", default="type-2", show_default=True, help="The interception point of --picture.")
@click.option("--include-pictures", is_flag=True, help="Show examples of private data, too.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, all points, attacks and flags.")
def show(
    runs: tuple[Path, ...],
    only: tuple[str, ...],
    reference: bool | None,
    conditions: bool,
    attacks: bool,
    html: Path | None,
    markdown: Path | None,
    csv_file: Path | None,
    latex_file: Path | None,
    picture: Path | None,
    point: str,
    include_pictures: bool,
    as_json: bool,
) -> None:
    """Show the board of RUNS (by default the newest below runs/).

    One row for each defense on a data set, model and condition: the worst case over attacks at each
    point, the best single attack, accuracy, ε, overhead; incomplete rows rank below complete ones.
    Of a suite first the standings: one row for each defense over all conditions, yours (▸) among the
    published ones.
    """
    if picture is not None and picture.suffix.lower() not in figure.FORMS:
        raise BenchError(f"--picture {picture}: it ends in {', '.join(figure.FORMS)}; rename it")
    records_of = {} if reference and not runs else _records(runs)
    folders = {record.id: run for run, records in records_of.items() for record in records}
    # a cell that several runs have counts once, as the last named run answered it
    last = tuple({record.cell.id: record for records in records_of.values() for record in records}.values())
    version = None if reference is False else beside.suite_of(records_of) or (reference and _version()) or None
    suite = beside.joined(version, last) if version else None
    records, rows = (last, board(last)) if suite is None else (suite.records, list(suite.rows))
    standings = list(suite.standings) if suite else []
    if only:
        rows = [row for row in rows if any(text in row.defense for text in only)]
        standings = [each for each in standings if any(text in each.defense for text in only)]
    if attacks:
        if any((html, markdown, csv_file, latex_file, picture, only)):
            raise click.UsageError("--attacks prints a table or --json; leave --only and the files out")
        _attacks(records, as_json=as_json)
        return
    if html is not None:
        names = ", ".join(run.resolve().name for run in records_of)  # a published page names no folders
        thumbnails = reconstructions.thumbnails(rows, folders, private=include_pictures)
        context = [*([f"Reference: {version}"] if version else []), *([f"Runs: {names}"] if names else [])]
        title = "Gradient leakage leaderboard"
        shown = strips_of(records, folders, version) if standings else {}
        _write(
            html,
            page.render(rows, thumbnails=thumbnails, title=title, context=context, standings=standings, strips=shown),
        )
    if markdown is not None:
        over = standings_form.markdown(standings) + "\n" if standings else ""
        _write(markdown, over + markdown_form.board(rows))
    if csv_file is not None:
        _write(csv_file, standings_form.comma_separated(standings) if standings else csv_form.board(rows))
    if latex_file is not None:
        _write(latex_file, latex.board(rows, standings))
    if picture is not None and standings:
        _draw_standings(picture, standings, records, folders, str(version))
    elif picture is not None:
        _draw(picture, rows, folders, point, include_pictures)
    runs_shown = [str(run) for run in records_of]
    if as_json:
        common.print_json(
            {
                "runs": runs_shown,
                "reference": version,
                "standings": [each.json() for each in standings],
                "rows": [row.json() for row in rows],
            }
        )
    elif not rows:
        which = " with --only" if only else ""
        click.echo(f"no attack in {', '.join(runs_shown)}: there is nothing to rank{which}")
    elif not any((html, markdown, csv_file, latex_file, picture)):
        console = common.console()
        if standings:
            console.print(standings_form.terminal(standings, f"{version}: standings over its conditions"))
        if not standings or conditions:
            console.print(terminal.board(rows))


def _records(runs: tuple[Path, ...]) -> dict[Path, list[Record]]:
    """The records of each run folder."""
    folders = [checked_run(run) for run in runs] or [checked_run(None)]
    return {folder: lookup.compact_records(folder) for folder in folders}


def _version() -> str:
    """The newest suite that has reference results."""
    there = reference_store.versions()
    if not there:
        raise BenchError("no reference results ship with this bench; leave --reference out")
    return there[-1]


def _attacks(records: Sequence[Record], *, as_json: bool) -> None:
    ranks = attack_ranks(records)
    if as_json:
        common.print_json({"attacks": [each.json() for each in ranks]})
    elif not ranks:
        click.echo("no attack is done: there is nothing to rank")
    else:
        common.console().print(attack_ranks_form.terminal(ranks))


def _draw_standings(
    path: Path, standings: Sequence[Standing], records: Sequence[Record], folders: dict[str, Path], version: str
) -> None:
    drawn = poster.svg(standings, strips_of(records, folders, version), f"Gradient leakage, {version}")
    write_atomically(path, poster.FORMS[path.suffix.lower()](drawn))


def _draw(path: Path, rows: list[Row], folders: dict[str, Path], point: str, include_pictures: bool) -> None:
    lines = figure.strips(rows, folders, point=point, private=include_pictures)
    if not lines:
        raise BenchError(f"no examples to draw at {point}; give another --point, or (private data) --include-pictures")
    write_atomically(path, figure.FORMS[path.suffix.lower()](lines))


def _write(path: Path, text: str) -> None:
    write_atomically(path, text.encode())
    click.echo(f"{path}: {path.stat().st_size / 1e6:.1f} MB", err=True)


for _subcommand in (submission.export, submission.check, submission.import_command, submission.verify):
    command.add_command(_subcommand)
