"""Verdicts: the submitted success rate of each drawn group, compared with the rate measured on this machine.

The interval for the difference is from Newcombe's square-and-add method (1998, method 10), which combines an interval
for each rate: Wilson's, united with the cluster bootstrap's if examples share a batch or a weight seed.  The interval
is at least as wide as Student's interval for the seeds' rates with pooled variance, because only few seeds are drawn.
All differences hold together at 95 % (Bonferroni).

A simulation (16 readings with 3 examples, 4 fresh seeds, rates .05, .5, .8, standard deviation 0, .1, .2 between seeds)
called at most .045 of honest groups different with 4 submitted seeds, and at most .11 with a single submitted seed."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import isclose, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from scipy.special import stdtrit

from bench.cell import AttackCell
from bench.leaderboard.worst import ExampleKey, example_scores, share_interval
from bench.record.groups import grouped
from bench.record.names import attack_name, entry_text
from bench.record.schema import Privacy, Record
from bench.sanitize import sanitize
from bench.scoring.intervals import Interval
from bench.submission.draw import Draw

Outcome = Literal["agrees", "differs", "inconclusive"]
_CODES: dict[Outcome, int] = {"agrees": 0, "differs": 1, "inconclusive": 3}
_EPSILON = 1e-6  # relative: the same formula on another machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Success rate of an attack on a group of cells, over several seeds, with its confidence interval: submitted, or
    measured again."""

    leaked: int
    """Number of leaked examples."""
    examples: int
    """Number of examples."""
    interval: Interval
    """Confidence interval of the rate."""
    seeds: tuple[float, ...]
    """Rate of each seed."""

    @property
    def value(self) -> float:
        """The rate: leaked examples divided by all examples."""
        return self.leaked / self.examples


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupVerdict:
    """Comparison of a submitted success rate with the rate measured on this machine, for a group: a condition (data,
    model and setting), defense, interception point and attack."""

    setting: str
    """The condition in words."""
    defense: str
    """The defense with its parameters."""
    point: str
    """Interception point."""
    attack: str
    """The attack with its parameters."""
    outcome: Outcome
    """`agrees`, `differs` or `inconclusive`."""
    reason: str
    """Reason for an outcome that does not come from the interval; otherwise empty."""
    submitted: Rate | None
    """Submitted rate; None without scored examples."""
    here: Rate | None
    """Rate on this machine; None without scored examples."""
    interval: Interval | None
    """Confidence interval of the submitted rate minus the rate here; None without both rates."""
    cell: str
    """Id of the submitted record that was run again."""
    cells: tuple[str, ...]
    """Ids of the cells run here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """Result of running parts of a submission again: submitted and new success rates by group, and findings."""

    file: Path
    """The submission file."""
    sha256: str
    """Hash of the submission file."""
    seed: int
    """Seed that determines the drawn groups and the fresh seeds."""
    seeds: tuple[int, ...]
    """Fresh seeds of the new runs."""
    level: float
    """Confidence level of each interval."""
    groups: int
    """Number of all groups (submitted records with equal condition, defense, point and attack), drawn or not."""
    verdicts: tuple[GroupVerdict, ...]
    """Verdict on each drawn group: `agrees`, `differs` or `inconclusive`, with both rates."""
    changes: tuple[str, ...] = ()
    """Differences between the submitter's code and the code here."""
    notes: tuple[str, ...] = ()
    """Remarks, such as weights that could not be made again."""
    findings: tuple[str, ...] = ()
    """Contradictions between the submission and the data sets on this machine."""

    @property
    def outcome(self) -> Outcome:
        """Outcome of the verification: "differs" for any finding or differing group, "agrees" if all groups agree,
        otherwise "inconclusive"."""
        outcomes = {verdict.outcome for verdict in self.verdicts} | ({"differs"} if self.findings else set())
        return "differs" if "differs" in outcomes else "agrees" if outcomes == {"agrees"} else "inconclusive"

    @property
    def exit_code(self) -> int:
        """Exit code of `bench verify`: 0 for the outcome "agrees", 1 for "differs", 3 for "inconclusive"."""
        return _CODES[self.outcome]

    def json(self) -> dict[str, Any]:
        """Return the verification with its outcome as JSON types, for `--json`."""
        return {**asdict(self), "file": str(self.file), "outcome": self.outcome}

    def lines(self) -> Iterator[str]:
        """Yield a report for the terminal: a line for each finding, then a line for each drawn group with its outcome
        and both success rates."""
        yield from (f"differs  {finding}" for finding in self.findings)
        for verdict in self.verdicts:
            where = " · ".join((verdict.setting, f"{verdict.defense} @ {verdict.point}", sanitize(verdict.attack, 60)))
            parts = [
                f"{word} {rate.value:.3f} of {rate.examples}"
                for word, rate in (("submitted", verdict.submitted), ("here", verdict.here))
                if rate is not None
            ]
            if verdict.interval is not None:
                parts.append(f"difference in [{verdict.interval[0]:+.3f}, {verdict.interval[1]:+.3f}]")
            parts += [verdict.reason] if verdict.reason else []
            yield f"{verdict.outcome:14}{sanitize(where, 240)}: {'; '.join(parts)}"


def verdict(draw: Draw, records: Sequence[Record], obstacle: str, level: float) -> GroupVerdict:
    """Compare the success rate in the submitted records of the drawn group `draw` with the rate in `records`, the
    results of new runs on this machine, at confidence `level`. `obstacle` is a reason why no comparison is possible,
    which makes the verdict inconclusive; an empty text means no obstacle."""
    submitted = rate(draw.group.done, level)
    here = rate([record for record in records if record.status == "done"], level)
    interval = difference(submitted, here, level) if submitted and here else None
    broken = [each for record in records for each in record.broken]
    if broken and not any(record.broken for record in draw.group.records):
        obstacle = f"its defense breaks a contract here, which was not submitted: {sanitize(broken[0], 120)}"
    unjudged: tuple[Outcome, str] = ("differs" if broken else "inconclusive", obstacle)
    outcome, reason = unjudged if obstacle else _judged(draw, records, interval)
    cell = draw.record.cell
    assert isinstance(cell, AttackCell)
    return GroupVerdict(
        setting=draw.group.setting,
        defense=entry_text(cell.defense),
        point=cell.point,
        attack=attack_name(cell),
        outcome=outcome,
        reason=reason,
        submitted=submitted,
        here=here,
        interval=interval,
        cell=draw.record.id,
        cells=tuple(record.id for record in records),
    )


def rate(records: Sequence[Record], level: float) -> Rate | None:
    """Return the attack's success rate over all examples in `records`, with its interval at confidence `level`; None
    without examples."""
    hits: dict[ExampleKey, bool] = {}
    for record in records:
        hits |= {key: example.success for key, example in example_scores(record)}
    if not hits:
        return None
    values, interval = list(hits.values()), share_interval(hits, level)
    assert interval is not None
    seeds = tuple(fmean(hits[key] for key in keys) for keys in grouped(hits, lambda key: key[0]).values())
    return Rate(leaked=sum(values), examples=len(values), interval=interval, seeds=seeds)


def difference(submitted: Rate, here: Rate, level: float) -> Interval:
    """Return the interval (low, high) at confidence `level` for the rate `submitted` minus the rate `here` (on this
    machine), within [-1, 1].

    The interval combines the intervals of the two rates by Newcombe's method 10 (1998), extended to other intervals
    than Wilson's (Zou and Donner 2008). The result is at least as wide as Student's interval from the seeds' rates."""
    (low, high), (its_low, its_high) = submitted.interval, here.interval
    centre = submitted.value - here.value
    below = sqrt((submitted.value - low) ** 2 + (its_high - here.value) ** 2)
    above = sqrt((high - submitted.value) ** 2 + (here.value - its_low) ** 2)
    half = _half_width(submitted.seeds, here.seeds, level)
    return max(-1.0, centre - max(below, half)), min(1.0, centre + max(above, half))


def _half_width(submitted: Sequence[float], here: Sequence[float], level: float) -> float:
    """Return half the width of Student's interval at `level` for the difference of two means over seeds. `submitted`
    and `here` are the rates of the seeds. The result is 0 for two single seeds."""
    freedom = len(submitted) + len(here) - 2
    if freedom < 1:
        return 0.0
    squares = sum((rate - fmean(rates)) ** 2 for rates in (submitted, here) for rate in rates)
    width = sqrt(squares / freedom * (1 / len(submitted) + 1 / len(here)))
    return float(stdtrit(freedom, (1 + level) / 2)) * width


def _judged(draw: Draw, records: Sequence[Record], interval: Interval | None) -> tuple[Outcome, str]:
    crashed = next((record for record in records if record.status == "crashed"), None)
    if crashed is not None:
        return "inconclusive", f"it crashed here: {sanitize(crashed.reason)}"
    absent = next((record for record in records if record.status == "n/a"), None)
    if not draw.group.done:
        if absent is not None:
            return "agrees", f"not applicable: {sanitize(absent.reason)}"
        return "differs", f"submitted as not applicable ({sanitize(draw.record.reason)}), and it runs here"
    if absent is not None:
        return "inconclusive", f"not applicable here: {sanitize(absent.reason)}"
    if by_epsilon := _epsilon(draw.group.done, records[0]):
        return by_epsilon
    assert interval is not None  # both sides have done records, and those have examples
    if not interval[0] <= 0 <= interval[1]:
        return "differs", ""
    if interval[1] - interval[0] > 1:
        return "inconclusive", "too few examples, or seeds that differ too much: it could be half of all"
    return "agrees", ""


def _epsilon(done: Sequence[Record], here: Record) -> tuple[Outcome, str] | None:
    """Compare the ε in the submitted records `done` (of a group, with status done) with the ε in `here`, a record of
    this machine. Return outcome and reason: "inconclusive" if only the submission has an ε, "differs" if only this
    machine has an ε or if both differ by more than 1e-6, relative. None if no record differs."""
    privacy = here.attack.privacy if here.attack else Privacy()
    for record in done:
        stated = record.attack.privacy.epsilon if record.attack else None
        if stated is None and privacy.epsilon is None:
            continue
        if privacy.epsilon is None:
            return "inconclusive", f"ε {stated:g} was submitted; here: {sanitize(privacy.absent)}"
        if stated is None or not isclose(stated, privacy.epsilon, rel_tol=_EPSILON):
            shown = "no ε" if stated is None else f"ε {stated:g}"
            return "differs", f"{shown} was submitted, it is {privacy.epsilon:.4g} here"
    return None
