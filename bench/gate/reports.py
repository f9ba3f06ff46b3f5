"""Write a gate's verdict as text, Markdown and JUnit XML, with equal figures."""

import re
from collections.abc import Iterable, Iterator
from xml.etree import ElementTree

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bench.gate.verdict import GATE_METRICS, Comparison, Verdict
from bench.leaderboard.forms.markdown import cell
from bench.record.names import distinct

_HEADLINE = {
    "pass": "pass: no metric worsened by its margin, at 95 % each",
    "weaker": "weaker: a defense lost strength, or costs more, beyond its margin",
    "changed": "changed: the baseline differs from the base revision's, and nobody accepted this",
    "inconclusive": "inconclusive: there is too little, or something is missing",
}
_STYLE = {"pass": "green", "weaker": "bold red", "changed": "bold red", "inconclusive": "yellow"}
_SINCE = "against the oldest baseline (to accept it: delete the file, and write the baseline anew):"
_PLACES = 8  # subjects without a comparison, shown in the terminal
_SHOWN = 30  # rows in a summary; JSON and XML hold all rows
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def headline(verdict: Verdict) -> str:
    """Return a line with the verdict's outcome, the changed parameters and the number of comparisons."""
    changed = [f"parameters changed: {'; '.join(verdict.parameters[:2])}"] if verdict.parameters else []
    count = f"{len(verdict.comparisons)} comparisons over {verdict.cells} cells"
    return f"gate {_HEADLINE[verdict.outcome]}  ({', '.join([*changed, count])})"


def openings(verdict: Verdict) -> Iterator[str]:
    """Yield the lines that come first: what the change alters in the baseline, who accepted this, and parameters that
    changed although nobody wrote them."""
    occasion = verdict.occasion
    if occasion.altered:
        yield f"the baseline differs from the baseline of {occasion.base}:"
        yield from (f"  {line}" for line in occasion.altered)
        if occasion.accepted is not None:
            yield f"accepted, and compared with the new baseline: {occasion.accepted}"
        else:
            yield f'compared with the baseline of {occasion.base}; to accept the change: --accept-baseline "REASON"'
    yield from (f"another parameter, which nobody wrote: {line}" for line in verdict.parameters)
    yield from occasion.notes


def render(verdict: Verdict) -> RenderableType:
    """Return terminal output: failures in detail, then a count of passed comparisons."""
    parts: list[RenderableType] = [Text(line, style="bold yellow") for line in openings(verdict)]
    short = distinct(row.defense for row in (*verdict.comparisons, *verdict.since_oldest))
    for outcome in ("weaker", "inconclusive"):
        if rows := [row for row in verdict.comparisons if row.outcome == outcome]:
            parts.append(_table(outcome, rows, short))
    if verdict.since_oldest:
        parts += [Text(_SINCE, style="bold"), _table("weaker", verdict.since_oldest, short)]
    for code, subject, reason in verdict.faults:
        parts.append(Text(f"{code}: {subject}: {reason}", style="bold red"))
    for row in (row for row in verdict.comparisons if row.drifted):
        parts.append(
            Text(f"weaker within the margin, for certain: {row.defense} {row.point} {sentence(row)}", style="yellow")
        )
    for subject, reason in verdict.unpaired[:_PLACES]:
        parts.append(Text(f"not compared: {subject}: {reason}", style="yellow"))
    if (more := len(verdict.unpaired) - _PLACES) > 0:
        parts.append(Text(f"not compared: {more} more places", style="yellow"))
    passed = [row for row in verdict.comparisons if row.outcome == "pass"]
    if passed:
        parts.append(Text(f"{len(passed)} of {len(verdict.comparisons)} comparisons pass", style="dim"))
    parts += [Text(line, style="yellow") for line in _wider(verdict)]
    parts += [Text(f"changed since the baseline: {line}", style="dim") for line in verdict.changes]
    parts.append(Text(headline(verdict), style=_STYLE[verdict.outcome]))
    return Group(*parts)


def markdown(verdict: Verdict) -> str:
    """Return the outcome and the failures as Markdown, for a pull request or `GITHUB_STEP_SUMMARY`."""
    lines = [f"### {cell(headline(verdict))}", ""]
    if first := [f"- {cell(line)}" for line in openings(verdict)]:
        lines += [*first, ""]
    rows = [row for row in verdict.comparisons if row.outcome != "pass"]
    rows.sort(key=lambda row: row.outcome != "weaker")
    if rows:
        short = distinct(row.defense for row in verdict.comparisons)
        lines += [
            "| outcome | defense | where | metric | baseline | now | worse by | margin |",
            "|---|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {row.outcome} | {cell(short[row.defense])} | {cell(f'{row.point}, {row.title}')} | {row.metric} | "
            f"{_figure(row, row.before)} | {_figure(row, row.after)} | {_worse(row)} | {_figure(row, row.margin)} |"
            for row in rows[:_SHOWN]
        ]
        lines += [""] + ([f"{len(rows) - _SHOWN} more", ""] if len(rows) > _SHOWN else [])
    lines += [
        f"- **weaker than the oldest baseline**: {cell(_place(row))}: {cell(sentence(row))}"
        for row in verdict.since_oldest[:_SHOWN]
    ]
    lines += [f"- **{code}**: {cell(subject)}: {cell(reason)}" for code, subject, reason in verdict.faults]
    lines += [f"- {line}" for line in _wider(verdict)]
    lines += [
        f"- weaker within the margin, for certain: {cell(_place(row))}: {cell(sentence(row))}"
        for row in verdict.comparisons
        if row.drifted
    ][:_SHOWN]
    lines += [f"- not compared: {cell(subject)}: {cell(reason)}" for subject, reason in verdict.unpaired[:_SHOWN]]
    lines += [f"- changed since the baseline: {cell(line)}" for line in verdict.changes]
    return "\n".join(lines).rstrip() + "\n"


def _wider(verdict: Verdict) -> Iterator[str]:
    for name, margin in verdict.wider.items():
        yield f"margin of {name}: {margin:g}, wider than the default {GATE_METRICS[name].margin:g}"


def junit(verdict: Verdict) -> str:
    """Return JUnit XML with a test case for each comparison, and for each defense that could not be compared. The
    outcome *weaker* is a failure. *Inconclusive* is an error, never a pass."""
    suites: dict[str, list[tuple[str, str, str, str]]] = {}
    for row in verdict.comparisons:
        case = (f"{row.point}.{row.defense}", row.metric, row.outcome, sentence(row))
        suites.setdefault(row.title, []).append(case)
    if verdict.since_oldest:
        suites["against the oldest baseline"] = [
            (f"{row.point}.{row.defense}", row.metric, "weaker", sentence(row)) for row in verdict.since_oldest
        ]
    if verdict.faults:
        suites["faults"] = [("faults", subject, "weaker", reason) for _, subject, reason in verdict.faults]
    if verdict.unpaired:
        suites["not compared"] = [
            ("not compared", subject, "inconclusive", reason) for subject, reason in verdict.unpaired
        ]
    root = ElementTree.Element("testsuites", name="bench gate")
    for title, cases in suites.items():
        outcomes = [outcome for _, _, outcome, _ in cases]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=_xml(title),
            tests=str(len(cases)),
            failures=str(outcomes.count("weaker")),
            errors=str(outcomes.count("inconclusive")),
            skipped="0",
            time="0",
        )
        for where, name, outcome, message in cases:
            element = ElementTree.SubElement(suite, "testcase", classname=_xml(where), name=_xml(name), time="0")
            if outcome != "pass":
                kind = "failure" if outcome == "weaker" else "error"
                ElementTree.SubElement(element, kind, message=_xml(message), type=outcome)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _place(row: Comparison) -> str:
    return f"{row.defense}, {row.point}, {row.title}"


def sentence(row: Comparison) -> str:
    """Describe a comparison in a line: `asr .10 → .45, worse by .35 [≥ .20], margin .10`."""
    text = (
        f"{GATE_METRICS[row.metric].words}: {_figure(row, row.before)} → {_figure(row, row.after)}, "
        f"worse by {_worse(row)}, margin {_figure(row, row.margin)}"
    )
    if row.outcome == "inconclusive":
        text += f"; {_reason(row)}"
    if row.attacks and row.outcome == "weaker":
        text += f"; by {', '.join(name.partition('(')[0] for name in row.attacks)}"
    return text


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
        last = f"{_worse(row)}, {_figure(row, row.margin)}"
        if row.outcome == "inconclusive":
            last += f"\n{_reason(row)}"
        table.add_row(
            escape(short[row.defense]),
            escape(f"{row.point}\n{row.title.partition(' · ')[0]}"),
            row.metric,
            _figure(row, row.before),
            _figure(row, row.after),
            escape(last),
        )
    return table


def _worse(row: Comparison) -> str:
    """Format the worsening with the bound that decided: the lower bound for *weaker*, otherwise the upper bound."""
    mark, bound = ("≥", row.lower) if row.outcome == "weaker" else ("≤", row.upper)
    return f"{_figure(row, row.worse)} [{mark} {_figure(row, bound)}]"


def _reason(row: Comparison) -> str:
    count = f": {row.needed} {GATE_METRICS[row.metric].of} needed, {row.pairs} here" if row.needed else ""
    return f"{row.reason}{count}"


def _figure(row: Comparison, value: float) -> str:
    if value in (float("inf"), float("-inf")):
        return "unbounded"
    unit = GATE_METRICS[row.metric].unit
    return f"{value:.1f}{unit}" if unit == " dB" else f"{value:.2f}{unit}"


def _xml(text: str) -> str:
    return _NOT_XML.sub("?", text)
