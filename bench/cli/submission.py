"""`bench leaderboard export|check|import|verify`: pack a run's records into a submission file, and check or verify such
files."""

import sys
from collections import Counter
from pathlib import Path

import click

from bench.cli import common
from bench.sanitize import sanitize
from bench.submission.check import FailedCheck, Report
from bench.submission.check import check as report_on
from bench.submission.export import export as write
from bench.submission.importing import import_
from bench.submission.manifest import Manifest


@click.command()
@click.argument("run", type=common.PATH)
@click.argument("file", type=common.PATH)
@click.option("--include-pictures", is_flag=True, help="Also export examples of private data.")
@click.option("--no-arrays", is_flag=True, help="Export no arrays: a smaller file that allows fewer checks.")
@click.option("--defense", "defenses", multiple=True, metavar="NAME", help="Export only this defense [repeatable].")
@click.option("--name", default="", metavar="TEXT", help="Name of the submitter.")
@click.option("--url", default="", metavar="URL", help="Address of a paper, or of the plug-in's code.")
@click.option("--when", default="", metavar="TEXT", help="Date of the submission, as text.")
@common.json_flag
def export(
    run: Path,
    file: Path,
    include_pictures: bool,
    no_arrays: bool,
    defenses: tuple[str, ...],
    name: str,
    url: str,
    when: str,
    as_json: bool,
) -> None:
    """Write the records (results of cells) of RUN to FILE, a zip that another machine can check, import and rank.

    The zip holds unchanged records, the run's settings and the paths of its weights files. Private examples are left
    out.

    \b
    bench leaderboard export runs/standard mine.zip --name "J. Doe" --url https://example.org/paper
    """
    report = write(
        run,
        file,
        include_pictures=include_pictures,
        arrays=not no_arrays,
        defenses=defenses or None,
        name=name,
        url=url,
        when=when,
    )
    _print(report, as_json, f"{file}: {file.stat().st_size / 2**20:.1f} MiB")


@click.command()
@click.argument("file", type=common.PATH)
@common.json_flag
def check(file: Path, as_json: bool) -> None:
    """Check a submission file: form, hashes, records, and whether its figures agree with each other.

    No cell (experiment) is run. Exit code 1 for a failed check."""
    report = report_on(file)
    _print(report, as_json, f"{file}: {'ok' if report.ok else 'does not pass'}")
    sys.exit(0 if report.ok else 1)


@click.command(name="import")
@click.argument("file", type=common.PATH)
@click.argument("run", type=common.PATH)
@common.json_flag
def import_command(file: Path, run: Path, as_json: bool) -> None:
    """Copy the records (results of cells) of a submission file into RUN, a new folder or a folder with records.

    The file is checked first. Existing records stay; a differing record of the same cell goes to RUN/kept/. Exit code 1
    for a failed check.

    \b
    bench leaderboard import theirs.zip runs/board
    bench leaderboard runs/board
    """
    try:
        result = import_(file, run)
    except FailedCheck as error:
        _print(error.report, as_json, f"{file}: does not pass, nothing was imported")
        sys.exit(1)
    if as_json:
        common.print_json(result.json())
        return
    for id_ in result.aside:
        click.echo(f"aside   {id_[:8]} differs from {run}'s own record, which stays")
    for line in result.suites:
        click.echo(line)
    counts = f"{len(result.new)} records new, {len(result.same)} there before, {len(result.aside)} aside"
    click.echo(f"{counts}: {run}")


@click.command()
@click.argument("file", type=common.PATH)
@click.option("--cells", type=click.IntRange(1), default=12, show_default=True, help="Number of cells to run again.")
@click.option(
    "--seed", type=click.IntRange(0), help="Seed of the drawn cells, to repeat a verification [default: random]."
)
@common.data_dir
@click.option("--weights", type=common.PATH, metavar="FOLDER", help="Folder with weights files, matched by content.")
@common.device
@common.jobs
@click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="FILE|MODULE",
    help="Register the submitter's entries: a Python file or a module.",
)
@click.option("--out", type=common.PATH, metavar="FOLDER", help="Folder for the new records.")
@common.json_flag
def verify(
    file: Path,
    cells: int,
    seed: int | None,
    data_dir: Path | None,
    weights: Path | None,
    device: str,
    jobs: int | None,
    plugins: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """Repeat random cells (experiments) of a submission file, also with new seeds, and compare success rates.

    A --plugin runs the submitter's code here: read the code first. Exit code 0: all cells agree. 1: a cell differs, or
    a failed check. 3: inconclusive.

    \b
    bench leaderboard verify theirs.zip --cells 16 --plugin their_defense.py
    """
    from bench.submission.verify import verify as run_again
    from bench.sweep.session import chosen_device, default_jobs

    try:
        result = run_again(
            file,
            cells=cells,
            seed=seed,
            data_dir=data_dir,
            device=chosen_device(device),
            jobs=jobs or default_jobs(),
            plugins=plugins,
            out=out,
            weights=weights,
            on_line=lambda line: click.echo(line, err=True),
        )
    except FailedCheck as error:
        _print(error.report, as_json, f"{file}: does not pass its check, nothing was run")
        sys.exit(1)
    if as_json:
        common.print_json(result.json())
        sys.exit(result.exit_code)
    click.echo(f"{file}: SHA-256 {result.sha256}")
    for line in (*(f"code  {line}" for line in result.changes), *result.notes, *result.lines()):
        click.echo(line)
    words = {"agrees": "nothing differs", "differs": "it differs", "inconclusive": "it is inconclusive"}
    click.echo(
        f"{words[result.outcome]}: {len(result.verdicts)} of {result.groups} groups drawn, intervals of "
        f"{result.level:.2%} each, 95 % together; --seed {result.seed} draws the same again"
    )
    sys.exit(result.exit_code)


def _print(report: Report, as_json: bool, summary: str) -> None:
    if as_json:
        common.print_json(report.json())
        return
    for line in report.findings:
        click.echo(f"finding  {sanitize(line, 300)}")
    if report.manifest is not None:
        _print_manifest(report, report.manifest)
    click.echo(f"{summary}, SHA-256 {report.sha256}")


def _print_manifest(report: Report, manifest: Manifest) -> None:
    author = " · ".join(text for text in (manifest.name, manifest.url, manifest.when) if text)
    click.echo(f"protocol {manifest.protocol}, bench {manifest.bench}{f', from {author}' if author else ''}")
    for suite in manifest.suites:
        ranking = "ranked" if suite.ranked else f"unranked: {'; '.join(suite.why_not)}"
        click.echo(f"suite {suite.suite}: {ranking} (their word)")
    counts = sorted(Counter(manifest.left_out.values()).items())
    missing = ", ".join(f"{count} without ({reason})" for reason, count in counts)
    files = f"{len(report.records)} records, {len(report.arrays)} files of arrays"
    click.echo(f"{files}; {missing}" if missing else files)
