"""The claims as pages: verdicts (in git), each claim with figures, cells as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence

from _make.claims import SILENT, WORDS, Claim, Line, tally
from _make.markdown import COMMAND, HEAD, source, table
from bench.leaderboard.forms.numbers import NONE, fine, share
from bench.leaderboard.standings import mean
from bench.points import POINTS
from bench.record.names import distinct
from bench.record.schema import Record

ORDER = list(POINTS)
FIGURES = ("none", "plain", "black-box", "adaptive", "recognised (chance)", "ceiling by ε", "ceiling here")
CELLS = "claims-cells.csv"
NOT_ABOUT = "not about reconstruction"
_TITLE = HEAD.format(sources="docs/claims.toml") + "# Claims\n"
Lines = Mapping[str, Sequence[Line]]  # claim's id → its lines


def verdicts(version: str, records: Sequence[Record], every: Sequence[Claim], lines: Lines) -> str:
    """The page in git: claim and verdicts, ordered by defense."""
    rows = [
        [
            f"`{claim.id}`",
            _short(claim.paper),
            claim.claim,
            _means(lines[claim.id])[3] if lines[claim.id] else NONE,
            _means(lines[claim.id])[4] if lines[claim.id] else NONE,
            verdict(claim, lines[claim.id]),
        ]
        for claim in sorted(every, key=lambda claim: [str(each["name"]) for each in claim.defense])
    ]
    parts = [
        _TITLE,
        "Claims of papers about reconstruction, in our words, and the verdict of the reference results.\n",
        source(version, records),
        "A verdict counts settings, conditions and points.  The verdicts, the worst first:\n",
        _words(),
        "*Reconstructed*: share of the examples, by all attackers together if some attacker knows the defense.\n"
        "*Recognised*: named out of a gallery or (i) identified among strangers, with chance.  Means over the\n"
        "conditions whose verdict says something of the defense; (1 of 10): known in one condition of ten.\n",
        f"Figures by setting and point, reasons, and ids of cells: `{COMMAND}` writes `CLAIMS.md` and `{CELLS}`.\n",
        table(["claim", "paper", "in our words", "reconstructed", "recognised (chance)", "verdict"], rows),
    ]
    return "\n".join(parts)


def page(
    version: str,
    records: Sequence[Record],
    every: Sequence[Claim],
    lines: Lines,
    pages: Mapping[str, str],
    presets: Sequence[str],
) -> str:
    """The whole ledger; `pages`: file name → text, quoted by section; `presets`: names with records in `records`."""
    rows = [
        [f"[{claim.id}](#{claim.id})", claim.paper, *_means(lines[claim.id])[1:], verdict(claim, lines[claim.id])]
        for claim in every
    ]
    parts = [
        _TITLE,
        "Claims of papers about reconstruction, in our words, and the figures of the reference results.\n",
        source(version, records, {name: f"[{name}](results/{name}.md)" for name in presets}),
        "Figures are shares of the examples that are reconstructed.  *None*: without a defense.  *Plain*: by\n"
        "attackers who do not know the defense; by all attackers if the defense leaves a reading unchanged.\n"
        "*Black-box*: by attackers who can run the defense.  *Adaptive*: by all attackers together, if some attacker\n"
        "knows the defense.  *Recognised*: named out of a gallery or (i) identified among strangers, whichever is\n"
        "farther above chance; chance in brackets.  *Ceiling*: upper bound of the recognised share, by ε for any\n"
        "weights, and here for these weights.  –: no such attacker was run, or no bound is proved.  Every share is a\n"
        "lower bound for stronger attackers.  In a cascade a later attacker sees the remaining readings, so that\n"
        "*plain* and *black-box* are lower bounds too.\n",
        "A figure is the mean over the conditions of its row, without conditions whose verdict says nothing of the\n"
        "defense.  *(1 of 10)*: known in one condition of ten, so that the figure compares with no other column.  A\n"
        "defense at the client shows the same reading at type-1 and type-0: the suite attacks the reading once and\n"
        "counts the result at both.  Attackers of presets that read type-1 count at type-1.  Each condition:\n"
        f"[{CELLS}]({CELLS}).\n",
        "The figures of a setting in one condition, at one point, give one verdict, the worst first:\n",
        _words(),
        "A zero never holds without a ceiling.  A ceiling bounds the recognised share; for PSNR no bound is known.  A\n"
        "verdict is followed by the number of its conditions and points.  Accuracy: [DEFENSES.md](DEFENSES.md).\n",
        table(["claim", "paper", *FIGURES[1:], "verdict"], rows),
    ]
    return "\n".join(parts + [_claim(claim, lines[claim.id], pages) for claim in every])


def cells(lines: Lines) -> str:
    """CSV: setting, point, condition, figures, cell ids by knowledge."""
    once = {(line.defense, line.point, line.condition, _ids(line)): line for each in lines.values() for line in each}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["setting", "point", "condition", *FIGURES, "verdict", "cells"])
    for _, line in sorted(once.items(), key=lambda item: item[0]):
        writer.writerow([line.defense, line.point, line.condition, *_means([line]), line.verdict, _ids(line)])
    return out.getvalue()


def _claim(claim: Claim, lines: Sequence[Line], pages: Mapping[str, str]) -> str:
    parts = [
        f"## {claim.id}\n",
        f"{claim.paper}.\n",
        f"**Claim**: {claim.claim}\n",
        f"**Verdict**: {verdict(claim, lines)}.\n",
    ]
    if lines:
        short = distinct(line.defense for line in lines)
        groups: dict[tuple[str, str], list[Line]] = {}
        for line in lines:
            groups.setdefault((short[line.defense], line.point), []).append(line)
        rows = [
            [f"`{defense}`", point, *_means(its), _tally(its)]
            for (defense, point), its in sorted(groups.items(), key=lambda item: (item[0][0], ORDER.index(item[0][1])))
        ]
        parts += [table(["setting", "point", *FIGURES, "verdict"], rows)]
    if claim.why:
        parts += [f"**Why**: {claim.why}\n"]
    if claim.measured:
        quoted = "\n".join(f"- {each['text']}  ({_link(each['section'], pages)})" for each in claim.measured)
        parts += [f"**Measured elsewhere**, entered by hand:\n\n{quoted}\n"]
    return "\n".join(parts)


def _link(section: str, pages: Mapping[str, str]) -> str:
    """A link to the page with this section; raises `SystemExit` if no page has the section."""
    for name, text in sorted(pages.items()):
        if f"# {section}\n" in text:
            return f"[{name}](results/{name}), “{section}”"
    raise SystemExit(f"no page of docs/results has a section {section!r}; mend docs/claims.toml")


def _short(paper: str) -> str:
    """Authors, year and name: "Abadi et al. 2016 (DP-SGD)"."""
    start, bracket, _ = paper.partition(")")
    return start + bracket if bracket else paper.partition(",")[0]


def _words() -> str:
    return "\n".join(f"- **{word}**: {when}." for word, when in WORDS.items()) + "\n"


def _means(lines: Sequence[Line]) -> list[str]:
    """Cells for `FIGURES`: means over lines with evidence, or over all lines if no line has evidence."""
    its = [line.figures for line in lines if line.verdict not in SILENT] or [line.figures for line in lines]
    known = [rate for of in its if (rate := of.recognised)]
    mark = " i" if any(of.recognised is not of.named for of in its) else ""
    shares = []
    for name in ("undefended", "plain", "black_box", "adaptive"):
        values = [value for of in its if (value := getattr(of, name)) is not None]
        part = f" ({len(values)} of {len(its)})" if values and len(values) < len(its) else ""
        shares.append(share(mean(values)) + part)
    named, chance = mean([rate.value for rate in known]), mean([rate.chance for rate in known])
    bounds = [
        fine(mean([getattr(rate, name) for rate in known]))
        if known and all(getattr(rate, name) is not None for rate in known)
        else NONE
        for name in ("ceiling", "here")
    ]
    return [*shares, f"{share(named)}{mark} ({fine(chance)})" if known else NONE, *bounds]


def _ids(line: Line) -> str:
    ids = (f"{kind} {' '.join(each[:8] for each in cells)}" for kind, cells in line.cells.items())
    return "; ".join(ids) or NONE


def verdict(claim: Claim, lines: Sequence[Line]) -> str:
    """Verdict by hand, or the tally of the lines' verdicts."""
    return claim.verdict or (_tally(lines) if claim.defense else NOT_ABOUT)


def _tally(lines: Sequence[Line]) -> str:
    return "; ".join(f"{word} ({count})" if count else word for word, count in tally(lines).items())
