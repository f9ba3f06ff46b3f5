"""A run of the suite `attacks` next to the shipped attacks, and its summary in four lines.

A cross is a table of attacks by conditions. A published attack in the run is compared with its shipped records, and
does not replace them."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.cell import AttackCell
from bench.errors import MALFORMED
from bench.leaderboard.attackers import Attacker, Cross, crossed, difference, drop, fails, neighbours
from bench.leaderboard.forms.attackers import labels
from bench.leaderboard.forms.numbers import NONE, formatted, interval, share
from bench.matrix.suites import ATTACKS, VERSIONS
from bench.record.names import attack_name, distinct
from bench.record.schema import Record
from bench.reference import store
from bench.reference.costs import any_attack

VERSION = VERSIONS[ATTACKS]
_MOST = 4  # conditions named in a line


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """Attacks of a run of the suite `attacks` (a frozen set of experiments) together with the shipped attacks, as
    tables (`Cross`) of attacks by conditions (data, model and setting)."""

    cross: Cross
    """Shipped attacks and the run's unpublished attacks in a single table, on the matrix's own sample of victims."""
    own: tuple[str, ...]
    """The run's attacks that the shipped results do not have."""
    shipped: tuple[Record, ...]
    """The reference records; empty if none are comparable."""
    why: str
    """Reason why the run is not compared with shipped results; empty if it is compared."""
    draws: Mapping[str, tuple[Cross, Cross]] = field(default_factory=dict)
    """Map from a second sample of victims (`AttackCell.victims`) to two tables of the run's attacks: on the matrix's
    own sample, and on the second sample."""

    def json(self) -> dict[str, Any]:
        """Return the tables as JSON types, for `--json`."""
        second = {victims: second.json() for victims, (_, second) in self.draws.items()}
        return {"reference": VERSION if self.shipped else None, **self.cross.json(), "draws": second}


def unranked(run: Path) -> str | None:
    """Return the reasons why the attacks in the run folder `run` cannot be ranked among the shipped attacks: an empty
    text for a rankable run of the suite `attacks`, otherwise the changes to the suite. None if the run is of no such
    suite."""
    try:
        about = json.loads((run / f"suite-{ATTACKS}.json").read_text("utf-8"))
        return "" if about["ranked"] is True else "; ".join(map(str, about["why_not"]))
    except (OSError, *MALFORMED):
        return None


def ranked(mine: Iterable[Record] = (), *, without: str = "") -> Ranked | None:
    """Rank a run's attacks among the shipped attacks: return tables of attacks by conditions (data, model and setting);
    None without attack records.

    - `mine`: the run's records. A record counts if a shipped record has the same cell (experiment), apart from attack
      and attacked examples.
    - `without`: reason to omit the shipped records; an empty text includes them."""
    shipped = tuple(store.read(VERSION)) if not without and VERSION in store.versions() else ()
    why = without if without or shipped else f"this package has no reference results of {VERSION} yet"
    published = [cell for _, cell in _attacks(shipped)]
    conditions, known = {any_attack(cell) for cell in published}, {attack_name(cell) for cell in published}
    joining = [(record, cell) for record, cell in _attacks(mine) if not shipped or any_attack(cell) in conditions]
    records = [record for record, _ in joining]
    listed = [record for record, cell in joining if attack_name(cell) not in known]
    own = tuple(dict.fromkeys(attack_name(cell) for _, cell in joining if attack_name(cell) not in known))
    if (cross := crossed((*shipped, *listed), own)) is None:
        return None
    first, draws = crossed(records, own), dict[str, tuple[Cross, Cross]]()
    for victims in dict.fromkeys(cell.victims for _, cell in joining):
        second = None if victims is None else crossed(records, own, victims)
        if victims is not None and first is not None and second is not None:
            draws[victims] = first, second
    return Ranked(cross=cross, own=own, shipped=shipped, why=why, draws=draws)


def _attacks(records: Iterable[Record]) -> list[tuple[Record, AttackCell]]:
    return [(record, record.cell) for record in records if isinstance(record.cell, AttackCell)]


def lines(standing: Ranked, attack: str) -> Iterator[tuple[str, str]]:
    """Yield a summary of the run's `attack` in four lines, each (heading, text): rank, examples that only this attack
    reconstructs, cost, and failures. Lines on second samples of attacked examples follow. `standing` holds the tables.
    """
    cross = standing.cross
    names, conditions = distinct(each.attack for each in cross.attackers), labels(cross.contests)
    yield "rank", _rank(standing, attack, names)
    yield "only", _only(cross, attack, conditions)
    yield "costs", _costs(cross, attack, names)
    yield "fails", _fails(cross, attack, names, conditions)
    yield from draws(standing, attack)


def draws(standing: Ranked, attack: str) -> Iterator[tuple[str, str]]:
    """Yield (heading, text) for each second sample of victims (attacked examples) on which the run's `attack` ran. The
    text compares the rates on both samples, which shows whether the attack is tuned to its victims. `standing` holds
    the tables."""
    for victims, (first, second) in standing.draws.items():
        if {attack} <= {each.attack for each in first.attackers} & {each.attack for each in second.attackers}:
            yield "victims", _draw(first, second, attack, victims)


def _rank(standing: Ranked, attack: str, names: Mapping[str, str]) -> str:
    cross, row = standing.cross, standing.cross.at(attack)
    mean = f"mean rate {share(row.rate)} [{interval(row.interval)}] over {len(row.rates)} conditions"
    if row.missing:
        return f"none: {len(row.missing)} of {len(row.rates)} conditions are missing or incomplete; {mean}"
    place = f"{row.rank} of {len(cross.attackers)}"
    place += f" in this run alone ({standing.why})" if standing.why else f" on {VERSION}"
    parts = [f"{place}, {mean}"]
    for word, other in zip(("above", "below"), neighbours(cross, attack), strict=True):
        if other is not None:
            parts.append(f"{word}: {names[other.attack]}, {_points(*difference(cross, attack, other.attack))}")
    return "; ".join(parts)


def _points(difference: float, low: float, high: float) -> str:
    shown = "no difference shown" if low <= 0 <= high else "more" if difference > 0 else "less"
    return f"{shown}, {_signed(difference)} points [{_signed(low)}, {_signed(high)}] on the same victims"


def _signed(value: float) -> str:
    """Format a difference between rates in percentage points, such as −8, +4 or 0."""
    points = round(100 * value)
    return f"{points:+d}".replace("-", "−") if points else "0"


def _only(cross: Cross, attack: str, conditions: Sequence[str]) -> str:
    row = cross.at(attack)
    counts = [
        f"{count} of {len(contest.examples())} at {label}"
        for count, contest, label in zip(row.only, cross.contests, conditions, strict=True)
        if count
    ]
    union = f"all attacks together: {share(cross.union - row.adds)} without it, {share(cross.union)} with it"
    if len(cross.attackers) == 1:
        return f"{sum(row.only)} examples; no other attack is there to compare"
    what = f"{sum(row.only)} examples that no other attack reconstructs"
    return f"{what}: {_few(counts)}; {union}" if counts else f"no example that another attack misses; {union}"


def _costs(cross: Cross, attack: str, names: Mapping[str, str]) -> str:
    row = cross.at(attack)
    best = next((each for each in cross.attackers if not each.own and each.attack != attack and not each.missing), None)
    text = f"{_figures(row)}, {row.cpu_seconds:.0f} CPU s in all"
    if best is None:
        return text
    other = "" if best.machines == row.machines else f", measured on {', '.join(best.machines) or 'another machine'}"
    return f"{text}; {names[best.attack]}, the first of the shipped: {_figures(best)}{other}"


def _figures(row: Attacker) -> str:
    if row.seconds is None:
        return f"no success, {NONE} dB"
    return f"{formatted(row.psnr_db, '.0f')} dB (median over successes), {row.seconds:.3g} CPU s a success"


def _fails(cross: Cross, attack: str, names: Mapping[str, str], conditions: Sequence[str]) -> str:
    row = cross.at(attack)
    parts = [
        f"{share(row.rates[number])} at {conditions[number]} ({names[other]}: {share(rate)})"
        for number, other, rate in fails(cross, attack)
    ]
    reasons: dict[str, list[str]] = {}
    for word, where in (("n/a", row.absent), ("crashed", row.crashed)):
        for number, reason in where.items():
            reasons.setdefault(f"{word} ({reason})", []).append(conditions[number])
    stated = [f"{what}: {_few(where)}" for what, where in reasons.items()]
    found = [f"at most 5 % where another attack has 50 % or more: {_few(parts)}"] if parts else []
    return (
        "; ".join([*found, *stated]) or "nowhere: no condition with at most 5 % where another attack has 50 % or more"
    )


def _draw(published: Cross, drawn: Cross, attack: str, victims: str) -> str:
    number, first, second = victims.partition("-")[0], published.at(attack), drawn.at(attack)
    change, low, high = drop(published, drawn, attack)
    if high < 0:
        verdict = "a drop beyond the interval: tuned to the published victims?"
    elif low > 0:
        verdict = "a rise beyond the interval"
    else:
        verdict = "no difference shown"
    points = f"{_signed(change)} points [{_signed(low)}, {_signed(high)}]"
    rates = f"published {share(first.rate)} [{interval(first.interval)}], draw {number} {share(second.rate)}"
    return f"{rates} [{interval(second.interval)}]; {points}: {verdict}"


def _few(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST
    return ", ".join(texts[:_MOST]) + (f" and {more} more" if more > 0 else "")
