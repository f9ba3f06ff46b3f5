"""Write the generated documents from what is committed: reference records, claims, the registry.

python docs/generate.py            # docs/DEFENSES.md, CLAIMS.md, results/, RESULTS.md, README's board
python docs/generate.py --check    # write nothing; exit 1 and name each file that differs
"""

import argparse
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from _make import exports, preset, report
from _make.claims import SILENT, WORDS, Claim, Line, ledger, read, tally
from _make.gist import gist

from bench.leaderboard.attack_ranks import attack_ranks
from bench.leaderboard.board import board
from bench.leaderboard.forms import poster
from bench.leaderboard.forms.numbers import NONE, epsilon, fine, share
from bench.leaderboard.forms.strips import VICTIMS_NAME
from bench.leaderboard.standings import Standing, mean, standings
from bench.matrix.entries import registered
from bench.record.names import distinct, entry_text
from bench.record.schema import Record
from bench.reference import store
from bench.registry import entries

DOCS = Path(__file__).parent
ROOT = DOCS.parent
BOARD = ("<!-- board -->", "<!-- /board -->")
POINTS = ("type-2", "type-1", "type-0", "aggregate")
# Presets on the suite's own examples: the claims are held against their records, too.
BESIDE = ("post-processing", "mixup")
NOT_MEASURED = "not measured yet"
# The literature's word on a defense without a row in literature.toml.
UNKNOWN = {"status": "no attack on it is known to us", "text": "Our search has not covered it yet."}
NOT_ABOUT = "not about reconstruction"
FIGURES = ("none", "plain", "black-box", "adaptive", "recognised (chance)", "ceiling by ε", "ceiling here")
HEAD = "<!-- Written by docs/generate.py: edit {sources}, and run it again. -->\n\n"


def documents(folder: Path = store.FOLDER) -> dict[str, str]:
    """Name → text of every generated document, from the newest reference results in this folder, if any."""
    version = max(store.versions(folder), default="")
    records = store.read(version, folder) if version else []
    every, rows = read(DOCS / "claims.toml"), board(records)
    exported_runs = exports.every(DOCS / "exports")
    beside = {each.name: each.records for each in exported_runs if each.matrix in BESIDE}
    beside_them = [record for each in beside.values() for record in each]
    known = list({record.id: record for record in (*beside_them, *records)}.values())  # what both have ships
    lines, standing = ledger(every, known, board(known)), standings(rows)
    made = {f"docs/results/{each.name}.md": exported(each) for each in exported_runs}
    made |= {
        "docs/DEFENSES.md": defenses(version, records, standing),
        "docs/CLAIMS.md": claims(version, known, every, lines, _pages(made), tuple(beside)),
        "docs/CLAIMS-CELLS.md": cells(lines),
        "README.md": _between((ROOT / "README.md").read_text("utf-8"), opening(version, standing)),
    }
    if records:
        strips = store.strips(version, (VICTIMS_NAME, *(each.defense for each in standing)), folder)
        made |= {
            "docs/pictures/board.svg": poster.svg(standing, strips, f"Gradient leakage, {version}").decode(),
            f"docs/results/{version}.md": HEAD.format(sources="the reference results")
            + report.page(version, records, rows, standing, attack_ranks(records)),
        }
    return made | {"RESULTS.md": results(version, standing, made)}


def opening(version: str, every: Sequence[Standing]) -> str:
    """What README opens with: the board's picture, and what protects, at what cost."""
    if not every:
        return ""
    said = "\n".join(f"- {line}" for line in gist(every))
    about = f"the standings of published defenses on the suite {version}, {len(every)} settings"
    return (
        f"![{about[:1].upper()}{about[1:]}](docs/pictures/board.svg)\n\n"
        f"<sub>`{version}`: {len(every)} settings of defenses, with none, against the suite's attackers, adaptive and\n"
        "black-box, on a table plain ones too.  `bench leaderboard --reference`; every\n"
        "figure: "
        f"[docs/results/{version}.md](docs/results/{version}.md).</sub>\n\n{said}\n"
    )


def exported(export: exports.Export) -> str:
    """The page of a preset: what was run, remarks by hand, and what came out."""
    records = export.records
    minutes = sum(record.cost.cpu_seconds for record in records) / 60
    scale = f" --scale {export.scale}" if export.scale else ""
    facts = [
        f"`bench run --matrix {export.matrix}{scale}`",
        f"commit {export.commit}, {report.code(records)}",
        f"{len(records)} cells, {minutes:.0f} core-minutes",
        report.machines(records),
    ]
    remarks = DOCS / "remarks" / f"{export.name}.md"
    sources = f"docs/remarks/{export.name}.md or export the run again"
    parts = [HEAD.format(sources=sources) + f"# {export.matrix}\n", f"{export.title}.\n", "; ".join(facts) + ".\n"]
    parts += [remarks.read_text("utf-8")] if remarks.is_file() else []
    return "\n".join([*parts, preset.page(records, export.published)])


def results(version: str, every: Sequence[Standing], made: Mapping[str, str]) -> str:
    """The results on one screen, and the pages that have them whole: those made here, and those by hand."""
    parts = [
        HEAD.format(sources="docs/results/") + "# Results\n",
        "What was measured.  The pages have command, commit or fingerprint of the code, machine, scale and interval,\n"
        "and the papers' figures beside ours; a figure that is open is written as open.\n",
    ]
    if every:
        parts += [f"## {version}\n", "\n".join(f"- {line}" for line in gist(every)) + "\n"]
    listed = []
    for name, text in sorted(_pages(made).items()):
        title, _, rest = re.sub(r"\A<!--.*?-->\s*", "", text).removeprefix("# ").partition("\n\n")
        about = "; ".join(re.findall(r"^## (.+)$", text, re.MULTILINE))
        if f"docs/results/{name}" in made:
            about = "the reference board, whole" if name == f"{version}.md" else rest.partition("\n")[0]
        listed.append([f"[{title}](docs/results/{name})", about])
    parts += ["## Pages\n", _table(["page", "what is in it"], listed)]
    parts += ["Claims of papers, with our verdict on each: [docs/CLAIMS.md](docs/CLAIMS.md).\n"]
    return "\n".join(parts)


def _pages(made: Mapping[str, str]) -> dict[str, str]:
    """File name → text of the pages of results: those by hand, and those made here."""
    pages = {path.name: path.read_text("utf-8") for path in (DOCS / "results").glob("*.md")}
    return pages | {Path(name).name: text for name, text in made.items() if name.startswith("docs/results/")}


def _between(text: str, content: str) -> str:
    """The text with this content between its two marks."""
    before, start, rest = text.partition(BOARD[0])
    _, end, after = rest.partition(BOARD[1])
    if not start or not end:
        raise SystemExit(f"README.md: lacks {BOARD[0]} … {BOARD[1]}")
    return f"{before}{start}\n{content}{end}{after}"


def defenses(version: str, records: Sequence[Record], every: Sequence[Standing]) -> str:
    """Every registered defense of bench's own: what it is, its status in the literature, our figures."""
    literature = tomllib.loads((DOCS / "literature.toml").read_text("utf-8"))
    names = [name for name in entries.names("defenses") if entries.origin("defenses", name).built_in]
    literature |= {name: UNKNOWN for name in names if name not in literature}
    parts = [
        HEAD.format(sources="the classes or docs/literature.toml") + "# Defenses\n",
        "Each registered defense: where it comes from, its idea, where it may act, its default strength, what the\n"
        "literature says of it, and what the reference results say.  *Leaked* is the share of examples that some\n"
        "attacker reconstructs, and *recognised* the share that one tells from others, both as means over the\n"
        "conditions that count (`leaderboard/standings.py`).  A small share of leaked examples is a lower bound of\n"
        "what others may get: read it beside *recognised*, and see `EVALUATION.md`.  What papers claim of them:\n"
        "`CLAIMS.md`.\n",
        _source(version, records),
        _table(
            ["defense", "stages", "literature", "best rank here"],
            [
                [
                    f"[{name}](#{name})",
                    ", ".join(_strings(entries.literals("defenses", name).get("stages"))) or NONE,
                    literature[name]["status"],
                    _best(its, every) if (its := _settings(every, name)) else NOT_MEASURED,
                ]
                for name in names
            ],
        ),
    ]
    return "\n".join(parts + [_defense(name, literature[name], _settings(every, name), len(every)) for name in names])


def claims(
    version: str,
    records: Sequence[Record],
    every: Sequence[Claim],
    lines: Mapping[str, Sequence[Line]],
    pages: Mapping[str, str],
    beside: Sequence[str] = (),
) -> str:
    """The ledger: published claim → our verdict → why they differ; `pages`: of results, which it quotes; `beside`:
    whose records are among them."""
    parts = [
        HEAD.format(sources="docs/claims.toml") + "# Claims\n",
        "What papers claim of defenses against reconstruction, in our words, beside what the reference results say.\n",
        _source(version, records, beside),
        "Figures are shares of the examples that are reconstructed.  *None*: without a defense.  *Plain*: by\n"
        "attackers who do not know it; where the defense leaves a reading as it is, by all.  *Black-box*: by\n"
        "those who can only run it.  *Adaptive*: by all attackers together, one of whom knows it: he can do what\n"
        "the others do.  *Recognised*: named out of a gallery, or, marked i, identified among strangers,\n"
        "whichever is farther above chance, which stands beside it.  *Ceiling*: the most that any attacker\n"
        "recognises, by ε on any weights, and here on these.  –: nobody of the kind was run, or nothing is\n"
        "proved.  Every share is a lower bound of what others would get; in a cascade an attacker sees only what\n"
        "others left, so that *plain* and *black-box* are lower bounds of theirs, too.\n",
        "A figure is the mean over the conditions of its row; those that say nothing are left out.  *(1 of 10)*: in\n"
        "one of ten conditions such an attacker was run, so that it compares with no other column.  Where a defense\n"
        "acts at the client, type-1 and type-0 show the same reading: in the suite it was attacked once, and counts\n"
        "at both.  Attackers of presets that read type-1 alone count there alone; what they get, type-0 gives, too.\n"
        "`CLAIMS-CELLS.md` has every condition with its figures and the cells behind them.\n",
        "The figures of a setting in one condition, at one point, give one of these verdicts, the worst first:\n",
        "\n".join(f"- **{word}**: {when}." for word, when in WORDS.items()) + "\n",
        "A zero alone never holds: it takes a ceiling.  A ceiling bounds what is recognised; none is known for PSNR\n"
        "alone.  Behind a verdict stands the number of conditions and points that give it.  A verdict says nothing of\n"
        "the accuracy that is left: `DEFENSES.md` has it.\n",
        _table(
            ["claim", "paper", *FIGURES[1:], "verdict"],
            [
                [
                    f"[{claim.id}](#{claim.id})",
                    claim.paper,
                    *_means(lines[claim.id])[1:],
                    _verdicts(claim, lines[claim.id]),
                ]
                for claim in every
            ],
        ),
    ]
    return "\n".join(parts + [_claim(claim, lines[claim.id], pages) for claim in every])


def cells(lines: Mapping[str, Sequence[Line]]) -> str:
    """Every setting, point and condition that a claim speaks of: its figures, and the cells behind them."""
    once = {(line.defense, line.point, line.condition, _cells(line)): line for each in lines.values() for line in each}
    parts = [
        HEAD.format(sources="docs/claims.toml") + "# The cells behind the claims\n",
        "Every condition of `CLAIMS.md`, with its figures and the first eight letters of the ids of its cells, by\n"
        "what the attacker knew.\n",
    ]
    for defense, group in groupby(sorted(once.items(), key=lambda item: item[0]), key=lambda item: item[0][0]):
        rows = [[line.point, line.condition, *_means([line]), _cells(line)] for _, line in group]
        parts += [f"## `{defense}`\n", _table(["point", "condition", *FIGURES, "cells"], rows)]
    return "\n".join(parts) if once else "\n".join([*parts, "There are none yet.\n"])


def _defense(name: str, status: Mapping[str, str], its: Sequence[Standing], of: int) -> str:
    literals = entries.literals("defenses", name)
    sentence = re.split(r"\.(?=\s|$)", str(literals.get("__doc__") or ""), maxsplit=1)[0]
    facts = [
        ("Idea", _plain(" ".join(sentence.split()) + ".")),
        ("Source", _plain(str(literals.get("reference") or NONE))),
        ("Stages", ", ".join(_strings(literals.get("stages"))) or NONE),
        ("Default strength", f"`{entry_text(registered('defense', name, entries))}`"),
        ("Literature", f"{status['status']}. {status['text']}"),
    ]
    listed = "\n".join(f"- **{what}**: {text}" for what, text in facts)
    return f"## {name}\n\n{listed}\n\n" + (_figures(its, of) if its else f"Our verdict: {NOT_MEASURED}.\n")


def _figures(its: Sequence[Standing], of: int) -> str:
    points = [point for point in POINTS if any(point in standing.points for standing in its)]
    rows = []
    for standing in its:
        there = [standing.points.get(point) for point in points]
        leaked = [("≥ " if place.lower_bound else "") + share(place.leaked) if place else NONE for place in there]
        known = [
            f"{share(place.recognised)} ({fine(place.chance)})" if place and place.recognised is not None else NONE
            for place in there
        ]
        spent = NONE if standing.epsilon is None else f"{epsilon(standing.epsilon)}, {standing.epsilon_of}"
        rank = f"lacks {standing.missing} figures" if standing.missing else f"{standing.rank} of {of}"
        faults = ", ".join(standing.faults)
        rows.append(
            [
                f"`{standing.defense}`",
                rank + (f", {faults}" if faults else ""),
                *leaked,
                *known,
                spent,
                share(standing.accuracy, 1) + ("" if not standing.diverged else f", {len(standing.diverged)} diverged"),
            ]
        )
    heads = [*(f"leaked, {point}" for point in points), *(f"recognised (chance), {point}" for point in points)]
    return _table(["setting", "rank", *heads, "ε", "accuracy"], rows)


def _claim(claim: Claim, lines: Sequence[Line], pages: Mapping[str, str]) -> str:
    parts = [
        f"## {claim.id}\n",
        f"{claim.paper}.\n",
        f"**Claim**: {claim.claim}\n",
        f"**Verdict**: {_verdicts(claim, lines)}.\n",
    ]
    if lines:
        short = distinct(line.defense for line in lines)
        groups: dict[tuple[str, str], list[Line]] = {}
        for line in lines:
            groups.setdefault((short[line.defense], line.point), []).append(line)
        rows = [
            [f"`{defense}`", point, *_means(its), _tally(its)]
            for (defense, point), its in sorted(groups.items(), key=lambda item: (item[0][0], POINTS.index(item[0][1])))
        ]
        parts += [_table(["setting", "point", *FIGURES, "verdict"], rows)]
    if claim.why:
        parts += [f"**Why**: {claim.why}\n"]
    if claim.measured:
        quoted = "\n".join(
            f"- {each['text']}  ({_page_of(each['section'], pages)}, “{each['section']}”)" for each in claim.measured
        )
        parts += [f"**Measured elsewhere**, entered by hand:\n\n{quoted}\n"]
    return "\n".join(parts)


def _page_of(section: str, pages: Mapping[str, str]) -> str:
    """The page of results that has a section, as a link."""
    for name, text in sorted(pages.items()):
        if f"# {section}\n" in text:
            return f"[{name}](results/{name})"
    raise SystemExit(f"no page of docs/results has a section {section!r}; mend docs/claims.toml")


def _means(lines: Sequence[Line]) -> list[str]:
    """The cells of `FIGURES`: means over the lines that say something, or over all where none does."""
    its = [line.figures for line in lines if line.verdict not in SILENT] or [line.figures for line in lines]
    known = [rate for of in its if (rate := of.recognised)]
    mark = " i" if any(of.recognised is not of.named for of in its) else ""
    shares = []
    for name in ("undefended", "plain", "black_box", "adaptive"):
        there = [value for of in its if (value := getattr(of, name)) is not None]
        part = f" ({len(there)} of {len(its)})" if there and len(there) < len(its) else ""
        shares.append(share(mean(there)) + part)
    named, chance = mean([rate.value for rate in known]), mean([rate.chance for rate in known])
    bounds = [
        fine(mean([getattr(rate, name) for rate in known]))
        if known and all(getattr(rate, name) is not None for rate in known)
        else NONE
        for name in ("ceiling", "here")
    ]
    return [*shares, f"{share(named)}{mark} ({fine(chance)})" if known else NONE, *bounds]


def _cells(line: Line) -> str:
    ids = (f"{kind} {' '.join(each[:8] for each in cells)}" for kind, cells in line.cells.items())
    return "; ".join(ids) or NONE


def _verdicts(claim: Claim, lines: Sequence[Line]) -> str:
    return _tally(lines) if claim.defense else NOT_ABOUT


def _tally(lines: Sequence[Line]) -> str:
    return "; ".join(f"{word} ({count})" if count else word for word, count in tally(lines).items())


def _settings(every: Iterable[Standing], name: str) -> list[Standing]:
    return [standing for standing in every if standing.defense.partition("(")[0] == name]


def _best(its: Sequence[Standing], every: Sequence[Standing]) -> str:
    ranks = [standing.rank for standing in its if not standing.missing and not standing.faults]
    return f"{min(ranks)} of {len(every)}" if ranks else "not ranked"


def _source(version: str, records: Sequence[Record], beside: Sequence[str] = ()) -> str:
    if not records:
        return "There are no reference results yet: every verdict is open.\n"
    others = ", ".join(f"[{name}](results/{name}.md)" for name in beside)
    also = f"; among them the runs of {others} on the same examples" if others else ""
    return f"Reference results: `{version}`, {len(records)} records{also}.\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _plain(text: str) -> str:
    """Text whose marks Markdown leaves alone."""
    return re.sub(r"([*_|<])", r"\\\1", text)


def _strings(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, tuple) else []


def differing(folder: Path = store.FOLDER) -> list[Path]:
    """The documents that are not what would be written."""
    return [
        path
        for name, text in documents(folder).items()
        if not (path := ROOT / name).is_file() or path.read_text("utf-8") != text
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file differs")
    if parser.parse_args().check:
        stale = differing()
        for path in stale:
            print(f"{path}: not what docs/generate.py writes; run `python docs/generate.py`")
        return 1 if stale else 0
    for name, text in documents().items():
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
