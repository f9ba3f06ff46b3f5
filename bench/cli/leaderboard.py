"""`bench leaderboard`: print the ranking of runs, and export, check, import or verify submissions."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from bench.cli import common, lookup, submission
from bench.errors import BenchError
from bench.leaderboard.attack_ranks import attack_ranks
from bench.leaderboard.board import Row, board
from bench.leaderboard.forms import attack_ranks as attack_ranks_form
from bench.leaderboard.forms import attackers as attackers_form
from bench.leaderboard.forms import csv as csv_form
from bench.leaderboard.forms import figure, latex, page, poster, reconstructions, terminal
from bench.leaderboard.forms import markdown as markdown_form
from bench.leaderboard.forms import standings as standings_form
from bench.leaderboard.standings import Standing
from bench.matrix.suites import ATTACKS
from bench.record.files import write_atomically
from bench.record.runs import checked_run
from bench.record.schema import Record
from bench.reference import attackers, beside
from bench.reference import store as reference_store
from bench.reference.pictures import strips_of


class _Board(click.Group):
    """Let `bench leaderboard RUN` mean `bench leaderboard show RUN`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = args and (args[0] in self.list_commands(ctx) or args[0] in ("-h", "--help"))
        return super().parse_args(ctx, args if named else ["show", *args])


@click.group(cls=_Board)
def command() -> None:
    """Rank defenses by protection and cost; export, check, import and verify results.

    \b
    bench leaderboard                       the newest run below runs/ (the same as `show`)
    bench leaderboard runs/a runs/b         several runs in a single ranking
    bench leaderboard --html board.html     a page for offline use
    bench leaderboard --reference           the shipped reference results
    bench leaderboard show --help           all options of `show`
    """


@command.command()
@click.argument("runs", nargs=-1, type=common.PATH)
@click.option("--only", multiple=True, metavar="TEXT", help="Show only defenses whose text contains TEXT [repeatable].")
@click.option(
    "--reference/--no-reference",
    default=None,
    help="Add the shipped reference results [default: for runs of a suite with references].",
)
@click.option(
    "--suite",
    type=click.Choice(("standard", ATTACKS)),
    help="Without RUNS: show the reference results of defenses [default] or of attacks.",
)
@click.option("--conditions", is_flag=True, help="Also print a table for each condition of a suite.")
@click.option("--attacks", is_flag=True, help="Rank attacks, not defenses, in each condition.")
@click.option("--html", type=common.PATH, help="Write a page that opens offline.")
@click.option("--markdown", type=common.PATH, help="Write the result as Markdown.")
@click.option("--csv", type=common.PATH, help="Write the board as CSV.")
@click.option("--latex", type=common.PATH, help="Write the board as a LaTeX table for booktabs.")
@click.option(
    "--picture",
    type=common.PATH,
    help="Draw victims and reconstructions, or the standings of a suite: .png, .svg or .pdf.",
)
@click.option("--point", default="type-2", show_default=True, help="Interception point of --picture.")
@click.option("--include-pictures", is_flag=True, help="Also show examples of private data.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with all points, attacks and flags.")
def show(
    runs: tuple[Path, ...],
    only: tuple[str, ...],
    reference: bool | None,
    suite: str | None,
    conditions: bool,
    attacks: bool,
    as_json: bool,
    **files: Any,
) -> None:
    """Show the ranking of RUNS (by default the newest below runs/).

    Each row is a defense on a data set, model and condition, with the worst case over attacks at each interception
    point, the best single attack, accuracy, ε and overhead. Incomplete rows rank below complete rows. For a suite,
    standings come first: a row for each defense over all conditions, with yours (▸) among the published defenses. For
    the suite `attacks`, a row for each attack."""
    wanted = _Files(**files)
    if (ranked := _attack_board(runs, suite, reference)) is not None:
        if wanted.of_defenses or only or conditions or attacks:
            raise click.UsageError(f"the suite {ATTACKS} has a table, --html, --markdown and --json; leave others out")
        _show_attack_board(ranked, runs, wanted, as_json=as_json)
        return
    shown = _board(runs, True if suite is not None and not runs and reference is None else reference)
    if attacks:
        if wanted.any or only:
            raise click.UsageError("--attacks prints a table or --json; leave --only and the files out")
        _print_attacks(shown.records, as_json=as_json)
        return
    shown = shown.only(only)
    _write_files(shown, wanted)
    if as_json:
        common.print_json(shown.json())
    elif not shown.rows:
        which = " with --only" if only else ""
        click.echo(f"no attack in {', '.join(map(str, shown.runs))}: there is nothing to rank{which}")
    elif not wanted.any:
        _print(shown, conditions=conditions)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """Files that the user wants from the board."""

    html: Path | None
    """Page; in all fields, None: not wanted."""
    markdown: Path | None
    """Markdown text."""
    csv: Path | None
    """Table with unrounded figures."""
    latex: Path | None
    """LaTeX tables."""
    picture: Path | None
    """Figure or standings as a picture."""
    point: str
    """Interception point shown in `picture`, if no standings are drawn."""
    include_pictures: bool
    """True shows examples from private data."""

    def __post_init__(self) -> None:
        if self.picture is not None and self.picture.suffix.lower() not in figure.FORMS:
            raise BenchError(f"--picture {self.picture}: it ends in {', '.join(figure.FORMS)}; rename it")

    @property
    def of_defenses(self) -> bool:
        """True if the user wants a file that only a ranking of defenses has, such as LaTeX tables."""
        return any((self.csv, self.latex, self.picture, self.include_pictures))

    @property
    def any(self) -> bool:
        return any((self.html, self.markdown, self.csv, self.latex, self.picture))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """The board for some `runs`, with its records, rows and standings. For a suite's runs, the board includes the
    shipped reference results."""

    runs: tuple[Path, ...]
    version: str | None
    """The suite version of the reference results; None without reference results."""
    records: Sequence[Record]
    folders: Mapping[str, Path]
    """Map from record id to run folder."""
    rows: list[Row]
    standings: list[Standing]

    def only(self, texts: Sequence[str]) -> "_Shown":
        if not texts:
            return self
        rows = [row for row in self.rows if any(text in row.defense for text in texts)]
        standings = [each for each in self.standings if any(text in each.defense for text in texts)]
        return replace(self, rows=rows, standings=standings)

    def strips(self) -> Mapping[str, bytes]:
        return strips_of(self.records, self.folders, self.version) if self.standings else {}

    def json(self) -> dict[str, Any]:
        return {
            "runs": [str(run) for run in self.runs],
            "reference": self.version,
            "standings": [each.json() for each in self.standings],
            "rows": [row.json() for row in self.rows],
        }


def _board(runs: tuple[Path, ...], reference: bool | None) -> _Shown:
    records_of = {} if reference and not runs else _records(runs)
    # a cell in several runs counts once, from the last run named
    last = tuple({record.cell.id: record for records in records_of.values() for record in records}.values())
    version = None if reference is False else beside.suite_of(records_of) or (reference and _version()) or None
    suite = beside.joined(version, last) if version else None
    return _Shown(
        runs=tuple(records_of),
        version=version,
        records=last if suite is None else suite.records,
        folders={record.id: run for run, records in records_of.items() for record in records},
        rows=board(last) if suite is None else list(suite.rows),
        standings=list(suite.standings) if suite else [],
    )


def _attack_board(runs: tuple[Path, ...], suite: str | None, reference: bool | None) -> attackers.Ranked | None:
    """Return the board of attacks if `suite` is `attacks`, or if all folders in `runs` ran that suite; None otherwise.
    `reference` False leaves the shipped records out; True and None keep them."""
    left_out = "the reference is left out" if reference is False else ""
    if suite == ATTACKS and not runs:
        if (ranked := attackers.ranked(without=left_out)) is None:
            raise BenchError(f"no reference results of {attackers.VERSION} ship with this bench; give the run's folder")
        return ranked
    if not runs and (suite is not None or reference):
        return None
    folders = [checked_run(run) for run in runs] or [checked_run(None)]
    whys = [attackers.unranked(folder) for folder in folders]
    if None in whys:
        return None
    records = {record.cell.id: record for folder in folders for record in lookup.compact_records(folder)}
    return attackers.ranked(records.values(), without=left_out or next((why for why in whys if why), ""))


def _show_attack_board(ranked: attackers.Ranked, runs: tuple[Path, ...], files: _Files, *, as_json: bool) -> None:
    title = f"{attackers.VERSION}: attacks over its conditions"
    second = [
        (f"second draw of victims, {victims.partition('-')[0]}", cross) for victims, (_, cross) in ranked.draws.items()
    ]
    crosses = [(title, ranked.cross), *second]
    if files.html is not None:
        suite = [f"Reference: {attackers.VERSION}"] if ranked.shipped else []
        names = ", ".join(run.resolve().name for run in runs)
        context = [*suite, *([f"Runs: {names}"] if names else [])]
        _write(files.html, page.render_attackers(crosses, context=context))
    if files.markdown is not None:
        tables = [f"## {heading}\n\n{attackers_form.markdown(cross)}" for heading, cross in crosses]
        _write(files.markdown, "\n".join(tables))
    if as_json:
        common.print_json(ranked.json())
    elif not files.any:
        for heading, cross in crosses:
            common.console().print(attackers_form.terminal(cross, heading))


def _write_files(shown: _Shown, files: _Files) -> None:
    rows, standings = shown.rows, shown.standings
    if files.html is not None:
        _write(files.html, _page(shown, private=files.include_pictures))
    if files.markdown is not None:
        over = standings_form.markdown(standings) + "\n" if standings else ""
        _write(files.markdown, over + markdown_form.board(rows))
    if files.csv is not None:
        _write(files.csv, standings_form.comma_separated(standings) if standings else csv_form.board(rows))
    if files.latex is not None:
        _write(files.latex, latex.board(rows, standings))
    if files.picture is not None:
        write_atomically(files.picture, _picture(shown, files, files.picture.suffix.lower()))


def _page(shown: _Shown, *, private: bool) -> str:
    names = ", ".join(run.resolve().name for run in shown.runs)  # a published page names no folders
    suite = [f"Reference: {shown.version}"] if shown.version else []
    return page.render(
        shown.rows,
        thumbnails=reconstructions.thumbnails(shown.rows, shown.folders, private=private),
        title="Gradient leakage leaderboard",
        context=[*suite, *([f"Runs: {names}"] if names else [])],
        standings=shown.standings,
        strips=shown.strips(),
    )


def _picture(shown: _Shown, files: _Files, form: str) -> bytes:
    if shown.standings:
        return poster.FORMS[form](poster.svg(shown.standings, shown.strips(), f"Gradient leakage, {shown.version}"))
    lines = figure.strips(shown.rows, shown.folders, point=files.point, private=files.include_pictures)
    if not lines:
        hint = "give another --point, or (private data) --include-pictures"
        raise BenchError(f"no examples to draw at {files.point}; {hint}")
    return figure.FORMS[form](lines)


def _print(shown: _Shown, *, conditions: bool) -> None:
    console = common.console()
    if shown.standings:
        title = f"{shown.version}: standings over its conditions"
        console.print(standings_form.terminal(shown.standings, title))
    if not shown.standings or conditions:
        console.print(terminal.board(shown.rows))


def _records(runs: tuple[Path, ...]) -> dict[Path, list[Record]]:
    folders = [checked_run(run) for run in runs] or [checked_run(None)]
    return {folder: lookup.compact_records(folder) for folder in folders}


def _version() -> str:
    there = reference_store.of_defenses(reference_store.versions())
    if not there:
        raise BenchError("no reference results ship with this bench; leave --reference out")
    return there[-1]


def _print_attacks(records: Sequence[Record], *, as_json: bool) -> None:
    ranks = attack_ranks(records)
    if as_json:
        common.print_json({"attacks": [asdict(each) for each in ranks]})
    elif not ranks:
        click.echo("no attack is done: there is nothing to rank")
    else:
        common.console().print(attack_ranks_form.terminal(ranks))


def _write(path: Path, text: str) -> None:
    write_atomically(path, text.encode())
    click.echo(f"{path}: {path.stat().st_size / 1e6:.1f} MB", err=True)


for _subcommand in (submission.export, submission.check, submission.import_command, submission.verify):
    command.add_command(_subcommand)
