"""`bench privacy`: compute ε for a Gaussian mechanism under every accounting convention (access of the attacker,
adjacency of data sets)."""

import textwrap
from dataclasses import asdict
from math import isfinite
from typing import Any

import click

from bench.cli import common


class _Number(click.FloatRange):
    """A click range that also excludes NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


_COUNT, _RATE = click.IntRange(1, 10**9), _Number(1e-9, 1)
_SIGMA = _Number(1e-3, 1e6)  # smaller: every accountant's ε is meaningless; larger: overflow
_DELTA = _Number(1e-100, 1, max_open=True)


@click.command()
@click.option("--sigma", type=_SIGMA, required=True, help="Noise multiplier σ.")
@click.option("--delta", type=_DELTA, default=1e-5, show_default=True, help="δ of the (ε, δ) guarantee.")
@click.option("--q", type=_RATE, required=True, help="Sampling rate q of a step.")
@click.option("--steps", type=_COUNT, required=True, help="Number of composed steps.")
@click.option(
    "--tensors", type=_COUNT, default=1, show_default=True, help="Number M of tensors that are clipped separately."
)
@click.option(
    "--uses",
    type=_COUNT,
    default=1,
    show_default=True,
    help="Number of uses of an example that an attacker inside the round sees.",
)
@common.json_flag
def command(sigma: float, delta: float, q: float, steps: int, tensors: int, uses: int, as_json: bool) -> None:
    """Compute ε for noise of deviation σ·C on a sum of rows clipped to norm C, in STEPS steps with sampling rate Q.

    \b
    bench privacy --sigma 6 --delta 1e-5 --q .01 --steps 10000
    bench privacy --sigma 6 --q .1 --steps 100 --json          Fed-SDP, 100 of 1000 clients
    bench privacy --sigma 6 --q .01 --steps 10000 --tensors 3  3 tensors, clipped separately
    """
    from bench.defenses.accounting.report import figures

    reports = figures(sigma, q=q, steps=steps, tensors=tensors, uses=uses, delta=delta)
    if as_json:
        common.print_json({"figures": [asdict(report) for report in reports]})
        return
    rows = [
        (each.convention, "–" if each.epsilon is None else f"{each.epsilon:.4g}", each.accountant, each.adversary)
        for each in reports
    ]
    common.print_table(("convention", "ε", "accountant", "of an attacker who"), rows)
    click.echo(f"\nδ = {delta:g}, q = {q:g}, {steps} steps, σ = {sigma:g}.")
    click.echo(
        "The idealised figure holds where each row is drawn by itself at rate q; a training's record has the valid"
    )
    click.echo(
        "figure of the sampling that runs.  Neighbours: one added or removed; at the tap one replaced.  Caveats:"
    )
    width = common.console(least=40).width
    for each in reports:
        for note in (*((each.absent,) if each.absent else ()), *each.caveats):
            line = f"{each.convention}, {each.accountant}: {note}"
            click.echo(textwrap.fill(line, width, initial_indent="  ", subsequent_indent="    "))
