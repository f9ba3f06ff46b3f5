"""`bench detect`: measure how often a client detects weights that an attack chose, together with the reconstructed
share."""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.status import Status

from bench.cli import common

if TYPE_CHECKING:
    from bench.cell import AttackCell
    from bench.detection.measure import Bench, Caught, Row
    from bench.detection.thresholds import Null
    from bench.record.schema import Share


@click.command()
@common.run
@common.plugins
@common.data_dir
@click.option(
    "--trials", type=click.IntRange(1), default=20, show_default=True, help="Received models per attack and round."
)
@click.option(
    "--models",
    type=click.IntRange(200),
    default=200,
    show_default=True,
    help="Honest models per training stage, for the thresholds.",
)
@click.option("--thresholds", type=common.PATH, help="File of thresholds [default: measured once, in RUN/detection/].")
@click.option("--picture", type=common.PATH, help="Draw caught rounds against reconstructed examples: .svg or .png.")
@common.json_flag
def command(
    run: Path,
    data_dir: Path | None,
    trials: int,
    models: int,
    thresholds: Path | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Measure how often an honest client detects model weights that an attack chose.

    RUN has undefended records of attacks with the grant server = "weights" or "layers", such as those of the preset
    server. Each attack chooses weights in the first, the second and a late round of other federations. A client scores
    the received model by every detector. Thresholds allow 5 % false alarms among 200 honest models of the first round,
    and among 200 of later rounds: for each detector, and for all together.

    \b
    bench run --matrix server && bench detect --picture caught.svg
    bench detect --plugin my_detector.py
    """
    from bench.answer.context import Memory, RunContext
    from bench.detection import measure
    from bench.detection import picture as drawing
    from bench.detection.sentences import sentences
    from bench.record import store

    if picture is not None:
        drawing.check(picture)
    with Status("", console=Console(stderr=True)) as status:
        bench = measure.Bench(
            detectors=measure.detectors(),
            context=RunContext(run=run, data_dir=data_dir),
            memory=Memory(),
            trials=trials,
            tick=status.update,
        )
        nulls: dict[str, Null] = {}

        def null(cell: "AttackCell") -> "Null":
            return _null(cell, bench, models, thresholds, nulls)

        rows = measure.rows(measure.crafted(store.records(run)), bench, null)
    lines = sentences(rows)
    if as_json:
        content = [dataclasses.asdict(row) for row in rows]
        common.print_json({"rows": content, "thresholds": _thresholds(nulls), "sentences": lines})
    else:
        show(rows)
        click.echo("\n" + "\n".join(lines))
    if picture is not None:
        drawing.save(rows, picture)
        click.echo(f"drawn: {picture}", err=as_json)


def _null(cell: "AttackCell", bench: "Bench", models: int, given: Path | None, nulls: "dict[str, Null]") -> "Null":
    """Return the thresholds for the cell's setting: from the file `given`, or measured once on `models` honest models
    in each stage and kept in the run folder."""
    from bench.detection import measure
    from bench.detection import thresholds as files

    names = sorted(bench.detectors)
    setting = f"{cell.dataset.name}-{cell.model.name}-{cell.federated.batch}"
    text = repr((cell.dataset.sha256, str(cell.model), cell.federated, names, models))
    path = given or bench.context.run / "detection" / f"{setting}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
    if given is None and not path.is_file():
        measure.null_of(cell, bench, models).write(path)
    nulls[str(path)] = files.read(path, cell, names)
    return nulls[str(path)]


def show(rows: "Sequence[Row]") -> None:
    """Print a table of `rows`, attacks by a malicious server that chooses the weights: a line for each attack and
    round, with the share of received models that all detectors together detect, and the share for each detector with an
    alarm."""
    from bench.detection.thresholds import UNION

    lines = []
    for row in rows:
        for number, (name, caught) in enumerate(row.caught.items()):
            first = (row.attack, _reconstructed(row)) if number == 0 else ("", "")
            shown = _interval(caught.share(UNION)), _by_detector(caught), _accuracy(caught), _later(caught)
            lines.append((*first, name, *shown))
    common.print_table(("attack", "reconstructed", "round", "caught", "by detector", "accuracy", "later"), lines)
    click.echo("\nIn %: reconstructed without a defense, or named (n); caught by all detectors together at 5 % false")
    click.echo(
        "alarms, with a 95 % interval, and by each detector; test accuracy, honest → received model. Later: test"
    )
    click.echo(
        "accuracy five rounds after the honest model → if the server takes it back, and if it trains the received"
    )
    click.echo("model.")
    if added := max(row.added_bytes for row in rows):
        click.echo(f"Inserted layers add {added / 1e6:.1f} MB to a model and to an update.")
    click.echo(f"The detectors take {max(row.seconds for row in rows):.1f} s for a received model.")


def _by_detector(caught: "Caught") -> str:
    from bench.detection.thresholds import UNION

    counts = {name: count for name, count in caught.alarms.items() if count and name != UNION}
    names = sorted(counts, key=lambda name: -counts[name])
    return ", ".join(f"{name} {_percent(caught.share(name).value)}" for name in names)


def _reconstructed(row: "Row") -> str:
    return _percent(row.reconstructed.value) if row.named is None else f"{_percent(row.named.value)} (n)"


def _interval(share: "Share") -> str:
    return f"{_percent(share.value)} ({_percent(share.low)}–{_percent(share.high)})"


def _accuracy(caught: "Caught") -> str:
    return f"{_percent(caught.honest)} → {_percent(caught.attacked)}"


def _later(caught: "Caught") -> str:
    back, attacked = _percent(caught.later_back), _percent(caught.later_attacked)
    return f"{_percent(caught.later_honest)} → {back}, {attacked}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def _thresholds(nulls: "dict[str, Null]") -> list[dict[str, Any]]:
    return [
        {
            "file": path,
            **{
                stage: {name: null.threshold(stage, name) for name in null.detectors} | {"models": null.count(stage)}
                for stage in null.scores
            },
        }
        for path, null in nulls.items()
    ]
