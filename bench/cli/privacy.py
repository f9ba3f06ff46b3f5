"""`bench privacy`: what a Gaussian mechanism spends, by every convention, and whom each speaks of."""

import json
import textwrap

import click


@click.command()
@click.option("--sigma", type=click.FloatRange(0, min_open=True), required=True, help="Noise multiplier σ.")
@click.option(
    "--delta", type=click.FloatRange(0, 1, min_open=True, max_open=True), default=1e-5, show_default=True
)
@click.option(
    "--q", type=click.FloatRange(0, 1, min_open=True), required=True, help="Sampling rate of a step."
)
@click.option("--steps", type=click.IntRange(1), required=True, help="Steps that are composed.")
@click.option(
    "--tensors", type=click.IntRange(1), default=1, show_default=True, help="M, clipped by themselves."
)
@click.option("--uses", type=click.IntRange(1), default=1, show_default=True, help="Of one row, at the tap.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    sigma: float, delta: float, q: float, steps: int, tensors: int, uses: int, as_json: bool
) -> None:  # fmt: skip
    """Show ε of noise σ·C on the sum of rows clipped to C, in STEPS steps that each row joins at rate Q.

    \b
    bench privacy --sigma 6 --delta 1e-5 --q .01 --steps 10000
    bench privacy --sigma 6 --q .1 --steps 100 --json          Fed-SDP, 100 of 1000 clients
    bench privacy --sigma 6 --q .01 --steps 10000 --tensors 3  each of 3 tensors clipped by itself
    """
    from bench.cli.columns import columns, width
    from bench.defenses.accounting.report import figures

    reports = figures(sigma, q=q, steps=steps, tensors=tensors, uses=uses, delta=delta)
    if as_json:
        click.echo(json.dumps({"figures": [report.json() for report in reports]}, indent=1))
        return
    rows = [
        (
            report.convention,
            "–" if report.epsilon is None else f"{report.epsilon:.4g}",
            report.accountant,
            report.adversary,
        )
        for report in reports
    ]
    total = width()
    click.echo(columns(("convention", "ε", "accountant", "of an attacker who"), rows, total))
    click.echo(f"\nδ = {delta:g}, q = {q:g}, {steps} steps, σ = {sigma:g}; the tight figure is the headline.")
    click.echo("Neighbours: one added or removed; at the tap one replaced.  Not in these figures:")
    for report in reports:
        for note in (*((report.absent,) if report.absent else ()), *report.caveats):
            line = f"{report.convention}, {report.accountant}: {note}"
            click.echo(textwrap.fill(line, total, initial_indent="  ", subsequent_indent="    "))
