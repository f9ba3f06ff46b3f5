"""A gate's verdict in words, which all forms share, and its text for a terminal."""

from collections.abc import Callable, Iterable, Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from bench.gate.verdict import GATE_METRICS, Comparison, Verdict
from bench.leaderboard.forms.tables import Table
from bench.record.names import distinct
from bench.sanitize import LONG, LONGEST, sanitize

_HEADLINE = {
    "pass": "pass: no metric worsened by its margin, at 95 % each",
    "weaker": "weaker: a defense lost strength, or costs more, beyond its margin",
    "changed": "changed: the baseline differs from the base revision's, and nobody accepted this",
    "inconclusive": "inconclusive: there is too little, or something is missing",
}
_STYLE = {"pass": "green", "weaker": "bold red", "changed": "bold red", "inconclusive": "yellow"}
_SINCE = "against the oldest baseline (to accept it: delete the file, and write the baseline anew):"
_PLACES = 8  # subjects without a comparison, shown in the terminal


def headline(verdict: Verdict) -> str:
    """Return a line with the outcome of the gate's `verdict`, the changed parameters and the number of comparisons."""
    changed = [f"parameters changed: {'; '.join(verdict.parameters[:2])}"] if verdict.parameters else []
    count = f"{len(verdict.comparisons)} comparisons over {verdict.cells} cells"
    return f"gate {_HEADLINE[verdict.outcome]}  ({', '.join([*changed, count])})"


def openings(verdict: Verdict) -> Iterator[str]:
    """Yield the first lines of the gate's report on `verdict`, about changed inputs of the comparison: changes of the
    baseline file, the reason of their acceptance, and changed defaults (parameters that the run's matrix file does not
    set)."""
    occasion = verdict.occasion
    if occasion.altered:
        yield f"the baseline differs from the baseline of {occasion.base}:"
        yield from (f"  {line}" for line in occasion.altered)
        if occasion.accepted is not None:
            yield f"accepted, and compared with the new baseline: {occasion.accepted}"
        else:
            yield f'compared with the baseline of {occasion.base}; to accept the change: --accept-baseline "REASON"'
    yield from (f"changed in the code, and the matrix does not set this: {line}" for line in verdict.parameters)
    yield from occasion.notes


def render(verdict: Verdict) -> RenderableType:
    """Return the gate's `verdict` as terminal output: weaker and inconclusive comparisons in detail, then the number of
    passed comparisons."""
    parts: list[RenderableType] = [_text(line, style="bold yellow") for line in openings(verdict)]
    short = distinct(row.defense for row in (*verdict.comparisons, *verdict.since_oldest))
    for outcome in ("weaker", "inconclusive"):
        if rows := [row for row in verdict.comparisons if row.outcome == outcome]:
            parts.append(_table(outcome, rows, short))
    if verdict.since_oldest:
        parts += [_text(_SINCE, style="bold"), _table("weaker", verdict.since_oldest, short)]
    for code, subject, reason in verdict.faults:
        parts.append(_text(f"{code}: {subject}: {reason}", style="bold red"))
    for row in (row for row in verdict.comparisons if row.drifted):
        parts.append(
            _text(f"weaker within the margin, for certain: {row.defense} {row.point} {sentence(row)}", style="yellow")
        )
    for subject, reason in verdict.unpaired[:_PLACES]:
        parts.append(_text(f"not compared: {subject}: {reason}", style="yellow"))
    if (more := len(verdict.unpaired) - _PLACES) > 0:
        parts.append(_text(f"not compared: {more} more places", style="yellow"))
    passed = [row for row in verdict.comparisons if row.outcome == "pass"]
    if passed:
        parts.append(_text(f"{len(passed)} of {len(verdict.comparisons)} comparisons pass", style="dim"))
    parts += [_text(line, style="yellow") for line in _wider(verdict)]
    parts += [_text(f"changed since the baseline: {line}", style="dim") for line in verdict.changes]
    parts.append(_text(headline(verdict), style=_STYLE[verdict.outcome]))
    return Group(*parts)


def _wider(verdict: Verdict) -> Iterator[str]:
    for name, margin in verdict.wider.items():
        yield f"margin of {name}: {margin:g}, wider than the default {GATE_METRICS[name].margin:g}"


def worst(verdict: Verdict) -> Comparison | None:
    """Return the most important comparison in the gate's `verdict` with outcome *weaker*: first metrics of leaked
    examples, then the largest ratio of worsening to margin. None without such a comparison."""
    weaker = [row for row in (*verdict.comparisons, *verdict.since_oldest) if row.outcome == "weaker"]
    return min(weaker, key=weight, default=None)


def weight(row: Comparison) -> tuple[int, float]:
    """Return the sort key of a comparison `row` in the gate's report; more important comparisons sort first. Metrics of
    leaked examples come first, then the largest ratio of worsening to margin."""
    return list(GATE_METRICS).index(row.metric), -row.worse / row.margin


def sentence(row: Comparison, name: Callable[[str], str] = str) -> str:
    """Describe a comparison `row` in a line, such as `asr .10 → .45, worse by .35 [≥ .20], margin .10`. `name` formats
    untrusted texts, such as an attack's name."""
    text = (
        f"{GATE_METRICS[row.metric].words}: {figure(row.metric, row.before)} → {figure(row.metric, row.after)}, "
        f"worse by {worse(row)}, margin {change(row.metric, row.margin)}"
    )
    if row.outcome == "inconclusive":
        text += f"; {name(_reason(row))}"
    if row.attacks and row.outcome == "weaker":
        text += f"; by {', '.join(name(attack.partition('(')[0]) for attack in row.attacks)}"
    return text


def _text(line: str, style: str) -> Text:
    return Text(sanitize(line, LONGEST), style=style)


def _table(outcome: str, rows: Iterable[Comparison], short: dict[str, str]) -> Table:
    table = Table(
        title=outcome, title_justify="left", title_style=_STYLE[outcome], box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.add_column("defense", overflow="fold", min_width=14)
    table.add_column("where", overflow="fold", min_width=10)
    for heading in ("metric", "baseline", "now"):
        table.add_column(heading, no_wrap=True)
    table.add_column(escape("worse by [bound], margin"), overflow="fold")
    for row in rows:
        last = f"{worse(row)}, {change(row.metric, row.margin)}"
        if row.outcome == "inconclusive":
            last += f"\n{sanitize(_reason(row), LONG)}"
        table.add_row(
            escape(sanitize(short[row.defense], LONG)),
            escape(f"{sanitize(row.point)}\n{sanitize(row.title.partition(' · ')[0])}"),
            row.metric,
            figure(row.metric, row.before),
            figure(row.metric, row.after),
            escape(last),
        )
    return table


def worse(row: Comparison) -> str:
    """Format the worsening in a comparison `row` with the bound that decided the outcome: the lower bound for *weaker*,
    otherwise the upper bound."""
    mark, bound = ("≥", row.lower) if row.outcome == "weaker" else ("≤", row.upper)
    return f"{change(row.metric, row.worse)} [{mark} {change(row.metric, bound)}]"


def _reason(row: Comparison) -> str:
    count = f": {row.needed} {GATE_METRICS[row.metric].of} needed, {row.pairs} here" if row.needed else ""
    return f"{row.reason}{count}"


def figure(metric: str, value: float) -> str:
    """Format a `value` of the `metric` with its unit; an infinite value gives `unbounded`."""
    if value in (float("inf"), float("-inf")):
        return "unbounded"
    unit = GATE_METRICS[metric].unit
    if unit == " %":
        return f"{100 * value:.0f} %"
    return f"{value:.1f}{unit}" if unit == " dB" else f"{value:.{2 if unit else 3}f}{unit}"


def change(metric: str, value: float) -> str:
    """Format `value`, a difference of two values of the `metric`; shares in percent differ by points."""
    return figure(metric, value).replace(" %", " points")
