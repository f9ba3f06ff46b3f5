"""`bench gate`: check, interactively or in CI, that no defense has become weaker than in a baseline."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from bench.cli import common, gate_history, gating, lookup
from bench.gate import baseline as baselines
from bench.gate import history as histories
from bench.gate import markdown as markdowns
from bench.gate import reports, revision, services
from bench.gate.verdict import Verdict, verdict
from bench.record import request
from bench.record.files import write_atomically
from bench.record.runs import checked_run


class _WithHistory(click.Command):
    """The command with `history` as a first word: a folder with this name is given as `./history`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] == ["history"]:
            return gate_history.command.make_context(f"{info_name} history", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, context: click.Context) -> Any:
        return super().invoke(context) if context.command is self else context.command.invoke(context)


@click.command(cls=_WithHistory)
@click.argument("run", type=common.PATH, required=False)
@click.option("--baseline", type=common.PATH, help="Baseline file.")
@click.option("--base", metavar="REVISION", help="Read baseline, matrix and margins from this git revision.")
@click.option(
    "--accept-baseline",
    metavar="REASON",
    help="With --base: compare with the checkout's changed baseline, for this reason.",
)
@click.option("--write-baseline", type=common.PATH, help="Write a baseline file from RUN, and end.")
@click.option(
    "--margin",
    "margins",
    multiple=True,
    metavar="METRIC=NUMBER",
    help="Tolerated change of a metric [default: the baseline's; with --write-baseline the usual] [repeatable].",
)
@click.option(
    "--prove", is_flag=True, help="Plant two weakenings that the gate must see; print the smallest visible change."
)
@click.option("--out", type=common.PATH, help="Run folder of the matrix [default: runs/gate].")
@common.data_dir
@common.device
@common.jobs
@click.option("--junit", type=common.PATH, help="Write the verdict as JUnit XML.")
@click.option("--markdown", type=common.PATH, help="Write the result as Markdown.")
@click.option(
    "--comment", type=common.PATH, help="Write the verdict as a comment for a pull request, at most 65,536 characters."
)
@click.option("--sarif", type=common.PATH, help="Write the verdict as SARIF 2.1.0, for code scanning.")
@click.option("--strip", type=common.PATH, help="Draw the three worst victims as PNG: truth, baseline, now.")
@click.option("--then", type=common.PATH, help="With --strip: run folder with the baseline's cells [default: RUN].")
@click.option("--history", type=common.PATH, help="Append the verdict to this file, a JSON line per commit.")
@common.json_flag
def command(
    run: Path | None,
    baseline: Path | None,
    base: str | None,
    accept_baseline: str | None,
    write_baseline: Path | None,
    margins: tuple[str, ...],
    prove: bool,
    out: Path | None,
    data_dir: Path | None,
    device: str,
    jobs: int | None,
    junit: Path | None,
    markdown: Path | None,
    comment: Path | None,
    sarif: Path | None,
    strip: Path | None,
    then: Path | None,
    history: Path | None,
    as_json: bool,
) -> None:
    """Compare RUN with a baseline, the records of an earlier run; without RUN, first run the baseline's matrix.

    Exit code 0: no metric worsened by its margin. 1: a defense is weaker, or the baseline differs from the base
    revision's without a reason in --accept-baseline. 3: inconclusive, with the missing evidence. 2: a mistake in the
    request. GITHUB_STEP_SUMMARY, if set, receives the verdict; GITHUB_ACTIONS=true prints its annotations on standard
    error.

    \b
    bench run --matrix gate --plugin my_defense.py --defense my-defense
    bench gate runs/gate --write-baseline gate.json
    bench gate --baseline gate.json                     later
    bench gate --baseline gate.json --base origin/main  in CI: the base revision's baseline
    bench gate runs/other --baseline gate.json          an existing run
    bench gate history gate.jsonl --html gate.html      the verdicts of all commits
    """
    if (baseline is None) == (write_baseline is None):
        raise click.UsageError("give --baseline FILE to compare, or --write-baseline FILE to make one")
    if then is not None and strip is None:
        raise click.UsageError("--then needs --strip FILE")
    if accept_baseline is not None and (base is None or not accept_baseline.strip()):
        raise click.UsageError("--accept-baseline needs a reason, and --base REVISION to compare with")
    limits = dict(_margin(text) for text in margins)
    if write_baseline is not None:
        _write(run, write_baseline, limits)
        return
    assert baseline is not None
    decisive = gating.decisive(baseline, base, accept_baseline)
    compared = gating.compare(decisive, run, limits, out=out, data_dir=data_dir, device=device, jobs=jobs)
    result = compared.verdict
    if prove:
        from bench.cli import proving

        proof = proving.prove(decisive, result, limits, data_dir=data_dir, device=device, jobs=jobs)
        proving.show(proof, result, as_json=as_json)
        sys.exit(result.exit_code or proof.exit_code)
    forms = {junit: services.junit, markdown: markdowns.markdown, comment: markdowns.comment, sarif: services.sarif}
    for path, form in forms.items():
        if path is not None:
            write_atomically(path, form(result).encode())
    if strip is not None:
        _draw(compared, strip, then)
    if history is not None:
        histories.add(history, histories.line(result, *revision.head()))
    _report(result, as_json)
    sys.exit(result.exit_code)


def _margin(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        return name, float(number)
    except ValueError:
        message = f"--margin {text}: it must be METRIC=NUMBER, e.g. --margin asr=0.05"
        raise click.UsageError(message) from None


def _write(run: Path | None, path: Path, margins: dict[str, float]) -> None:
    run = checked_run(run)
    made = baselines.of_run(lookup.compact_records(run, whole=True), request.read(run), margins)
    # A baseline that does not pass against itself is too small: report this now, not in CI.
    result = verdict(made.records, made.records, made.margins)
    if path.exists():
        made = baselines.replacing(made, baselines.read(path))
    baselines.write(path, made)
    click.echo(f"{path}: {len(made.records)} cells of {run}, {path.stat().st_size / 1e6:.1f} MB")
    if result.exit_code:
        click.echo("against itself it does not pass, so it never will:")
        common.console().print(reports.render(result))
    if made.request is None:
        click.echo(f"{run} does not say which matrix it ran: for this baseline, `bench gate` needs a finished run")


def _draw(compared: gating.Compared, path: Path, then: Path | None) -> None:
    from bench.gate import strip
    from bench.pictures.grid import save

    victims = strip.worst(compared.pairs, compared.verdict)
    if victims:
        save(strip.picture(victims, compared.run, then and checked_run(then)), path)
    else:
        path.unlink(missing_ok=True)  # of an earlier gate
        click.echo(f"{path}: not drawn, no reconstruction came nearer (private examples left out)", err=True)


def _report(result: Verdict, as_json: bool) -> None:
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(markdowns.markdown(result) + "\n")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        click.echo(services.annotations(result), err=True, nl=False)
    if as_json:
        common.print_json(result.json())
    else:
        common.console().print(reports.render(result))
