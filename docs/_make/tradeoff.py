"""README's opening and the page on accuracy at equal leakage, from the shipped trade-off."""

import math
from collections.abc import Iterable, Sequence
from functools import partial

from _make.markdown import HEAD, paragraph, table
from bench.calibration.measure import federations
from bench.cell import Federated
from bench.leaderboard.forms import frontier
from bench.leaderboard.forms.numbers import NONE, bracketed, epsilon
from bench.leaderboard.tradeoff import (
    LISTENERS,
    READING,
    Standing,
    ceilings,
    epsilons,
    findings_of,
    leakage,
    levels_of,
    named_in_mean,
    proof,
    proofs,
    reason,
    setting,
    standings,
    undefended,
    worst,
)
from bench.matrix.read import read
from bench.record.groups import grouped
from bench.record.tradeoff import LEVELS, PROVED, PROVED_ALL, AtLevel, Row, Tradeoff, codes, permitted

SERVER = LISTENERS["server"][0]
ROWS = 5
_STRONGEST = " at the strongest"
PICTURE = (
    '<a href="docs/pictures/tradeoff.svg"><img src="docs/pictures/tradeoff.svg" width="760" '
    'alt="Accuracy against named examples, at the server"></a>\n\n'
)
STRIP = (  # made by docs/pictures/strip.toml
    '<img src="docs/pictures/strip.png" width="560" alt="Victims and reconstructions">\n\n'
    "Eight victims, reconstructed by `map` from a client's update with 119 known examples.\n\n"
)


def picture(tradeoff: Tradeoff) -> str:
    """README's picture as SVG: the server's board of the first federation."""
    return frontier.svg(tradeoff, SERVER, next(iter(standings(tradeoff, SERVER))))


def opening(tradeoff: Tradeoff) -> str:
    """README's picture, table for the server, and the rule in short."""
    (where, ranked), *elsewhere = standings(tradeoff, SERVER).items()
    uploads = max(each.row.uploads for each in ranked)
    heads = ["defense", "accuracy kept", "named", "later", f"{uploads} updates", "any attacker", "proved, kept", "ε"]
    shown = [each for each in ranked if each.rank is not None][:ROWS]
    rows = [_short(tradeoff, each) for each in shown]
    others = [each for each in ranked if each not in shown]
    rows += _others(others)
    here = [each.row for each in ranked]
    chance = max(row.chance or 0.0 for row in here)
    level = f"{permitted('L1', chance):.0%}"
    note = (
        f"{where[0].upper()}, {where[1]}, {_setup()}; undefended accuracy {undefended(tradeoff, *where)}.  *Named*: an "
        "attacker at the server, who knows the defense, the label and all other examples, picks the example out of "
        f"about {1 / chance:.0f} candidates.  Each defense has the weakest strength with at most {level} of the "
        "calibration's victims named (L1), in the first round and *later*, halfway through the training.  Columns: "
        "other victims, with 95 % intervals.  "
        f"*{uploads} updates*: all updates of a client in a training combined: L1 is of one update.  *Any "
        f"attacker*: the most by ε, with one update of a client; with all {uploads}.  *Proved*: strength and accuracy "
        f"at which ε bounds any attacker by {level}; with all {uploads}; "
        f"*no model*: less than half of the accuracy above guessing is left.  ε: of the released models.  "
        f"{_without(others)}{_mean(tradeoff, ranked)}{''.join(_elsewhere(tradeoff, *other) for other in elsewhere)}"
        "[Other listeners, levels](docs/results/tradeoff.md); [reconstructions at published strengths]"
        "(docs/results/standard-v1.md)."
    )
    return f"{PICTURE}{table(heads, rows)}\n{paragraph(note)}\n{STRIP}"


def _others(others: Sequence[Standing]) -> list[list[str]]:
    """A row for families that meet L1 below the shown families, with the range of their accuracies."""
    met = [each for each in others if "L1" in each.kept]
    kept = [100 * each.kept["L1"] for each in met]
    return [[_families(met), f"{min(kept):.0f}–{max(kept):.0f}%", *[""] * 6]] if met else []


def _without(others: Sequence[Standing]) -> str:
    """A sentence on families without L1."""
    missed = [each for each in others if "L1" not in each.kept]
    return f"No useful strength of {_families(missed)} meets L1.  " if missed else ""


def _families(ranked: Iterable[Standing]) -> str:
    return ", ".join(f"`{each.row.family}`" for each in ranked)


def _mean(tradeoff: Tradeoff, ranked: Sequence[Standing]) -> str:
    """A sentence on families that hide a client's update, and not the mean."""
    named = named_in_mean(tradeoff, ranked)
    return f"The server also reads the mean, and names {', '.join(named)} there.  " if named else ""


def _elsewhere(tradeoff: Tradeoff, where: tuple[str, str], ranked: Sequence[Standing]) -> str:
    """A sentence on another federation."""
    met = sum(each.rank is not None and "L1" in each.at for each in ranked)
    best = ""
    if proved := proofs(tradeoff, ranked):
        kept, row, _ = proved[0]
        best = f"; `{row.family.partition('(')[0]}` keeps {kept:.0%} with a proof"
    return f"{where[0]}, {where[1]}: {met} of {len(ranked)} families meet L1{best}.  "


def page(tradeoff: Tradeoff) -> str:
    """The page: for each listener and federation the findings, and a table with a column for each level."""
    parts = [
        HEAD.format(sources="bench/reference/tradeoff.json"),
        "# Accuracy at equal leakage: results\n\n",
        paragraph(
            f"Made by `bench calibrate`, {tradeoff.machine or 'machine unknown'}, code "
            f"{codes(tradeoff)}.  Rule: [TRADEOFF](../TRADEOFF.md).  Intervals: 95 %, over weight seeds.  *Kept*: "
            "share of the undefended accuracy, at the weakest strength that meets a level.  A setting repeats with "
            "`bench run --matrix tradeoff --defense SETTING`, or the matrix of its data.  All strengths and intervals: "
            "`bench advise --html FILE`."
        ),
    ]
    earlier: dict[tuple[str, str], list[tuple[str, list[tuple[Row, dict[str, AtLevel]]], tuple[str, ...]]]] = {}
    for name, (point, meaning) in LISTENERS.items():
        groups = standings(tradeoff, point)
        if groups:
            parts.append(f"\n## {name}: {meaning}\n")
        for where, ranked in groups.items():
            rows = [(each.row, each.at) for each in ranked]
            parts.append(f"\n### {where[0]}, {where[1]} (undefended accuracy {undefended(tradeoff, *where)})\n\n")
            others = earlier.setdefault(where, [("", [], ())])
            same, before, said = max(others, key=lambda other: sum(row in other[1] for row in rows))
            if rows == before:
                parts.append(f"The same figures as for the listener *{same}*.\n")
                continue
            lines = tuple(findings_of(tradeoff, ranked))
            others.append((name, rows, lines))
            differing = [each for each in ranked if (each.row, each.at) not in before]
            if 2 * len(differing) < len(ranked):
                parts.append(f"The same as for the listener *{same}*, except:\n\n")
                lines = tuple(line for line in lines if line not in said)
            else:
                differing = list(ranked)
            parts += [f"- {line}\n" for line in lines]
            levels = levels_of(ranked)
            if met := [each for each in differing if each.rank is not None]:
                parts.append("\n" + _filled(_heads(levels), [_line(tradeoff, each, levels) for each in met]))
            if missed := [each for each in differing if each.rank is None]:
                reasons = grouped(missed, partial(_missed, levels))
                texts = (f"{_families(its)}: {text}" for text, its in reasons.items())
                parts.append("\n" + paragraph(f"No level met.  {'; '.join(texts)}."))
    absent = [row for row in tradeoff.rows if row.absent is not None]
    if absent:
        parts.append("\n## Without figures\n\n")
        parts.append(
            table(
                ["data set", "defense", "point", "reason"],
                [[r.dataset, f"`{r.family}`", r.point, r.absent or ""] for r in absent],
            )
        )
    return "".join(parts)


def _filled(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table without the columns that have no figure; a level's first column stays."""
    columns = [
        column
        for column, head in enumerate(heads)
        if head.endswith(": strength") or any(row[column] != NONE for row in rows)
    ]
    return table([heads[column] for column in columns], [[row[column] for column in columns] for row in rows])


def _heads(levels: Sequence[str]) -> list[str]:
    heads = ["defense"]
    for level in levels:
        heads += [f"{level}: strength", "kept", leakage(level), "later"]
    return [*heads, "L1: all updates", "any attacker", READING, "L1 proved", "for all readings", "ε", "area", "DCS"]


def _short(tradeoff: Tradeoff, each: Standing) -> list[str]:
    level = next(level for level in LEVELS if level in each.at)
    at = each.at[level]
    kept = f"{each.kept[level]:.0%}{'' if level == 'L1' else f' (only {level})'}"
    line = [f"`{setting(each.row, at)}`", kept, _interval(at.share, at.low, at.high)]
    line += [NONE if each is None else _interval(*each) for each in (at.trained, at.all_updates)]
    released = NONE if at.released is None else f"{epsilon(at.released)} ({(at.released_of or '').split(',')[0]})"
    return [*line, ceilings(each.row, at), _proofs(tradeoff, each.row), released]


def _setup() -> str:
    row = federations(read("tradeoff"))[0].trainings[0]
    setting: Federated = row["federated"]
    return (
        f"{setting.clients} clients with {setting.client_examples} examples, {setting.per_round} in each of "
        f"{row['rounds']} rounds"
    )


def _proofs(tradeoff: Tradeoff, row: Row) -> str:
    proofs = dict.fromkeys(proof(tradeoff, row, level) for level in (PROVED, PROVED_ALL))
    return "; ".join(each for each in proofs if each != NONE) or NONE


def area(tradeoff: Tradeoff, row: Row) -> float | None:
    """Return a summary of a family over all its strengths, in [0, 1], larger is better; None for a `row` without
    trainings. It is the area under the curve of accuracy against leakage: the largest share of the undefended accuracy
    that a measured strength keeps with at most x of the examples named, averaged over x from chance to 1."""
    if row.chance is None or not row.at_levels:
        return None
    points = sorted((max(worst(at), row.chance), min(1.0, tradeoff.kept(row, at))) for at in row.at_levels)
    ends = [*(named for named, _ in points[1:]), 1.0]
    total, best = 0.0, 0.0
    for (named, kept), end in zip(points, ends, strict=True):
        best = max(best, kept)
        total += best * (end - named)
    return total / (1 - row.chance)


def capability(tradeoff: Tradeoff, row: Row) -> float | None:
    """Return the largest Defense Capability Score over the measured strengths of a `row`, in [0, 1], larger is better;
    None for a row without trainings. The score is VFLAIR's (Zou et al., ICLR 2024) with β = 0.5: the attack's
    performance is the share of named examples, at best chance level for a defense; the main task's performance is the
    test accuracy."""
    if row.chance is None or not row.at_levels:
        return None
    best = tradeoff.undefended_mean(row.dataset, row.model)
    distances = [math.sqrt(((worst(at) - row.chance) ** 2 + (at.accuracy - best) ** 2) / 2) for at in row.at_levels]
    return 1 / (1 + min(distances))


def _line(tradeoff: Tradeoff, each: Standing, levels: Sequence[str]) -> list[str]:
    row = each.row
    line, missed = [f"`{row.family}`"], list[str]()
    for level in levels:
        at = each.at.get(level)
        if at is None:
            missed.append(reason(each, level))
            line += ["same" if missed[-1] in missed[:-1] else missed[-1], NONE, NONE, NONE]
        else:
            later = NONE if at.trained is None else f"{at.trained[0]:.0%}"
            line += [_strength(row, at), f"{each.kept[level]:.0%}", _interval(at.share, at.low, at.high), later]
    at = next(each.at[level] for level in LEVELS if level in each.at)
    released = NONE if at.released is None else f"{epsilon(at.released)} ({(at.released_of or '').split(',')[0]})"
    proved = [proof(tradeoff, row), proof(tradeoff, row, PROVED_ALL)]
    first = each.at.get("L1")
    combined = None if first is None else first.all_updates
    return [
        *line,
        NONE if combined is None else _interval(*combined),
        ceilings(row, at),
        epsilons(tradeoff, row, at).replace(" ", ""),
        *proved,
        released,
        _number(area(tradeoff, row)),
        _number(capability(tradeoff, row)),
    ]


def _missed(levels: Sequence[str], each: Standing) -> str:
    reasons = dict.fromkeys(reason(each, level) for level in levels)
    if all(text.endswith(_STRONGEST) for text in reasons):
        reasons = dict.fromkeys([", ".join(text.removesuffix(_STRONGEST) for text in reasons) + _STRONGEST])
    return ", ".join(reasons)


def _strength(row: Row, at: AtLevel) -> str:
    if at.value is None:
        return NONE
    return f"{row.parameter}={at.value:.4g}"


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _interval(share: float, low: float, high: float) -> str:
    return f"{bracketed(share, low, high)} %"
