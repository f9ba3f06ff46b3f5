"""What was submitted against what came out here, group by group.

The two rates of success are compared by an interval of their difference: Newcombe's square-and-add (1998,
method 10) on each side's own interval, which is Wilson's, or where pictures belong together (weight seeds,
batches) the cluster bootstrap's united with it; and never inside Student's interval from the rates of the
seeds, their variance pooled over both sides, as few seeds are what is drawn anew.  All differences hold
together at 95 % (Bonferroni).  Share of honest groups that are called different, simulated with 16 readings
of 3 pictures, 4 fresh seeds and a deviation of 0, .1, .2 between seeds around .05, .5, .8: at most .045 for 4
submitted seeds and .11 for one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import isclose, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from scipy.special import stdtrit

from bench.leaderboard.blocks import attack_name, entry
from bench.leaderboard.worst import Picture, clusters, pictures
from bench.record.store import Record
from bench.sanitize import sanitize
from bench.scoring.intervals import Interval, clustered_share, wilson
from bench.submission.draw import Drawn

Outcome = Literal["agrees", "differs", "cannot tell"]
_CODES: dict[Outcome, int] = {"agrees": 0, "differs": 1, "cannot tell": 3}
_EPSILON = 1e-6  # relative: the same formula on another machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """So many pictures leaked, of how many; the interval at the level of the comparison; each seed's rate."""

    leaked: int
    pictures: int
    interval: Interval
    seeds: tuple[float, ...]

    @property
    def rate(self) -> float:
        return self.leaked / self.pictures


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One group: what was submitted, what came out here, and whether they differ.

    `interval` is of submitted less here; `why` says what the verdict rests on where that is not it; `asked`
    is the submitted cell that was asked again, `cells` those that were run.
    """

    setting: str
    defense: str
    point: str
    attack: str
    outcome: Outcome
    why: str
    submitted: Share | None
    here: Share | None
    interval: Interval | None
    asked: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """`seed` draws everything again; `seeds` are the fresh ones; `level` is each interval's; `groups` is how
    many there were to draw from; `sources` what code differs here, `notes` what could not be drawn anew."""

    file: Path
    sha256: str
    seed: int
    seeds: tuple[int, ...]
    level: float
    groups: int
    verdicts: tuple[Verdict, ...]
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """One group that differs is enough; without one, every drawn group must agree."""
        found = {verdict.outcome for verdict in self.verdicts}
        return "differs" if "differs" in found else "agrees" if found == {"agrees"} else "cannot tell"

    @property
    def exit_code(self) -> int:
        return _CODES[self.outcome]

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "file": str(self.file), "outcome": self.outcome}

    def lines(self) -> Iterator[str]:
        """The verdicts in words, one line each."""
        for verdict in self.verdicts:
            where = " · ".join(
                (verdict.setting, f"{verdict.defense} @ {verdict.point}", sanitize(verdict.attack, 60))
            )
            said = [
                f"{word} {one.rate:.3f} of {one.pictures}"
                for word, one in (("submitted", verdict.submitted), ("here", verdict.here))
                if one is not None
            ]
            if verdict.interval is not None:
                said.append(f"difference in [{verdict.interval[0]:+.3f}, {verdict.interval[1]:+.3f}]")
            said += [verdict.why] if verdict.why else []
            yield f"{verdict.outcome:12}{sanitize(where, 240)}: {'; '.join(said)}"


def verdict(drawn: Drawn, ran: Sequence[Record], obstacle: str, level: float) -> Verdict:
    """The verdict on a group from the cells that `ran` here; `obstacle` says why it cannot be told."""
    done = drawn.group.done
    submitted, here = share(done, level), share([one for one in ran if one.status == "done"], level)
    interval = difference(submitted, here, level) if submitted and here else None
    judged: tuple[Outcome, str] = ("cannot tell", obstacle)
    outcome, why = judged if obstacle else _judged(drawn, ran, interval)
    cell = drawn.asked.cell
    return Verdict(
        setting=drawn.group.setting, defense=entry(cell["defense"]), point=cell["point"],
        attack=attack_name(cell), outcome=outcome, why=why, submitted=submitted, here=here,
        interval=interval, asked=drawn.asked.id, cells=tuple(record.id for record in ran),
    )  # fmt: skip


def share(found: Sequence[Record], level: float) -> Share | None:
    """The rate over the pictures of these records; None where there is none."""
    hits: dict[Picture, bool] = {}
    for record in found:
        hits |= {key: bool(picture["success"]) for key, picture in pictures(record)}
    if not hits:
        return None
    values, together = list(hits.values()), clusters(list(hits))
    interval = wilson(sum(values), len(values), level)
    if together is not None:
        interval = clustered_share(values, together, level)
    by_seed: dict[int, list[bool]] = {}
    for key, hit in hits.items():
        by_seed.setdefault(key[0], []).append(hit)
    return Share(
        leaked=sum(values), pictures=len(values), interval=interval,
        seeds=tuple(sum(own) / len(own) for own in by_seed.values()),
    )  # fmt: skip


def difference(submitted: Share, here: Share, level: float) -> Interval:
    """The interval of the one rate less the other, from each one's own (Newcombe 1998, method 10; Zou, Donner
    2008 for other intervals than Wilson's), as wide as their seeds ask."""
    (low, high), (its_low, its_high) = submitted.interval, here.interval
    centre = submitted.rate - here.rate
    below = sqrt((submitted.rate - low) ** 2 + (its_high - here.rate) ** 2)
    above = sqrt((high - submitted.rate) ** 2 + (here.rate - its_low) ** 2)
    half = _half_width(submitted.seeds, here.seeds, level)
    return max(-1.0, centre - max(below, half)), min(1.0, centre + max(above, half))


def _half_width(one: Sequence[float], other: Sequence[float], level: float) -> float:
    """Of Student's interval for the difference of two means, their variance pooled; 0 for a seed each, which
    say nothing of how seeds differ."""
    freedom = len(one) + len(other) - 2
    if freedom < 1:
        return 0.0
    squares = sum((rate - fmean(rates)) ** 2 for rates in (one, other) for rate in rates)
    return float(stdtrit(freedom, (1 + level) / 2)) * sqrt(
        squares / freedom * (1 / len(one) + 1 / len(other))
    )


def _judged(drawn: Drawn, ran: Sequence[Record], interval: Interval | None) -> tuple[Outcome, str]:
    crashed = next((record for record in ran if record.status == "crashed"), None)
    if crashed is not None:
        return "cannot tell", f"it crashed here: {sanitize(crashed.reason)}"
    absent = next((record for record in ran if record.status == "n/a"), None)
    if not drawn.group.done:
        if absent is not None:
            return "agrees", f"not applicable: {sanitize(absent.reason)}"
        return "differs", f"submitted as not applicable ({sanitize(drawn.asked.reason)}), and it runs here"
    if absent is not None:
        return "cannot tell", f"not applicable here: {sanitize(absent.reason)}"
    if said := _epsilon(drawn.group.done, ran[0]):
        return said
    assert interval is not None  # both sides have done records, and those have pictures
    if not interval[0] <= 0 <= interval[1]:
        return "differs", ""
    if interval[1] - interval[0] > 1:
        return "cannot tell", "too few pictures, or seeds that differ too much: it could be half of all"
    return "agrees", ""


def _epsilon(done: Sequence[Record], here: Record) -> tuple[Outcome, str] | None:
    """ε at the tap hangs on the defense and the setting alone: it must come out the same under any seed."""
    found = here.summary.get("epsilon")
    for record in done:
        said = record.summary.get("epsilon")
        if said is None and found is None:
            continue
        if found is None:
            return (
                "cannot tell",
                f"ε {sanitize(said)} was submitted; here: {here.summary.get('epsilon_absent')}",
            )
        if not isinstance(said, int | float) or not isclose(said, found, rel_tol=_EPSILON):
            return "differs", f"ε {sanitize(said)} was submitted, it is {found:.4g} here"
    return None
