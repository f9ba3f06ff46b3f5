"""Papers' claims against the records: a verdict for each setting, condition and point.

`verdict` is the rule; `WORDS` defines each verdict.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bench.cell import AttackCell
from bench.leaderboard.board import Row
from bench.leaderboard.conditions import Condition, by_condition, condition_text, weights_text
from bench.leaderboard.costs import UNDEFENDED
from bench.leaderboard.flags import NOTHING_SENT
from bench.leaderboard.recognition import Rate, most_over_chance
from bench.leaderboard.standings import COUNTS
from bench.leaderboard.worst import GRADIENT_FREE, WorstCase
from bench.record.names import entry_text
from bench.record.schema import Record

LEAKS = 0.1  # of the examples: from here on a defense leaks; a ceiling less than that above chance rules it out
_LEAKS, _COUNTS = f"{100 * LEAKS:.0f} %", f"{100 * COUNTS:.0f} %"
# Verdict → rule, the worst first.
WORDS = {
    "refutes its ε": "attackers recognise more than the ε at this point allows",
    "falls": f"attackers who do not know the defense reconstruct {_LEAKS} or more",
    "falls to adaptive attackers": f"attackers who know or can run the defense reconstruct {_LEAKS} or more; attackers "
    "who do not get less, or were not run",
    "falls in part": f"some examples are reconstructed, fewer than {_LEAKS}",
    "hides pixels, not identities": f"no example is reconstructed, {_COUNTS} or more are without a defense, and "
    "attackers recognise more than chance (lower end, 95 % interval)",
    "leaks, as claimed": "the paper calls this point open, and examples are reconstructed",
    "not shown": "the paper calls this point open, and our attackers reconstruct no example",
    "not reconstructed (lower bound)": f"no example is reconstructed by our attackers, {_COUNTS} or more are without a "
    "defense, none is recognised above chance, and no ceiling excludes stronger attackers",
    "holds on these weights": "the same, and the best decoder, a bound for every attacker on these weights and data, "
    f"names less than {_LEAKS} points above chance (upper end, 95 % interval)",
    "holds, by its ε": f"no example is reconstructed, {_COUNTS} or more are without a defense, and the ε at this point "
    f"bounds recognition to less than {_LEAKS} points above chance, on any weights",
    "does not act here": "the readings equal the undefended readings: the defense acts later, or at another stage",
    "no evidence": f"no example is reconstructed, fewer than {_COUNTS} are without a defense: the attackers may be "
    "too weak",
    "nothing was sent": "most readings are all zeros: the defense sends the attacked round later",
    "no attack applies": "no attack here can read this point",
    "not measured yet": "a reference result is missing, with the defense or without",
}
(
    REFUTED,
    FALLS,
    TO_KNOWING,
    IN_PART,
    IDENTITIES,
    AS_CLAIMED,
    NOT_SHOWN,
    LOWER_BOUND,
    HOLDS_HERE,
    HOLDS,
    UNTOUCHED,
    NO_EVIDENCE,
    EMPTY,
    NO_ATTACK,
    NOT_MEASURED,
) = WORDS
SILENT = (UNTOUCHED, NO_EVIDENCE, EMPTY, NO_ATTACK, NOT_MEASURED)  # no evidence about the defense


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A paper's claim and the cells that test the claim."""

    id: str
    paper: str
    claim: str
    """In our words."""
    defense: tuple[Mapping[str, Any], ...] = ()
    """Settings as in a matrix; an omitted parameter matches any value; empty: a claim not about reconstruction."""
    point: tuple[str, ...] = ("type-2", "type-1", "type-0")
    dataset: str = "*"
    """Pattern of the name."""
    model: str = "*"
    """Pattern of the name as on the board."""
    weights: str = "*"
    """Pattern: `untrained`, or the name of a file."""
    federated: Mapping[str, Any]
    """Field of `Federated` → required value."""
    server: str = "listen"
    """Threat level of the server (`bench.cell.ServerLevel`)."""
    protects: bool = True
    """False: the paper calls these points open."""
    records: tuple[str, ...] = ()
    """Matrices with exports that this claim is judged by, in place of the reference."""
    measured: tuple[Mapping[str, str], ...] = ()
    """Quoted figures: `section` of a page of results, `text`."""
    verdict: str = ""
    """Verdict by hand, for a claim whose figures are in no record, such as the share of caught servers."""
    why: str = ""
    """Reason for a difference between claim and verdict, by hand."""

    def about(self, cell: AttackCell) -> bool:
        """Whether the claim covers a cell."""
        named = any(
            cell.defense.name == each["name"]
            and all(cell.defense.params.get(key) == value for key, value in each.items() if key != "name")
            for each in self.defense
        )
        return (
            named
            and cell.point in self.point
            and cell.grants.server == self.server
            and fnmatchcase(cell.dataset.name, self.dataset)
            and fnmatchcase(entry_text(cell.model), self.model)
            and fnmatchcase(weights_text(cell), self.weights)
            and all(getattr(cell.federated, key) == value for key, value in self.federated.items())
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Reconstructed shares of a setting in a condition, at a point; None if no such attacker was run."""

    undefended: float | None = None
    """Without a defense."""
    plain: float | None = None
    """By plain attackers; by all attackers if the readings equal the undefended readings."""
    black_box: float | None = None
    """By attackers who can run the defense."""
    adaptive: float | None = None
    """By all attackers together, if some attacker knows the defense: such an attacker can run the other attacks."""
    named: Rate | None = None
    identified: Rate | None = None
    applies: bool = True
    """Whether some attack that reads the gradient can run here."""
    sent: bool = True
    """Whether most readings have a non-zero value."""
    acts: bool = True
    """Whether the readings differ from the undefended readings."""

    @property
    def recognised(self) -> Rate | None:
        """Named or identified share, whichever is farther above chance."""
        return most_over_chance(self.named, self.identified)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A claim's setting in a condition, at a point."""

    defense: str
    condition: str
    point: str
    figures: Figures
    verdict: str
    cells: Mapping[str, tuple[str, ...]]
    """Attackers' knowledge, or `named` → ids of the records."""


def read(path: Path) -> list[Claim]:
    """Read a TOML file with `[[claim]]` tables; keys are the fields of `Claim`."""
    return [_claim(table) for table in tomllib.loads(path.read_text("utf-8"))["claim"]]


def _claim(table: dict[str, Any]) -> Claim:
    defense = tuple({"name": each} if isinstance(each, str) else each for each in table.pop("defense", ()))
    table.setdefault("federated", {})
    for name in {"point", "measured", "records"} & table.keys():
        table[name] = tuple(table[name])
    return Claim(defense=defense, **table)


def verdict(of: Figures, *, protects: bool = True) -> str:
    """The key of `WORDS` for these figures; `protects`: the paper calls this point protected."""
    word = _verdict(of)
    if protects and not of.acts and word not in (REFUTED, NO_ATTACK, NOT_MEASURED):
        return UNTOUCHED
    if protects or word in (REFUTED, EMPTY, NO_ATTACK, NOT_MEASURED):
        return word
    return AS_CLAIMED if word in (FALLS, TO_KNOWING, IN_PART) else NOT_SHOWN


def _verdict(of: Figures) -> str:
    rates = [rate for rate in (of.plain, of.black_box, of.adaptive) if rate is not None]
    known = [rate for rate in (of.named, of.identified) if rate is not None]
    if any(rate.violated for rate in known):
        return REFUTED
    if not of.applies:
        return NO_ATTACK
    if not rates:
        return NOT_MEASURED
    if max(rates) >= LEAKS:
        return FALLS if of.plain is not None and of.plain >= LEAKS else TO_KNOWING
    if not of.sent:
        return EMPTY
    if max(rates) > 0:
        return IN_PART
    if of.undefended is None:
        return NOT_MEASURED
    if of.undefended < COUNTS:
        return NO_EVIDENCE
    most = of.recognised
    # before recognition: among many figures some exceed chance, or a proved ceiling, by chance
    if most and most.ceiling is not None and most.ceiling < most.chance + LEAKS:
        return HOLDS
    if any(rate.interval[0] > rate.chance > 0 for rate in known):
        return IDENTITIES
    if most and most.here is not None and most.here < most.chance + LEAKS:
        return HOLDS_HERE
    return LOWER_BOUND


def judged(claims: Sequence[Claim], records: Sequence[Record], rows: Iterable[Row]) -> dict[str, list[Line]]:
    """Claim id → lines by condition, setting and point; `rows`: the records' board."""
    by_key = {(row.key, row.defense): row for row in rows}
    conditions = by_condition(records)
    return {claim.id: [line for each in conditions for line in _lines(claim, each, by_key)] for claim in claims}


def _lines(claim: Claim, condition: Condition, rows: Mapping[tuple[str, str], Row]) -> Iterator[Line]:
    bare = condition.rows.get(UNDEFENDED, {})
    for defense in sorted(condition.rows):
        for point in condition.points:
            worst = condition.rows[defense].get(point)
            cell = worst and _cell(worst)
            if not worst or not cell or not claim.about(cell):
                continue
            at = rows[condition.key, defense].points[point]
            undefended = bare[point].asr if point in bare else None
            kinds = {kind: [name for name in worst.scores if _kind(name) == kind] for kind in _KINDS}
            figures = Figures(
                undefended=undefended,
                plain=worst.asr if worst.unchanged else _rate(worst, kinds["plain"]),
                black_box=_rate(worst, kinds["black-box"]),
                adaptive=worst.asr if kinds["adaptive"] else None,
                named=at.named,
                identified=at.identified,
                applies=worst.attacked or not worst.absent,
                sent=all(flag.code != NOTHING_SENT for flag in at.flags),
                acts=defense == UNDEFENDED or not worst.unchanged,
            )
            # a claim about no defense has no undefended figure to compare with
            held = replace(figures, undefended=1.0) if defense == UNDEFENDED else figures
            yield Line(
                defense=defense,
                condition=condition_text(cell),
                point=point,
                figures=figures,
                verdict=verdict(held, protects=claim.protects),
                cells=_ids(worst),
            )


_KINDS = ("plain", "black-box", "adaptive")


def _kind(attack: str) -> str:
    """An attack's knowledge, read from the name on the board; empty for a baseline without a gradient."""
    if attack.startswith(GRADIENT_FREE):
        return ""
    knows = attack.rpartition(" · ")[2] if " · " in attack else ""
    return knows if knows in _KINDS else "plain"


def _rate(worst: WorstCase, attacks: Sequence[str]) -> float | None:
    """Share of all examples that some of these attacks reconstruct; None if none ran."""
    if not attacks or not worst.leaked:
        return None
    back = {key for attack in attacks for key, example in worst.scores[attack].items() if example.success}
    return len(back) / len(worst.leaked)


def _ids(worst: WorstCase) -> dict[str, tuple[str, ...]]:
    """Attackers' knowledge, or `named` → ids of the finished records."""
    ids: dict[str, list[str]] = {}
    for attack, records in worst.records.items():
        for record in records:
            shown = isinstance(record.cell, AttackCell) and record.cell.grants.gallery
            if record.status == "done" and (kind := "named" if shown else _kind(attack)):
                ids.setdefault(kind, []).append(record.id)
    return {kind: tuple(sorted(ids[kind])) for kind in (*_KINDS, "named") if kind in ids}


def _cell(worst: WorstCase) -> AttackCell | None:
    cells = (record.cell for records in worst.records.values() for record in records)
    return next((cell for cell in cells if isinstance(cell, AttackCell)), None)


def tally(lines: Iterable[Line]) -> dict[str, int]:
    """Verdict → number of lines, the worst first."""
    counts = dict.fromkeys(WORDS, 0)
    for line in lines:
        counts[line.verdict] += 1
    return {word: count for word, count in counts.items() if count} or {NOT_MEASURED: 0}
