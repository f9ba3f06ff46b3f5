"""The verdict as Markdown: a job's summary, and a comment for a pull request.

Names come from strangers. Each name stands in a code span, in which no service knows mentions, links or markup, and
letters that could end the span or the table's column are replaced by similar letters."""

import re
from collections.abc import Iterable, Iterator

from bench.gate.noninferiority import LEVEL
from bench.gate.reports import change, figure, openings, sentence, weight, worse, worst
from bench.gate.verdict import GATE_METRICS, Comparison, Verdict
from bench.points import POINTS
from bench.record.names import distinct
from bench.sanitize import LONG, SHORT, sanitize

MOST = 65_536  # characters in a comment on GitHub
_ROWS = 25
_LINES = 20
_RESERVE = 2_000  # characters for the last lines: bounds, and the command
_SURE = f"{100 * LEVEL:.0f} % confidence (one-sided)"
_SIMILAR = str.maketrans({"`": "'", "@": "＠", "<": "‹", ">": "›", "|": "¦"})
_HEAD = "| defense | where | figure | baseline | now | worse by | tolerated |\n|---|---|---|---|---|---|---|"


def code(text: object, most: int = SHORT) -> str:
    """Format an untrusted `text` as a Markdown code span on a line, with at most `most` characters: no control
    character, mention, link, markup or column break remains."""
    shown = sanitize(" ".join(str(text).split()), most).translate(_SIMILAR)
    return f"`{shown}`" if shown else "–"


def comment(verdict: Verdict) -> str:
    """Return the gate's `verdict` as a Markdown comment for a pull request, of at most 65 536 characters. The first
    line is a hidden marker with the baseline's name; the next comment with this marker replaces the comment."""
    name = re.sub(r"[^A-Za-z0-9._/]+", "-", verdict.occasion.baseline).replace("--", "-")[:200]
    return markdown(verdict, f"<!-- bench-gate:{name} -->\n")


def markdown(verdict: Verdict, opening: str = "") -> str:
    """Return the gate's `verdict` as Markdown: the figures that changed, by how much and how certainly, and the command
    that repeats the comparison. The text `opening` comes first. The result has at most 65 536 characters."""
    text, left = f"{opening}### {_headline(verdict)}\n", False
    for part in _parts(verdict):
        if len(text) + len(part) + _RESERVE > MOST:
            left = True
            break
        text += f"\n{part}\n"
    if left:
        text += "\nMore is in the verdict's JSON file.\n"
    return f"{text}\n{_ending(verdict)}\n"


def _headline(verdict: Verdict) -> str:
    count = f"{len(verdict.comparisons)} comparisons over {verdict.cells} cells"
    if verdict.outcome == "pass":
        words = f"holds: no metric worsened by its margin ({count})"
    elif verdict.outcome == "changed":
        words = "the baseline was changed, and nobody accepted this"
    elif verdict.outcome == "inconclusive":
        words = f"inconclusive: too little evidence, or missing cells ({count})"
    elif (row := worst(verdict)) is None:
        words = f"a defense breaks its promise: {verdict.faults[0][0]}" if verdict.faults else "weaker"
    else:
        name = code(row.defense.partition("(")[0], 60)
        moved = f"{figure(row.metric, row.before)} → {figure(row.metric, row.after)}"
        words = f"{name} is weaker: {GATE_METRICS[row.metric].words}: {moved}"
    changed = f" ({code(verdict.parameters[0], 80)})" if verdict.parameters else ""
    altered = "the baseline was changed, and " if verdict.occasion.altered and verdict.outcome == "weaker" else ""
    return f"Leakage gate: {altered}{words}{changed}"


def _parts(verdict: Verdict) -> Iterator[str]:
    """Yield paragraphs in the order of their weight."""
    yield from _list(code(line, LONG) for line in openings(verdict))
    weaker = sorted(_of(verdict, "weaker"), key=weight)
    yield from _table(weaker, "Weaker")
    yield from _table(verdict.since_oldest, "Weaker than the oldest baseline")
    yield from _list(f"**{code}** {_code(subject)}: {_code(reason, LONG)}" for code, subject, reason in verdict.faults)
    yield from _list(f"margin of {name} {margin:g}: wider than the default" for name, margin in verdict.wider.items())
    yield from _table(_of(verdict, "inconclusive"), "Inconclusive")
    yield from _list(f"not compared: {code(subject)}: {code(reason, LONG)}" for subject, reason in verdict.unpaired)
    yield from _list(
        f"weaker within the margin, for certain: {code(_place(row))}: {sentence(row, code)}"
        for row in verdict.comparisons
        if row.drifted
    )
    yield from _list(f"code changed since the baseline: {code(line)}" for line in verdict.changes)


_code = code


def _of(verdict: Verdict, outcome: str) -> list[Comparison]:
    return [row for row in verdict.comparisons if row.outcome == outcome]


def _table(rows: Iterable[Comparison], title: str) -> Iterator[str]:
    rows = list(rows)
    if not rows:
        return
    short = distinct(row.defense for row in rows)
    titles = {row.title for row in rows}
    shared = f": {code(rows[0].title, LONG)}" if len(titles) == 1 else ""
    lines = [f"**{title}**{shared}", "", _HEAD]
    where = [_listener(row) if shared else f"{_listener(row)} {code(row.title)}" for row in rows[:_ROWS]]
    lines += [
        f"| {code(short[row.defense])} | {place} | {GATE_METRICS[row.metric].words} "
        f"(`{row.metric}`) | {figure(row.metric, row.before)} | {figure(row.metric, row.after)} | {worse(row)} "
        f"| {change(row.metric, row.margin)} |"
        for row, place in zip(rows, where, strict=False)
    ]
    if more := len(rows) - _ROWS:
        lines += ["", f"{more} more rows"] if more > 0 else []
    reasons = dict.fromkeys(code(row.reason, LONG) for row in rows if row.outcome == "inconclusive" and row.reason)
    yield "\n".join([*lines, *(["", *(f"- {reason}" for reason in reasons)] if reasons else [])])


def _list(lines: Iterable[str]) -> Iterator[str]:
    lines = list(lines)
    more = [f"- {len(lines) - _LINES} more"] if len(lines) > _LINES else []
    if lines:
        yield "\n".join([*(f"- {line}" for line in lines[:_LINES]), *more])


def _ending(verdict: Verdict) -> str:
    passed, count = len(_of(verdict, "pass")), len(verdict.comparisons)
    seeds, pairs = (
        max((getattr(row, name) for row in verdict.comparisons), default=0) for name in ("clusters", "pairs")
    )
    lines = [
        f"{passed} of {count} comparisons pass. Baseline and run attack the same examples: up to {pairs} a comparison, "
        f"over {seeds} weight seeds."
    ]
    if _of(verdict, "weaker"):
        lines.append(f"[≥ x]: the worsening is at least x, with {_SURE}, corrected for {count} comparisons (Holm).")
    if _of(verdict, "inconclusive"):
        lines.append(f"[≤ x]: the worsening is at most x, with {_SURE}.")
    if command := verdict.occasion.command:
        lines.append(f"\n\nTo repeat the gate, in the repository: {code(command, LONG)}")
        if verdict.outcome == "weaker":
            lines.append(
                "\nIf the change is intended: write the baseline again, and give a reason: `--accept-baseline`."
            )
    return " ".join(lines)


def _listener(row: Comparison) -> str:
    return POINTS[row.point].heading if row.point in POINTS else code(row.point)


def _place(row: Comparison) -> str:
    return f"{row.defense}, {row.point}, {row.title}"
