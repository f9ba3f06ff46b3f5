"""`bench calibrate`: search the weakest strength of a defense that hides examples, for each interception point, and its
accuracy."""

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import click

from bench.cli import common, completion

MATRIX = "tradeoff"  # preset of the suite `standard`
FOLDER = Path("runs/tradeoff")


@click.command()
@click.option(
    "--defense",
    "defenses",
    multiple=True,
    required=True,
    metavar="NAMES",
    shell_complete=completion.entries("defenses", several=True),
    help="Defense families with their fixed parameters, such as dp-sgd:clip=.5,gaussian:at=client.",
)
@click.option(
    "--matrix",
    "matrix_name",
    default=MATRIX,
    show_default=True,
    metavar="FILE|PRESET",
    help="Federation and attacks: a matrix file, or name of a preset.",
)
@click.option("--out", type=common.PATH, default=FOLDER, show_default=True, help="Run folder.")
@common.data_dir
@common.device
@common.jobs
@common.plugin_files
@common.tracking
@common.json_flag
def command(
    defenses: Sequence[str],
    matrix_name: str,
    out: Path,
    data_dir: Path | None,
    device: str,
    jobs: int | None,
    plugins: tuple[str, ...],
    tracking_uri: str | None,
    no_tracking: bool,
    as_json: bool,
) -> None:
    """Search a defense's weakest strength at which at most chance + 5 points (L1) or 20 % (L2) of examples are named.

    An example is named if the attacker picks it among candidates. L3: at most 5 % are reconstructed. For each
    interception point the result is the weakest strength whose 95 % band meets the level, with test accuracy and ε, on
    other victims and seeds. The same command continues an interrupted calibration. At the end, MLflow gets the curves
    together with the shipped families.

    \b
    bench calibrate --defense gaussian:at=client,prune:at=client
    bench calibrate --plugin my_defense.py --defense round-off
    """
    calibrate(
        defenses,
        matrix_name,
        out=out,
        data_dir=data_dir,
        device=device,
        jobs=jobs,
        plugins=plugins,
        tracking_uri=tracking_uri,
        tracked=not no_tracking,
        as_json=as_json,
    )


def calibrate(
    defenses: Sequence[str],
    matrix_name: str,
    *,
    out: Path,
    data_dir: Path | None,
    device: str,
    jobs: int | None,
    plugins: tuple[str, ...],
    tracking_uri: str | None,
    tracked: bool,
    as_json: bool,
    ranks: bool = False,
) -> None:
    """Run a calibration of defenses (a search of the weakest strength that hides examples), write the trade-off of
    leakage and accuracy into the run folder, and print tables and findings.

    - `defenses`: defenses as typed after `--defense`.
    - `matrix_name`: matrix file or preset with the attacks and trainings.
    - `out`: run folder; finished parts in it are not repeated.
    - `data_dir`: folder of data sets; None for the default folder.
    - `device`: torch device.
    - `jobs`: number of processes; None takes one per core.
    - `plugins`: files with the user's entries.
    - `tracking_uri`: address of the MLflow store; None takes the default store.
    - `tracked`: True uploads the records to MLflow.
    - `as_json`: True prints the trade-off as JSON in place of tables.
    - `ranks`: True prints the defenses' ranks among the shipped families in place of tables."""
    from bench.cli import advise, calibrating
    from bench.cli.conclusion import upload_line
    from bench.record import origin
    from bench.record import tradeoff as results
    from bench.tracking.following import Follower

    follower = Follower(out, tracking_uri) if tracked else None
    tradeoff = calibrating.run(
        defenses,
        matrix_name,
        out=out,
        data_dir=data_dir,
        device=device,
        jobs=jobs,
        plugins=plugins,
        say=partial(click.echo, err=True),
    )
    path = results.write(out, tradeoff)
    origin.save(out, " ".join(["bench calibrate", *(f"--defense {each}" for each in defenses)]))
    waiting = None
    if follower is not None:
        with closing(follower):
            follower.start()
            waiting = follower.finish()
    if as_json:
        click.echo(path.read_text("utf-8"), nl=False)
        return
    if ranks:
        advise.show_ranks(tradeoff)
    else:
        for listener in dict.fromkeys(advise.listeners(tradeoff)):
            advise.show(tradeoff, listener, "L1")
    click.echo(f"written to {path}; `bench advise {out}` compares it with the shipped figures")
    uploaded = follower.uploaded if follower else None
    click.echo(f"`bench ui {out}`: MLflow: {upload_line(out, tracking_uri, uploaded, waiting)}")
