"""`bench compare A B`: show how two cells differ, with a paired difference if their examples match."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from bench.cell import TrainingCell
from bench.cli import common, lookup
from bench.cli.cell_text import asr
from bench.cli.comparison import Comparison, PairedDifference, compare
from bench.leaderboard.forms.numbers import figure, share
from bench.record.metrics import PSNR_DB, RMSE
from bench.record.names import cell_name
from bench.record.schema import Record
from bench.sanitize import sanitize


@click.command()
@click.argument("a")
@click.argument("b")
@click.argument("run", type=common.PATH, required=False)
@common.json_flag
def command(a: str, b: str, run: Path | None, as_json: bool) -> None:
    """Compare cells (experiments) A and B: prefixes of ids in RUN (by default the newest below runs/), or record files.

    Cells are called different only by a paired test, which needs the same examples under the same weights.

    \b
    bench compare 3f2a 91bc runs/smoke
    bench compare runs/one/records/<id>.json runs/two/records/<id>.json
    """
    first, second = lookup.by_reference(a, run), lookup.by_reference(b, run)
    comparison = compare(first, second)
    if as_json:
        common.print_json({"a": _figures(first), "b": _figures(second), **asdict(comparison)})
    else:
        click.echo("\n".join(_text(first, second, comparison)))


def _figures(record: Record) -> dict[str, Any]:
    figures: dict[str, Any] = {"id": record.id, "status": record.status, "reason": record.reason}
    if record.attack is not None and record.attack.summary is not None:
        summary = record.attack.summary
        asr = {"asr": summary.asr.value, "asr_low": summary.asr.low, "asr_high": summary.asr.high}
        figures |= {**asr, "lower_bound": summary.lower_bound, "medians": summary.medians}
    if record.training is not None:
        figures["accuracy"] = record.training.accuracy
    return figures


def _text(a: Record, b: Record, comparison: Comparison) -> list[str]:
    lines = [
        click.style(f"{name}  {record.id[:8]}  {sanitize(cell_name(record.cell))}", bold=True)
        for name, record in (("A", a), ("B", b))
    ]
    lines += [
        f"configuration  {sanitize(each.field)}: {sanitize(each.a)} | {sanitize(each.b)}"
        for each in comparison.configuration
    ] or ["configuration  the same"]
    lines += [f"provenance     {sanitize(line)}" for line in comparison.provenance or ["the same"]]
    lines += [f"{name}              {sanitize(_result(record))}" for name, record in (("A", a), ("B", b))]
    if comparison.paired is None:
        return [*lines, f"not paired: {sanitize(comparison.unpaired)}; so no difference is claimed"]
    lines += _difference(comparison.paired)
    less = "A" if comparison.paired.difference < 0 else "B"
    result = (a if less == "A" else b).attack
    if comparison.paired.different and result is not None and result.figures().lower_bound:
        lines.append(f"but the attack failed on some of {less}'s examples: that is not protection")
    return lines


def _result(record: Record) -> str:
    if record.attack is not None:
        if record.attack.summary is None:
            return "; ".join(record.attack.notes)
        summary = record.attack.summary
        medians = (f"{metric.label} {figure(metric, summary.median(metric))}" for metric in (RMSE, PSNR_DB))
        return f"ASR {asr(summary)} of {summary.examples} examples; medians {', '.join(medians)}"
    if record.training is not None and isinstance(record.cell, TrainingCell):
        return f"accuracy {share(record.training.accuracy, 1)} after {record.training.rounds} rounds"
    return f"{record.status}: {record.reason}"


def _difference(paired: PairedDifference) -> list[str]:
    low, high = paired.interval
    points = f"{100 * paired.difference:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}] in ASR"
    medians = [
        f"{name} {value:+.3g}{unit}"
        for name, value, unit in (("RMSE", paired.rmse, ""), ("PSNR", paired.psnr_db, " dB"))
        if value is not None
    ]
    more = "A" if paired.difference > 0 else "B"
    return [
        f"A - B     {points} on the same {paired.examples} examples (95 %; McNemar p = {paired.p_value:.2g})",
        f"          medians example by example: {', '.join(medians) or 'none'}",
        f"only A    {_places(paired.only_a)}",
        f"only B    {_places(paired.only_b)}",
        f"different: {more} leaks more" if paired.different else "not called different: it holds 0",
    ]


def _places(places: tuple[tuple[int, int], ...]) -> str:
    shown = [f"{reading}.{example}" for reading, example in places[:16]]
    more = f" … ({len(places)})" if len(places) > 16 else ""
    return f"reading.example {', '.join(shown)}{more}" if shown else "no example"
