"""Two answers to the same questions → whether a defense became weaker, holds, or cannot be told.

Cells pair by id: the same victims, weights, starts and underlying draws, answered by two sources.  Per defense,
point and data, each metric has a margin.  It *passes* where the 95 % upper bound of its worsening is below the
margin (everywhere: an intersection, which needs no correction); it is *weaker* where the worsening is at least
the margin and its lower bound, corrected by Holm over all metrics and places, is above zero; else the gate
*cannot tell*, and says how many pictures it needs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, inf, isclose
from typing import Any, Literal

import numpy as np

from bench.errors import BenchError
from bench.gate.noninferiority import Rise, holm, of_numbers, of_shares
from bench.leaderboard.blocks import blocks, entry, protocol, question, rank
from bench.leaderboard.costs import UNDEFENDED
from bench.leaderboard.trainings import setting
from bench.leaderboard.worst import BASELINES, Picture, Worst, clusters
from bench.record.store import Record

Outcome = Literal["pass", "weaker", "cannot tell"]
EXIT: Mapping[Outcome, int] = {"pass": 0, "weaker": 1, "cannot tell": 3}
# One-sided bounds of a share need this many pictures over its margin, even where no picture changed.
_PICTURES_TIMES_MARGIN = 3.2
_FEWEST_TIMED = 3  # trainings: with fewer, how much timings vary is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """`sign` +1 where a rise is for the worse, -1 where a fall is; `margin` what is tolerated by default."""

    name: str
    words: str
    sign: int
    margin: float
    unit: str = ""


METRICS = {
    metric.name: metric
    for metric in (
        Metric(name="asr", words="pictures leaked to the worst attacker", sign=1, margin=0.10),
        Metric(name="rmse", words="RMSE of the nearest attacker", sign=-1, margin=0.05),
        Metric(name="reading_snr", words="reading's SNR against the undefended one", sign=1, margin=3.0, unit=" dB"),
        Metric(name="reading_cosine", words="reading's cosine with the undefended one", sign=1, margin=0.05),
        Metric(name="accuracy", words="test accuracy after training", sign=-1, margin=0.05),
        Metric(name="overhead", words="time of a local step over the undefended one's", sign=1, margin=1.0, unit="×"),
        Metric(name="undefended_asr", words="pictures leaked without a defense", sign=-1, margin=0.10),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One metric at one place.  `before` and `after` are means over the same pairs; `worse` is how much worse
    it became (after - before for a rise that is for the worse, before - after else), with its one-sided 95 %
    upper bound `upper` and Holm's lower bound `lower`; `p` is adjusted.  `needed` pictures (trainings, for
    what is of trainings), where it cannot tell for their number; `attacks` those that got back what nobody
    got before."""

    metric: str
    title: str
    defense: str
    point: str
    outcome: Outcome
    before: float
    after: float
    worse: float
    lower: float
    upper: float
    margin: float
    p: float
    pairs: int
    clusters: int
    needed: int | None = None
    why: str | None = None
    attacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`compared` all metrics at all places; `unpaired` what could not be compared, place → reason; `sources`
    what changed between the two answers, in words."""

    outcome: Outcome
    compared: tuple[Compared, ...]
    unpaired: tuple[tuple[str, str], ...]
    sources: tuple[str, ...]
    cells: int

    @property
    def exit_code(self) -> int:
        """0 passes, 1 weaker, 3 cannot tell."""
        return EXIT[self.outcome]

    def json(self) -> dict[str, Any]:
        """The verdict as JSON types; infinite bounds as None."""

        def finite(row: Compared) -> dict[str, Any]:
            return {
                key: None if isinstance(value, float) and not np.isfinite(value) else value
                for key, value in asdict(row).items()
            }

        return {
            "outcome": self.outcome, "exit_code": self.exit_code, "cells": self.cells,
            "compared": [finite(row) for row in self.compared],
            "unpaired": [{"place": place, "reason": reason} for place, reason in self.unpaired],
            "sources": list(self.sources),
        }  # fmt: skip


def verdict(
    before: Iterable[Record], after: Iterable[Record], margins: Mapping[str, float] | None = None,
    sources: Sequence[str] = (),
) -> Verdict:  # fmt: skip
    """Compare every cell of `before` with the one of the same id in `after`.

    `margins` by metric, in place of the defaults; `sources` is only passed on.  Raises `BenchError` for an
    unknown metric, for a margin that is not above zero, and where the two are of different protocols.
    """
    allowed = {name: metric.margin for name, metric in METRICS.items()} | dict(margins or {})
    for name, margin in allowed.items():
        if name not in METRICS:
            raise BenchError(f"margin {name}: no such metric; there are {', '.join(METRICS)}")
        if not 0 < margin < inf:
            raise BenchError(f"margin {name}={margin}: it must be above 0")
    old, new = {record.id: record for record in before}, {record.id: record for record in after}
    protocols = [{protocol(record) for record in found} for found in (old.values(), new.values())]
    if old and new and protocols[0] != protocols[1]:
        raise BenchError(
            f"the baseline is of protocol {_said(protocols[0])}, the run of {_said(protocols[1])}: figures of "
            "different protocols are not compared; write the baseline again"
        )
    pairs, unpaired = _paired(old, new)
    found = [*_attacked(pairs, allowed), *_trained(pairs, allowed)]
    compared = tuple(_judged(found))
    return Verdict(
        outcome=_outcome(compared, unpaired), compared=compared, unpaired=unpaired, sources=tuple(sources),
        cells=len(pairs),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a metric is compared."""

    title: str
    defense: str
    point: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """One metric at one place, not yet judged; `rise` is of how much worse it became."""

    metric: Metric
    place: _Place
    margin: float
    before: float
    after: float
    rise: Rise
    attacks: tuple[str, ...] = ()


_Pairs = list[tuple[Record, Record]]
_Figures = dict[Picture, tuple[float, float]]  # before and after


def _paired(
    old: Mapping[str, Record], new: Mapping[str, Record]
) -> tuple[_Pairs, tuple[tuple[str, str], ...]]:
    """Cells answered both times about the same victims, and the places where that is not so."""
    pairs: _Pairs = []
    reasons: dict[tuple[str, str], int] = {}
    for cell_id, was in old.items():
        now = new.get(cell_id)
        if was.status == "n/a":
            continue
        reason = _not_paired(was, now)
        if reason is None and now is not None:
            pairs.append((was, now))
        elif reason is not None:
            key = (_place(was), reason)
            reasons[key] = reasons.get(key, 0) + 1
    said = tuple(
        (place, reason if count == 1 else f"{count} cells: {reason}")
        for (place, reason), count in reasons.items()
    )
    return pairs, said


def _not_paired(was: Record, now: Record | None) -> str | None:
    if was.status != "done":
        return f"{was.status} in the baseline"
    if now is None:
        return "not in the run (another question, other data, or not run)"
    if now.status != "done":
        return f"{now.status} now: {now.reason}"
    if was.cell["kind"] == "training":
        return None
    if _victims(was) != _victims(now):
        return "other victims: the code that draws them changed"
    then, after = (record.summary.get("conditions", {}).get("weights_norm") for record in (was, now))
    if None not in (then, after) and not isclose(then, after, rel_tol=1e-6):
        return f"other weights (norm {then:g}, now {after:g}): the model's code changed"
    return None


def _victims(record: Record) -> list[Any]:
    return [
        (victim.get("clients"), victim.get("examples"), len(victim["pictures"])) for victim in record.victims
    ]


def _place(record: Record) -> str:
    cell = record.cell
    where = f"{entry(cell['dataset'])} · {entry(cell['model'])} · {entry(cell['defense'])}"
    return where + (f" · {cell['point']}" if cell["kind"] == "attack" else " · training")


def _attacked(pairs: _Pairs, margins: Mapping[str, float]) -> Iterable[_Measured]:
    """The metrics of attack cells, per block, defense and point."""
    attacked = [pair for pair in pairs if pair[0].cell["kind"] == "attack"]
    then = {block.key: block for block in blocks(was for was, _ in attacked)}
    now = {block.key: block for block in blocks(now for _, now in attacked)}
    readings = _readings(attacked)
    for key, block in then.items():
        for defense, row in sorted(block.rows.items(), key=lambda item: rank(item[0], "")):
            for point in (name for name in block.points if name in row):
                was, became = row[point], now[key].rows[defense][point]
                place = _Place(block.title, defense, point)
                if defense == UNDEFENDED:
                    yield _of_shares(METRICS["undefended_asr"], was, became, margins, place)
                    continue
                yield _of_shares(METRICS["asr"], was, became, margins, place)
                nearest, before = _nearest(became), _nearest(was)
                both = {
                    picture: (before[picture], nearest[picture]) for picture in before if picture in nearest
                }
                yield _of_figures(METRICS["rmse"], both, margins, place)
                for name in ("reading_snr", "reading_cosine"):
                    if values := readings.get((key, defense, point, name)):
                        yield _of_figures(METRICS[name], values, margins, place)


def _readings(pairs: _Pairs) -> dict[tuple[str, ...], _Figures]:
    """(block, defense, point, metric) → reading → its figure before and after; all attacks see the same."""
    found: dict[tuple[str, ...], _Figures] = {}
    for was, now in pairs:
        cell = was.cell
        for name, field in (("reading_snr", "reading_snr_db"), ("reading_cosine", "reading_cosine")):
            own = found.setdefault((question(was), entry(cell["defense"]), cell["point"], name), {})
            for reading, (one, other) in enumerate(zip(was.victims, now.victims, strict=True)):
                values = one.get(field), other.get(field)
                if values[0] is not None and values[1] is not None:
                    own.setdefault(
                        (cell["seed"], cell["draw"], reading, 0), (float(values[0]), float(values[1]))
                    )
    return found


def _trained(pairs: _Pairs, margins: Mapping[str, float]) -> Iterable[_Measured]:
    """The metrics of training cells, per data, model, setting and defense; each seed is a cluster."""
    found: dict[tuple[str, str], _Pairs] = {}
    for was, now in pairs:
        cell = was.cell
        if cell["kind"] == "training" and cell["defense"]["name"] != UNDEFENDED:
            title = f"{entry(cell['dataset'])} · {entry(cell['model'])} · {setting(cell['federated'])}"
            found.setdefault((title, entry(cell["defense"])), []).append((was, now))
    for (title, defense), own in found.items():
        place = _Place(title, defense, "training")
        accuracies = {
            (was.cell["seed"], 0, n, 0): (float(was.summary["accuracy"]), float(now.summary["accuracy"]))
            for n, (was, now) in enumerate(own)
        }
        yield _of_figures(METRICS["accuracy"], accuracies, margins, place)
        overheads = {
            (was.cell["seed"], 0, n, 0): (float(was.cost["overhead"]), float(now.cost["overhead"]))
            for n, (was, now) in enumerate(own)
            if None not in (was.cost.get("overhead"), now.cost.get("overhead"))
        }
        if len({seed for seed, *_ in overheads}) >= _FEWEST_TIMED:
            yield _of_figures(METRICS["overhead"], overheads, margins, place)


def _nearest(worst: Worst) -> dict[Picture, float]:
    """Each picture's least RMSE over the attacks; 1, the greatest there is, where none came to a number."""
    found = dict.fromkeys(worst.leaked, 1.0)
    for name, own in worst.figures["rmse"].items():
        if not name.startswith(BASELINES):
            for key, value in own.items():
                found[key] = min(found[key], value) if np.isfinite(value) else found[key]
    return found


def _of_shares(
    metric: Metric, was: Worst, now: Worst, margins: Mapping[str, float], place: _Place
) -> _Measured:
    keys = [key for key in was.leaked if key in now.leaked]
    then, after = (np.array([worst.leaked[key] for key in keys], bool) for worst in (was, now))
    worse, better = (after, then) if metric.sign > 0 else (then, after)
    fresh = {key for key in keys if now.leaked[key] and not was.leaked[key]}
    attacks = sorted(name for name, own in now.by_attack.items() if any(own.get(key) for key in fresh))
    return _Measured(
        metric=metric, margin=margins[metric.name], before=float(then.mean()), after=float(after.mean()),
        rise=of_shares(worse, better, _clusters(keys)), attacks=tuple(attacks), place=place,
    )  # fmt: skip


def _of_figures(metric: Metric, figures: _Figures, margins: Mapping[str, float], place: _Place) -> _Measured:
    then, after = np.array(list(figures.values()), np.float64).T
    return _Measured(
        metric=metric, margin=margins[metric.name], before=float(then.mean()), after=float(after.mean()),
        rise=of_numbers(metric.sign * after, metric.sign * then, _clusters(list(figures))), place=place,
    )  # fmt: skip


def _clusters(keys: Sequence[Picture]) -> list[int]:
    return clusters(keys) or list(range(len(keys)))


def _judged(found: Sequence[_Measured]) -> Iterable[Compared]:
    for one, (p, level) in zip(found, holm([one.rise.p for one in found]), strict=True):
        rise = one.rise
        lower, upper = rise.lower(level), rise.upper()
        least = ceil(_PICTURES_TIMES_MARGIN / one.margin) if rise.centre is not None else 0
        weaker = lower > 0 and rise.estimate >= one.margin
        outcome: Outcome = "weaker" if weaker else "pass"
        needed, why = None, None
        if not weaker and (upper >= one.margin or rise.pairs < least):
            outcome, needed = "cannot tell", _needed(rise, one.margin, lower, upper, least)
            why = (
                "too few pictures"
                if needed
                else "one weight seed and one reading say nothing of how they vary"
            )
        if outcome == "weaker" and one.metric.name == "undefended_asr":
            # The attackers got worse: a defense that leaks no more has shown nothing.
            outcome, why = (
                "cannot tell",
                "the attacks got weaker: less comes back without a defense than before",
            )
        yield Compared(
            metric=one.metric.name, title=one.place.title, defense=one.place.defense, point=one.place.point,
            outcome=outcome, before=one.before, after=one.after, worse=rise.estimate, lower=lower, upper=upper,
            margin=one.margin, p=p, pairs=rise.pairs, clusters=rise.clusters, needed=needed, why=why,
            attacks=one.attacks,
        )  # fmt: skip


def _needed(rise: Rise, margin: float, lower: float, upper: float, least: int) -> int | None:
    """Pairs at which bounds as wide as these, narrowing with their root, would decide; None where unknown."""
    if rise.free < 1:
        return max(least, 2 * rise.pairs) if rise.pairs > 1 else None
    if rise.estimate < margin:
        wide, room = upper - rise.estimate, margin - rise.estimate
    else:
        wide, room = rise.estimate - lower, rise.estimate
    return max(least, rise.pairs + 1, ceil(rise.pairs * (wide / room) ** 2))


def _outcome(compared: Sequence[Compared], unpaired: Sequence[tuple[str, str]]) -> Outcome:
    outcomes = {row.outcome for row in compared}
    if "weaker" in outcomes:
        return "weaker"
    return "cannot tell" if unpaired or not compared or "cannot tell" in outcomes else "pass"


def _said(protocols: Iterable[Any]) -> str:
    return ", ".join(sorted(map(str, protocols)))
