"""`bench audit`: print a measured lower bound of ε and the claimed ε; exit code 1 if the measured bound is larger."""

import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import Progress

from bench.cli import common, completion

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.audit.measure import Plan, Score
    from bench.audit.planted import Subject
    from bench.audit.result import Audit


@click.command()
@click.argument("pipeline", required=False, metavar="[FILE.py:FUNCTION|pkg.mod:FUNCTION]")
@click.option(
    "--defense",
    "defenses",
    multiple=True,
    metavar="NAMES",
    shell_complete=completion.entries("defenses", several=True),
    help="Defenses with parameters, such as dp-sgd:sigma=1,fed-sdp [default: all with a proved ε].",
)
@common.plugins
@click.option(
    "--runs",
    type=click.IntRange(1),
    default=2000,
    show_default=True,
    help="Runs of the defense for each of the two neighbouring data sets.",
)
@click.option("--delta", type=float, default=1e-5, show_default=True, help="δ of the (ε, δ) guarantee.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Confidence of each bound.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the runs.")
@click.option("--epsilon", type=float, help="ε that the pipeline claims at δ.")
@click.option("--multiplier", type=float, help="Noise deviation over sensitivity that the pipeline claims (Gaussian).")
@click.option(
    "--board",
    type=common.PATH,
    metavar="FOLDER",
    help="Audit the defenses of the trade-off in FOLDER (a run of `bench calibrate`) at L1; resumable.",
)
@click.option("--score", metavar="FILE.py:FUNCTION", help="Exact likelihood ratio of the pipeline [default: learned].")
@common.json_flag
def command(
    pipeline: str | None,
    defenses: Sequence[str],
    runs: int,
    delta: float,
    confidence: float,
    seed: int,
    epsilon: float | None,
    multiplier: float | None,
    board: Path | None,
    score: str | None,
    as_json: bool,
) -> None:
    """Measure a lower bound of ε, from many runs on two neighbouring data sets (worlds).

    For a defense, the worlds differ in worst-case gradients in a round of the bench. A PIPELINE is a function of the
    world (0 or 1) and a seed that returns all released arrays. Exit code 1: a bound refutes the valid or claimed ε.

    --board writes audits.json beside the trade-off, and `bench advise` shows these figures.

    \b
    bench audit --defense dp-sgd:sigma=1
    bench audit --plugin my_defense.py --defense my-defense
    bench audit my_loop.py:step --multiplier 1
    bench audit --board runs/tradeoff --runs 5000
    """
    from bench.audit.measure import Plan
    from bench.errors import BenchError

    claims = {"--epsilon": epsilon, "--multiplier": multiplier, "--score": score}
    given = [option for option, value in claims.items() if value is not None]
    if board is not None and (pipeline is not None or defenses or given):
        raise BenchError("--board audits the defenses of a trade-off; give no pipeline, --defense or claim")
    if pipeline is not None and defenses:
        raise BenchError("give a pipeline or --defense, not both")
    if pipeline is None and given:
        raise BenchError(f"{given[0]} belongs to a pipeline; a defense states its own claim")
    plan = Plan(runs=runs, delta=delta, confidence=confidence, seed=seed)
    if board is not None:
        sys.exit(_board(board, plan, as_json))
    if pipeline is not None:
        audits = [_pipeline(pipeline, plan, epsilon=epsilon, multiplier=multiplier, score=score)]
    else:
        audits = _defenses(defenses, plan)
    if as_json:
        common.print_json([each.as_json() for each in audits])
    else:
        show(audits, plan)
    sys.exit(any(each.violated for each in audits))


def _pipeline(
    text: str, plan: "Plan", *, epsilon: float | None, multiplier: float | None, score: str | None
) -> "Audit":
    from bench.audit import foreign
    from bench.audit.measure import seconds_of

    function = foreign.load(text)
    chosen: Score | None = foreign.load(score) if score is not None else None  # type: ignore[assignment]
    foreign.claimed(epsilon, multiplier, plan.delta)
    _say(text, plan, seconds_of(foreign.released(function), plan))
    with _bar(plan.runs) as tick:
        return foreign.audit(
            function,
            runs=plan.runs,
            delta=plan.delta,
            epsilon=epsilon,
            multiplier=multiplier,
            confidence=plan.confidence,
            score=chosen,
            seed=plan.seed,
            name=text,
            tick=tick,
        )


def _defenses(typed: Sequence[str], plan: "Plan") -> "list[Audit]":
    from bench.audit import planted
    from bench.audit.measure import seconds_of

    audits: list[Audit] = []
    for subject in _subjects(typed):
        pipeline, places = planted.pipeline_of(subject)
        _say(subject.name, plan, seconds_of(pipeline, plan))
        for point, reason in planted.not_audited(subject).items():
            click.echo(f"  {point}: not audited, {reason}", err=True)
        with _bar(plan.runs) as tick:
            audits += planted.audit_defense(subject, pipeline, places, plan, tick)
    return audits


def _board(folder: Path, plan: "Plan", as_json: bool) -> bool:
    """Audit the defenses of the trade-off in `folder`; return whether a bound refutes a valid ε."""
    from dataclasses import asdict

    from bench.audit.board import audit_board
    from bench.audit.result import VIOLATED
    from bench.record import audits, tradeoff

    found = audit_board(folder, tradeoff.read(folder), plan, lambda line: click.echo(line, err=True))
    if as_json:
        common.print_json([asdict(each) for each in found])
    else:
        click.echo(f"written: {folder / audits.FILE}, {len(found)} audits")
    for each in found:
        if each.refuted:
            click.echo(f"{VIOLATED}: {each.setting} at {each.point}: {each.proven:.3g} > {each.valid:.3g}", err=True)
    return any(each.refuted for each in found)


def _subjects(typed: Sequence[str]) -> "Iterator[Subject]":
    from bench.audit import planted
    from bench.matrix.typed import entries, split
    from bench.registry import entries as registry

    if typed:
        for each in entries(typed, "--defense"):
            name, params = split(each)
            yield planted.subject(name, registry.instance("defenses", name, params))
        return
    for name in registry.names("defenses"):
        defense = registry.instance("defenses", name, {})
        if planted.has_mechanism(defense):
            yield planted.subject(name, defense)


def _say(name: str, plan: "Plan", seconds: float) -> None:
    click.echo(f"{name}: 2 × {plan.runs} runs, about {seconds:.0f} s of a core", err=True)


@contextmanager
def _bar(runs: int) -> "Iterator[Callable[[], None]]":
    with Progress(transient=True, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("runs", total=runs)
        yield lambda: progress.advance(task)


def show(audits: "Sequence[Audit]", plan: "Plan") -> None:
    """Print a table of the audits (a claimed ε and the measured lower bound of ε in each row), then each refuted claim.
    Interception points with equal values share a row. `plan` gives the number of runs and δ, for the last lines."""
    from bench.audit.foreign import WORLDS
    from bench.audit.result import VIOLATED

    foreign = all(each.worlds == WORLDS for each in audits)
    heads = ("pipeline", "claimed", "audited ≥", "if Gaussian ≥", "confidence", "runs", "seconds")
    rows: dict[tuple[str, ...], list[str]] = {}
    for each in audits:
        claim = _number(each.claim.epsilon if each.claim else None)
        figures = (_bound(each, plan), _number(each.gaussian), f"{each.confidence:.0%}", str(each.runs))
        stated = () if foreign else (_number(each.stated),)
        rows.setdefault((each.name, *stated, claim, *figures, f"{each.seconds:.0f}"), []).append(each.point)
    if foreign:
        common.print_table(heads, [*rows])
    else:
        named = ("defense", "point", "stated", "valid", *heads[2:])
        common.print_table(named, [(row[0], ", ".join(points), *row[1:]) for row, points in rows.items()])
    click.echo(f"\nε at δ = {plan.delta:g}; {plan.runs} runs in each world prove at most {plan.largest:.3g}.")
    click.echo("If Gaussian: by the Gaussian mechanism's trade-off, an assumption.  docs/AUDIT.md: meaning, limits.")
    for each in audits:
        if each.violated:
            click.echo(f"\n{VIOLATED}: {each.name} at {each.point}: {each.evidence}")
            click.echo(f"  worlds: {each.worlds}")


def _bound(audit: "Audit", plan: "Plan") -> str:
    most = audit.epsilon.value >= plan.largest * (1 - 1e-9)
    return f"{audit.epsilon.value:.3g}{' (most)' if most else ''}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
