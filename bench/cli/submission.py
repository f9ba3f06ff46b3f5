"""`bench leaderboard export|check|import|verify`: a result as one file, and whether to believe it."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from bench.submission.check import Checked

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("run", type=_FILE)
@click.argument("file", type=_FILE)
@click.option("--include-pictures", is_flag=True, help="Let pictures of private data out, too.")
@click.option("--no-arrays", is_flag=True, help="Leave all pictures out: a small file, checked less.")
@click.option("--defense", "defenses", multiple=True, metavar="NAME", help="Only this one [repeatable].")
@click.option("--name", default="", metavar="TEXT", help="Who submits it.")
@click.option("--url", default="", metavar="URL", help="A paper, or the plug-in's code.")
@click.option("--when", default="", metavar="TEXT", help="The date, as you would have it read.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def export(
    run: Path, file: Path, include_pictures: bool, no_arrays: bool, defenses: tuple[str, ...],
    name: str, url: str, when: str, as_json: bool,
) -> None:  # fmt: skip
    """Write the records of RUN to FILE, a zip that another machine can check, import and rank.

    Records go in as they are, with the settings of the run and the paths of its weights files.  Pictures of
    data marked private stay here.

    \b
    bench leaderboard export runs/standard mine.zip --name "J. Doe" --url https://example.org/paper
    """
    from bench.submission.export import export as write

    found = write(
        run, file, include_pictures=include_pictures, arrays=not no_arrays, defenses=defenses or None,
        name=name, url=url, when=when,
    )  # fmt: skip
    _report(found, as_json, f"{file}: {file.stat().st_size / 2**20:.1f} MiB")


@click.command()
@click.argument("file", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(file: Path, as_json: bool) -> None:
    """Check a submission: form, hashes, records, and figures against one another.

    Nothing is run.  The exit code is 1 where something does not fit.
    """
    from bench.submission.check import check as look

    found = look(file)
    _report(found, as_json, f"{file}: {'ok' if found.ok else 'does not pass'}")
    sys.exit(0 if found.ok else 1)


@click.command(name="import")
@click.argument("file", type=_FILE)
@click.argument("run", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def import_command(file: Path, run: Path, as_json: bool) -> None:
    """Bring the records of a submission into RUN, a new folder or one with records.

    They are checked first.  A record that is there stays; one that answers the same question otherwise is
    kept aside in RUN/kept/.  The exit code is 1 where the file does not pass its check.

    \b
    bench leaderboard import theirs.zip runs/board
    bench leaderboard runs/board
    """
    from bench.submission.check import FailedCheck
    from bench.submission.importing import import_

    try:
        found = import_(file, run)
    except FailedCheck as error:
        _report(error.checked, as_json, f"{file}: does not pass, nothing was imported")
        sys.exit(1)
    if as_json:
        click.echo(json.dumps(found.json(), indent=1))
        return
    for id_ in found.aside:
        click.echo(f"aside   {id_[:8]} answers otherwise than {run}'s own record, which stays")
    for line in found.suites:
        click.echo(line)
    click.echo(
        f"{len(found.new)} records new, {len(found.same)} there before, {len(found.aside)} aside: {run}"
    )


@click.command()
@click.argument("file", type=_FILE)
@click.option("--cells", type=click.IntRange(1), default=12, show_default=True, help="How many to run again.")
@click.option("--seed", type=click.IntRange(0), help="Draw as a former verification did [default: by lot].")
@click.option("--data-dir", type=_FILE, help="Folder of data sets; else BENCH_DATA.")
@click.option("--weights", type=_FILE, metavar="FOLDER", help="Where to look for weights files, by content.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--jobs", type=click.IntRange(1), help="Worker processes, one thread each [default: cores].")
@click.option("--plugin", "plugins", multiple=True, metavar="FILE|MODULE", help="The submitter's entries.")
@click.option("--out", type=_FILE, metavar="FOLDER", help="Keep the new records there.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(
    file: Path, cells: int, seed: int | None, data_dir: Path | None, weights: Path | None, device: str,
    jobs: int | None, plugins: tuple[str, ...], out: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Run cells of a submission again, drawn now and under fresh seeds, and compare the rates of success.

    A --plugin is the submitter's code and runs here: read it first.  Exit code 0 where all that was drawn
    agrees, 1 where something differs or the file does not pass its check, 3 where it cannot be told.

    \b
    bench leaderboard verify theirs.zip --cells 16 --plugin their_defense.py
    """
    from bench.submission.check import FailedCheck
    from bench.submission.verify import verify as run_again
    from bench.sweep.session import chosen_device, default_jobs

    try:
        found = run_again(
            file, cells=cells, seed=seed, data_dir=data_dir, device=chosen_device(device),
            jobs=jobs or default_jobs(), plugins=plugins, out=out, weights=weights,
            told=lambda line: click.echo(line, err=True),
        )  # fmt: skip
    except FailedCheck as error:
        _report(error.checked, as_json, f"{file}: does not pass its check, nothing was run")
        sys.exit(1)
    if as_json:
        click.echo(json.dumps(found.json(), indent=1))
        sys.exit(found.exit_code)
    click.echo(f"{file}: SHA-256 {found.sha256}")
    for line in (*(f"source  {line}" for line in found.sources), *found.notes, *found.lines()):
        click.echo(line)
    told = {"agrees": "nothing differs", "differs": "it differs", "cannot tell": "it cannot be told"}
    click.echo(
        f"{told[found.outcome]}: {len(found.verdicts)} of {found.groups} groups drawn, intervals of "
        f"{found.level:.2%} each, 95 % together; --seed {found.seed} draws the same again"
    )
    sys.exit(found.exit_code)


def _report(found: "Checked", as_json: bool, said: str) -> None:
    from bench.sanitize import sanitize

    if as_json:
        click.echo(json.dumps(found.json(), indent=1))
        return
    for line in found.findings:
        click.echo(f"finding  {sanitize(line, 300)}")
    manifest = found.manifest
    if manifest is not None:
        whose = " · ".join(text for text in (manifest.name, manifest.url, manifest.when) if text)
        click.echo(
            f"protocol {manifest.protocol}, bench {manifest.bench}{f', from {whose}' if whose else ''}"
        )
        for suite in manifest.suites:
            why = "; ".join(suite.why_not)
            click.echo(
                f"suite {suite.suite}: {'ranked' if suite.ranked else f'unranked: {why}'} (their word)"
            )
        counts: dict[Any, int] = {}
        for reason in manifest.left_out.values():
            counts[reason] = counts.get(reason, 0) + 1
        left = ", ".join(f"{count} without ({reason})" for reason, count in sorted(counts.items()))
        click.echo(
            f"{len(found.records)} records, {len(found.arrays)} files of pictures{f'; {left}' if left else ''}"
        )
    click.echo(f"{said}, SHA-256 {found.sha256}")
