"""`bench compare A B`: what differs between two cells, and the paired difference where there is one."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from bench.cli.comparison import Comparison, Paired
    from bench.record.store import Record


@click.command()
@click.argument("a")
@click.argument("b")
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(a: str, b: str, run: Path | None, as_json: bool) -> None:
    """Compare cells A and B: id prefixes in RUN (by default the newest below runs/), or record files.

    Two cells are called different only by the paired test: the same pictures under the same weights.

    \b
    bench compare 3f2a 91bc runs/smoke
    bench compare runs/one/records/<id>.json runs/two/records/<id>.json
    """
    from bench.cli import lookup
    from bench.cli.comparison import compare

    (_, first), (_, second) = lookup.by_reference(a, run), lookup.by_reference(b, run)
    with lookup.understood(first), lookup.understood(second):
        found = compare(first, second)
        figures = {"a": _figures(first), "b": _figures(second)}
        told = _words(first, second, found)
    if as_json:
        click.echo(json.dumps({**figures, **found.json()}, indent=1))
    else:
        click.echo("\n".join(told))


def _figures(record: "Record") -> dict[str, Any]:
    names = ("asr", "asr_low", "asr_high", "lower_bound", "rmse_median", "psnr_db_median", "accuracy")
    figures = {name: record.summary[name] for name in names if name in record.summary}
    return {"id": record.id, "status": record.status, "reason": record.reason, **figures}


def _words(a: "Record", b: "Record", found: "Comparison") -> list[str]:
    from bench.tracking.view import clean, view

    lines = [click.style(f"{name}  {record.id[:8]}  {view(record, '').name}", bold=True)
             for name, record in (("A", a), ("B", b))]  # fmt: skip
    lines += [
        f"question  {clean(each.field)}: {clean(str(each.a))} | {clean(str(each.b))}"
        for each in found.questions
    ] or ["question  the same"]
    lines += [f"source    {clean(line)}" for line in found.sources] or ["source    the same"]
    lines += [f"{name}         {clean(_told(record))}" for name, record in (("A", a), ("B", b))]
    if found.paired is None:
        return [*lines, f"not paired: {clean(str(found.unpaired))}; so no difference is claimed"]
    lines += _difference(found.paired)
    less = "A" if found.paired.difference < 0 else "B"
    if found.paired.different and (a if less == "A" else b).summary["lower_bound"]:
        lines.append(f"but the attack failed on some of {less}'s pictures: that is not protection")
    return lines


def _told(record: "Record") -> str:
    """One cell's own figures, whatever the other is."""
    from bench.cli.figures import asr, figure, percent

    summary = record.summary
    if record.status != "done":
        return f"{record.status}: {record.reason}"
    if record.cell["kind"] == "training":
        return f"accuracy {percent(summary['accuracy'])} after {record.cell['rounds']} rounds"
    medians = f"RMSE {figure(summary['rmse_median'])}, PSNR {figure(summary['psnr_db_median'], ' dB')}"
    return f"ASR {asr(summary)} of {summary['pictures']} pictures; medians {medians}"


def _difference(paired: "Paired") -> list[str]:
    low, high = paired.interval
    points = f"{100 * paired.difference:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}] in ASR"
    medians = [
        f"{name} {value:+.3g}{unit}"
        for name, value, unit in (("RMSE", paired.rmse, ""), ("PSNR", paired.psnr_db, " dB"))
        if value is not None
    ]
    more = "A" if paired.difference > 0 else "B"
    verdict = f"different: {more} leaks more" if paired.different else "not called different: it holds 0"
    return [
        f"A - B     {points} on the same {paired.pictures} pictures (95 %; McNemar p = {paired.p_value:.2g})",
        f"          medians picture by picture: {', '.join(medians) or 'none'}",
        f"only A    {_places(paired.only_a)}",
        f"only B    {_places(paired.only_b)}",
        verdict,
    ]


def _places(places: tuple[tuple[int, int], ...]) -> str:
    """Pictures as reading.picture, as many as fit a line."""
    shown = [f"{reading}.{picture}" for reading, picture in places[:16]]
    more = f" … ({len(places)})" if len(places) > 16 else ""
    return f"reading.picture {', '.join(shown)}{more}" if shown else "no picture"
