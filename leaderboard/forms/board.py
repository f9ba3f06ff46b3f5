"""The board as text: a table in the terminal, Markdown, CSV; the same figures in each."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bench.leaderboard.board import AtPoint, Row
from bench.leaderboard.forms.markdown import cell
from bench.leaderboard.forms.numbers import dash, decibels, distinct, share, three

PARETO = "◆"  # a complete row that no other beats in both ASR and accuracy
INCOMPLETE = "·"  # in place of a rank


def flat(row: Row) -> dict[str, Any]:
    """One row as one level of names and figures, for CSV; points in the names, None where there is none."""
    worst, cost = row.worst, row.cost
    found: dict[str, Any] = {
        "title": row.title, "rank": row.rank, "defense": row.defense, "complete": row.complete,
        "pareto": row.pareto, "protocol": row.protocol, "worst_point": worst.point if worst else None,
        "accuracy": cost.accuracy if cost else None, "accuracy_lost": cost.loss if cost else None,
        "epsilon": cost.epsilon if cost else None, "delta": cost.delta if cost else None,
        "epsilon_unit": cost.epsilon_unit if cost else None,
        "epsilon_absent": cost.epsilon_absent if cost else "not trained here",
        "overhead": cost.overhead if cost else None, "trained": cost.setting if cost else None,
    }  # fmt: skip
    for point, at in row.points.items():
        best = at.best
        found |= {
            f"{point} asr": at.asr, f"{point} low": at.interval[0] if at.interval else None,
            f"{point} high": at.interval[1] if at.interval else None,
            f"{point} lower_bound": at.lower_bound, f"{point} at_least_once": at.at_least_once,
            f"{point} pictures": at.pictures, f"{point} best_attack": best.attack if best else None,
            f"{point} best_asr": best.asr if best else None, f"{point} rmse": best.rmse if best else None,
            f"{point} psnr_db": best.psnr_db if best else None, f"{point} ssim": best.ssim if best else None,
            f"{point} lpips": best.lpips if best else None, f"{point} prior_asr": at.prior_asr,
            f"{point} prior_psnr_db": at.prior_psnr_db, f"{point} epsilon": at.epsilon,
        }  # fmt: skip
    return {**found, "flags": "; ".join(f"{flag.code}: {flag.text}" for flag in row.flags)}


def to_csv(rows: Sequence[Row]) -> str:
    """All rows; a text that a spreadsheet would take for a formula is led by an apostrophe."""
    table = [flat(row) for row in rows]
    names = list(dict.fromkeys(name for line in table for name in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for line in table:
        writer.writerow({name: _no_formula(value) for name, value in line.items()})
    return text.getvalue()


def markdown(rows: Sequence[Row]) -> str:
    """A table for each title, and what its flags say."""
    parts = []
    for title, own in _by_title(rows).items():
        points = list(own[0].points)
        heads = ["#", "defense", *(f"ASR {point}" for point in points), "best single attack", "prior"]
        heads += ["accuracy", "lost", "ε", "overhead", "flags"]
        lines = [f"### {cell(title)}", "", f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
        short = distinct([row.defense for row in own])
        for row in own:
            shown = [_rank(row), short[row.defense], *(_rate(row.points[point]) for point in points)]
            shown += [_best(row), _prior(row), *_costs(row), _codes(row)]
            lines.append(f"| {' | '.join(map(cell, shown))} |")
        parts.append("\n".join([*lines, "", *(f"- {cell(text)}" for text in _notes(own))]).rstrip())
    return "\n\n".join([*parts, LEGEND]) + "\n"


def render(rows: Sequence[Row]) -> RenderableType:
    """For the terminal: a table for each title, below it what its flags say."""
    parts: list[RenderableType] = []
    for title, own in _by_title(rows).items():
        parts += [_table(title, own), *(Text(text, style="dim") for text in _notes(own)), Text("")]
    return Group(*parts, Text(LEGEND, style="dim"))


LEGEND = (
    f"ASR: share of pictures that some attack got back, [95 % interval], ≥ where attacks failed. {PARETO} no other "
    f"complete row leaks less and keeps more accuracy. {INCOMPLETE} incomplete (not run, crashed, too few pictures): "
    "ranks below complete rows. ε: tight, of the released model; “–”: no guarantee, the reason is in --json. "
    "lost: accuracy below the undefended training's of the same seeds."
)


def _table(title: str, rows: Sequence[Row]) -> Table:
    """Fits 80 columns with three points: flags stand below the defense, the best attack below its rate, and
    what nobody was trained for has no column."""
    table = Table(
        title=escape(title), title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.add_column("#", no_wrap=True)
    table.add_column("defense", overflow="fold", min_width=16)
    points = list(rows[0].points)
    for point in points:
        table.add_column(point, no_wrap=True)
    trained = any(row.cost for row in rows)
    if trained:
        table.add_column("accuracy", no_wrap=True)
    short = distinct([row.defense for row in rows])
    for row in rows:
        name = short[row.defense].replace("(", " (", 1)
        table.add_row(
            _rank(row), Text.assemble(name, (f"\n{_codes(row)}", "dim")),
            *(_coloured(row.points[point]) for point in points), *([_cost(row)] if trained else []),
        )  # fmt: skip
    return table


def _cost(row: Row) -> Text:
    """Accuracy, what is lost of it, ε and overhead, a line each."""
    accuracy, lost, epsilon, overhead = _costs(row)
    below = [f"lost {lost}", f"ε {epsilon}", f"× {overhead}"]
    return Text(accuracy).append("".join(f"\n{line}" for line in below if row.cost), style="dim")


def _rank(row: Row) -> str:
    return (str(row.rank) if row.complete else INCOMPLETE) + (f" {PARETO}" if row.pareto else "")


def _rate(at: AtPoint) -> str:
    if at.asr is None:
        return "crashed" if at.crashed else "n/a" if at.absent else "–"
    ends = f" [{share(at.interval[0])}, {share(at.interval[1])}]" if at.interval else ""
    return f"{'≥' if at.lower_bound else ''}{share(at.asr)}{ends}"


def _coloured(at: AtPoint) -> Text:
    figure, _, ends = _rate(at).partition(" ")
    style = (
        "dim"
        if at.asr is None
        else "red"
        if at.asr >= 0.5
        else "yellow"
        if at.asr > 0 or at.lower_bound
        else "green"
    )
    text = Text(figure, style=style)
    if ends:
        text.append(f"\n{ends}", style="dim")
    if at.best is not None and at.best.asr > 0:
        text.append(f"\n{_name(at.best.attack)}", style="dim")
    return text


def _name(attack: str) -> str:
    """`cpl adaptive` of an attack's full name."""
    return attack.partition("(")[0].partition(" ·")[0] + (" adaptive" if attack.endswith("adaptive") else "")


def _best(row: Row) -> str:
    """The best single attack at the worst point: `cpl 1.00, 31 dB, RMSE .010`."""
    best = row.worst.best if row.worst else None
    if best is None:
        return "–"
    return f"{_name(best.attack)} {share(best.asr)}, {decibels(best.psnr_db)}, RMSE {three(best.rmse)}"


def _prior(row: Row) -> str:
    return decibels(row.worst.prior_psnr_db) if row.worst else "–"


def _costs(row: Row) -> list[str]:
    """Accuracy, accuracy lost, ε and overhead; a dash where there is none."""
    cost = row.cost
    if cost is None:
        return ["–"] * 4
    lost = "–" if cost.loss is None else three(cost.loss)
    return [three(cost.accuracy), lost, dash(cost.epsilon, ".3g"), dash(cost.overhead, ".2f")]


def _codes(row: Row) -> str:
    return " ".join(dict.fromkeys(flag.code for flag in row.flags))


def _notes(rows: Iterable[Row]) -> list[str]:
    """What each flag says, with the defenses it is about, and which training the costs are of."""
    said: dict[str, list[str]] = {}
    rows = list(rows)
    short = distinct([row.defense for row in rows])
    for row in rows:
        for flag in row.flags:
            names = said.setdefault(f"{flag.code}: {flag.text}", [])
            if short[row.defense] not in names:
                names.append(short[row.defense])
    trained = dict.fromkeys(row.cost.setting for row in rows if row.cost)
    every = len(rows)
    notes = [
        f"{text} ({'all' if len(names) == every else ', '.join(names)})"
        for text, names in sorted(said.items())
    ]
    return [*notes, *(f"trained: {setting}" for setting in trained)]


def _by_title(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.title, []).append(row)
    return found


def _no_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t")) else value
