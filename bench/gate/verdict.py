"""Compare two runs with the same configurations: a defense passes, is weaker, or the evidence is inconclusive.

Records are paired by what was asked for (`bench.gate.pairing`), so both have the same victims and weights, under two
versions of the code; cells with equal ids also have the same starts and noise draws. Each metric is compared for each
*subject*: a defense under a condition at a point. *Pass*: the worsening's 95 % upper bound is below the metric's margin
(passing requires this for all metrics, so no correction is needed). *Weaker*: the worsening reaches the margin, and its
lower bound, corrected by Holm's method for the number of comparisons, is above zero. Otherwise *inconclusive*, with the
required number of examples."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, inf, isclose
from typing import Any, Literal

import numpy as np

from bench.cell import AttackCell, TrainingCell
from bench.errors import BenchError
from bench.gate.noninferiority import Increase, holm, of_numbers, of_shares
from bench.gate.occasion import Occasion
from bench.gate.pairing import NO_WORDS, differences, partners
from bench.leaderboard.conditions import by_condition, condition_key, sort_key
from bench.leaderboard.costs import UNDEFENDED
from bench.leaderboard.flags import BROKEN, UNEXPLAINED, unexplained
from bench.leaderboard.recognition import recognition, violations
from bench.leaderboard.worst import GRADIENT_FREE, ExampleKey, WorstCase, clusters
from bench.matrix.read import Asked
from bench.record.names import dataset_name, entry_text, setting_text
from bench.record.schema import Record

Outcome = Literal["pass", "weaker", "inconclusive"]
_EXIT_CODES = {"pass": 0, "weaker": 1, "changed": 1, "inconclusive": 3}
# A share's one-sided bound needs at least this number / margin examples, even if no example changed.
_EXAMPLES_TIMES_MARGIN = 3.2
_FEWEST_TIMED = 3  # trainings; with fewer, the timings' variation is unknown


@dataclass(frozen=True, slots=True)
class GateMetric:
    """Metric by which the regression gate compares two runs, such as the share of reconstructed examples: its name,
    direction and margin."""

    name: str
    """Name of the metric, such as `asr`."""
    sign: int
    """+1 if a rise is worse, −1 if a fall is worse."""
    margin: float
    """Default margin: the smallest worsening that counts as weaker."""
    words: str
    """The metric in words, for reports."""
    of: str = "examples"
    """Kind of the paired items: "examples", "readings", "trainings" or "points" (interception points)."""
    unit: str = ""
    """Unit, for tables; ` %` shows a share in percent."""


GATE_METRICS = {
    metric.name: metric
    for metric in (
        GateMetric("asr", +1, 0.10, "examples reconstructed by some attack", unit=" %"),
        GateMetric("identified", +1, 0.10, "examples identified among strangers by some attack", unit=" %"),
        GateMetric("named", +1, 0.10, "examples chosen from a gallery by some attack", unit=" %"),
        GateMetric("epsilon", +1, 0.05, "ε at the point (worsening: share of the earlier ε)", "points"),
        GateMetric("rmse", -1, 0.05, "RMSE of the nearest reconstruction"),
        GateMetric("reading_snr", +1, 3.0, "signal-to-noise ratio of the attacked gradient", "readings", " dB"),
        GateMetric("reading_cosine", +1, 0.05, "cosine of attacked and undefended gradient", "readings"),
        GateMetric("accuracy", -1, 0.05, "test accuracy after training", "trainings", " %"),
        GateMetric("overhead", +1, 1.0, "time of a local step, relative to no defense", "trainings", "×"),
        GateMetric("undefended_asr", -1, 0.10, "examples reconstructed without a defense", unit=" %"),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result of comparing a metric between two runs of the regression gate: how much the metric worsened, with bounds,
    and the outcome. The subject is a defense at an interception point under a condition (data, model and setting), or a
    defense's trainings."""

    metric: str
    """Name of the metric, such as `asr`."""
    title: str
    """The condition in words."""
    defense: str
    """The defense with its parameters."""
    point: str
    """Interception point; empty for trainings."""
    outcome: Outcome
    """`pass`, `weaker` or `inconclusive`."""
    before: float
    """The metric's mean over the pairs in the earlier run."""
    after: float
    """The metric's mean over the pairs in the later run."""
    worse: float
    """Worsening: after − before if a rise is worse, otherwise before − after."""
    lower: float
    """Lower bound of the worsening, corrected by Holm's method."""
    upper: float
    """One-sided 95 % upper bound of the worsening."""
    margin: float
    """Smallest worsening that counts as weaker."""
    p: float
    """p-value for the hypothesis of no worsening, adjusted by Holm's method."""
    pairs: int
    """Number of pairs: items, such as examples, in both runs."""
    clusters: int
    """Number of clusters: seeds of the weights."""
    needed: int | None = None
    """Estimated number of pairs needed for a decision; None if decided or unknown."""
    reason: str | None = None
    """Reason for an inconclusive comparison."""
    attacks: tuple[str, ...] = ()
    """Attacks of the later run that reconstruct examples protected in the earlier run."""
    drifted: bool = False
    """True if the outcome is pass although the defense is significantly weaker, by less than the margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of the regression gate: an outcome, and a comparison for each metric and subject. A subject is a defense
    at an interception point under a condition (data, model and setting)."""

    outcome: Literal[Outcome, "changed"]
    """`weaker` for a weaker comparison or a fault; `changed` for a changed baseline that nobody accepted;
    `inconclusive` without enough evidence; otherwise `pass`."""
    comparisons: tuple[Comparison, ...]
    """The comparison for each metric and subject."""
    unpaired: tuple[tuple[str, str], ...]
    """Pairs (subject, reason why the subject was not compared)."""
    changes: tuple[str, ...]
    """Code changes between the two runs, in words."""
    cells: int
    """Number of compared cells."""
    faults: tuple[tuple[str, str, str], ...] = ()
    """Faults of the later run, each as (flag code, subject, text). A fault is a broken contract (a test of a defense's
    promises), a reading that the scored examples do not explain, or a measured leakage that the computed ε excludes."""
    since_oldest: tuple[Comparison, ...] = ()
    """Comparisons that are weaker than in the oldest baseline."""
    parameters: tuple[str, ...] = ()
    """Parameters with different values in paired cells, such as `my-round: step 0.3 → 0.0001`. No matrix file sets
    them, so a default changed."""
    occasion: Occasion = Occasion()
    """Circumstances of the comparison, such as changes of the baseline."""

    @property
    def wider(self) -> dict[str, float]:
        """Margins that the user set above the default: a map from metric name to margin."""
        margins = {row.metric: row.margin for row in self.comparisons}
        return {name: margin for name, margin in margins.items() if margin > GATE_METRICS[name].margin}

    @property
    def exit_code(self) -> int:
        """Exit code of `bench gate`: 0 for pass, 1 for weaker and changed, 3 for inconclusive."""
        return _EXIT_CODES[self.outcome]

    def json(self) -> dict[str, Any]:
        """Return the verdict as JSON types; infinite bounds become None."""
        content = asdict(self) | {"exit_code": self.exit_code}
        content["unpaired"] = [{"place": subject, "reason": reason} for subject, reason in self.unpaired]
        content["faults"] = [
            {"code": code, "place": subject, "reason": reason} for code, subject, reason in self.faults
        ]
        for comparison in (*content["comparisons"], *content["since_oldest"]):
            comparison["criterion"] = comparison.pop("metric")
            comparison |= {name: None for name in ("lower", "upper") if not np.isfinite(comparison[name])}
        return content


def on_occasion(result: Verdict, occasion: Occasion) -> Verdict:
    """Return the verdict `result` of the regression gate with the circumstances `occasion`, such as a changed baseline.
    The outcome becomes `changed` if the baseline was changed and nobody accepted the change; the outcome `weaker`
    stays."""
    refused = occasion.altered and occasion.accepted is None and result.outcome != "weaker"
    return replace(result, occasion=occasion, outcome="changed" if refused else result.outcome)


def with_oldest(result: Verdict, oldest: Verdict) -> Verdict:
    """Return the verdict `result` of the regression gate together with `oldest`, the verdict against the oldest
    baseline. Weaker comparisons in `oldest` make the outcome `weaker`: small worsenings have added up."""
    weaker = tuple(row for row in oldest.comparisons if row.outcome == "weaker")
    return replace(result, since_oldest=weaker, outcome="weaker" if weaker else result.outcome)


def verdict(
    before: Iterable[Record],
    after: Iterable[Record],
    margins: Mapping[str, float] | None = None,
    changes: Sequence[str] = (),
    asked: Asked = NO_WORDS,
) -> Verdict:
    """Compare two runs with the same configurations, before and after a change of the code; return the verdict of the
    regression gate, whether a defense has become weaker.

    - `before`, `after`: records (results of experiments) of the earlier and of the later run.
    - `margins`: metric → smallest worsening that counts; they replace the defaults. None keeps all defaults.
    - `changes`: code changes in words, stored in the verdict.
    - `asked`: parameters that the matrix file sets, by which cells with a changed default are paired
      (`bench.gate.pairing.partners`); empty: records are paired only by id.

    Raises `BenchError` for an unknown metric, a margin not above zero, and differing protocol versions."""
    allowed = {name: metric.margin for name, metric in GATE_METRICS.items()} | dict(margins or {})
    for name, margin in allowed.items():
        if name not in GATE_METRICS:
            raise BenchError(f"margin {name}: no such metric; there are {', '.join(GATE_METRICS)}")
        if not 0 < margin < inf:
            raise BenchError(f"margin {name}={margin}: it must be above 0")
    old, new = ({record.cell.id: record for record in records} for records in (before, after))
    was, now = (", ".join(sorted({str(r.protocol) for r in records.values()})) for records in (old, new))
    if old and new and was != now:
        raise BenchError(
            f"the baseline is of protocol {was}, the run of {now}: figures of different protocols are not compared; "
            "write the baseline again"
        )
    pairs, unpaired = _pair_up(old, new, asked)
    parameters = dict.fromkeys(line for then, now in pairs for line in differences(then.cell, now.cell))
    # The earlier cell's name stands for both.
    pairs = [(then, replace(now, cell=then.cell)) for then, now in pairs]
    measured = _judged([*_of_attacks(pairs), *_of_trainings(pairs)], allowed)
    comparisons = (*measured, *_of_epsilon(pairs, allowed["epsilon"]))
    faults = tuple(_faults(new.values()))
    outcomes = {comparison.outcome for comparison in comparisons}
    doubt = unpaired or not comparisons or "inconclusive" in outcomes
    return Verdict(
        outcome="weaker" if "weaker" in outcomes or faults else "inconclusive" if doubt else "pass",
        comparisons=comparisons,
        unpaired=unpaired,
        changes=tuple(changes),
        cells=len(pairs),
        faults=faults,
        parameters=tuple(parameters),
    )


_Subject = tuple[str, str, str]  # condition's title, defense, and point or "training"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measurement:
    """A metric's mean before and after, for a subject: a defense under a condition at a point. `increase` is the
    worsening over pairs, and `attacks` names the attacks behind it. The margin is not yet applied."""

    metric: GateMetric
    subject: _Subject
    before: float
    after: float
    increase: Increase
    attacks: tuple[str, ...] = ()


_Pairs = list[tuple[Record, Record]]
_Figures = dict[ExampleKey, tuple[float, float]]  # before and after


def _pair_up(
    old: Mapping[str, Record], new: Mapping[str, Record], asked: Asked
) -> tuple[_Pairs, tuple[tuple[str, str], ...]]:
    """Return the pairs of comparable records, and (subject, reason) for each subject that cannot be compared."""
    pairs: _Pairs = []
    counts: Counter[tuple[str, str]] = Counter()
    earlier, later = ({id_: record.cell for id_, record in records.items()} for records in (old, new))
    found = partners(earlier, later, asked)
    for id_, before in old.items():
        after = new.get(found.get(id_, ""))
        if before.status == "n/a":
            continue
        reason = _obstacle(before, after)
        if after is not None and reason is None:
            pairs.append((before, after))
        else:
            counts[_subject_text(before), reason or ""] += 1
    return pairs, tuple(
        (subject, reason if count == 1 else f"{count} cells: {reason}") for (subject, reason), count in counts.items()
    )


def _obstacle(before: Record, after: Record | None) -> str | None:
    """Return the reason why two records cannot be compared; None if they can."""
    if before.status != "done":
        return f"{before.status} in the baseline"
    if after is None:
        return "not in the run (another configuration, other data, or not run)"
    if after.status != "done":
        return f"{after.status} now: {after.reason}"
    if before.attack is None or after.attack is None:
        return None
    then_, now_ = _victims(before), _victims(after)
    common = then_.keys() & now_.keys() if getattr(before.cell, "after", ()) else then_.keys() | now_.keys()
    if any(then_.get(number) != now_.get(number) for number in common):
        return "other victims: the code that draws them changed"
    then, now = before.attack.conditions.weights_norm, after.attack.conditions.weights_norm
    if then is not None and now is not None and not isclose(then, now, rel_tol=1e-6):
        return f"other weights (norm {then:g}, now {now:g}): the model's code changed"
    return None


def _victims(record: Record) -> dict[int, Any]:
    """Map each reading's number to (clients, example indices, number of examples)."""
    readings = record.attack.numbered() if record.attack else ()
    return {n: (reading.clients, reading.indices, len(reading.examples)) for n, reading in readings}


def _subject_text(record: Record) -> str:
    cell = record.cell
    where = f"{dataset_name(cell)} · {entry_text(cell.model)} · {entry_text(cell.defense)} · "
    return where + (cell.point if isinstance(cell, AttackCell) else "training")


def _of_attacks(pairs: _Pairs) -> Iterable[_Measurement]:
    then = {condition.key: condition for condition in by_condition(before for before, _ in pairs)}
    now = {condition.key: condition for condition in by_condition(after for _, after in pairs)}
    readings = _readings(pairs)
    for key, condition in then.items():
        for defense, row in sorted(condition.rows.items(), key=lambda item: sort_key(item[0], "")):
            for point in (name for name in condition.points if name in row):
                before, after = row[point], now[key].rows[defense][point]
                subject = (condition.title, defense, point)
                if defense == UNDEFENDED:
                    yield _of_shares("undefended_asr", before, after, subject)
                    continue
                for metric in ("asr", "identified", "named"):
                    if _hits(before, metric).keys() & _hits(after, metric).keys():
                        yield _of_shares(metric, before, after, subject)
                if not (before.cascade or after.cascade):  # in a cascade, each attack saw other readings
                    was, is_now = _nearest(before), _nearest(after)
                    yield _of_figures("rmse", {key: (was[key], is_now[key]) for key in was if key in is_now}, subject)
                for name in ("reading_snr", "reading_cosine"):
                    if values := readings.get((key, defense, point, name)):
                        yield _of_figures(name, values, subject)


def _readings(pairs: _Pairs) -> dict[tuple[str, ...], _Figures]:
    """Map (condition, defense, point, metric) to each reading's values (before, after), which all attacks share."""
    figures: dict[tuple[str, ...], _Figures] = {}
    for before, after in pairs:
        cell = before.cell
        if not isinstance(cell, AttackCell) or before.attack is None or after.attack is None:
            continue
        taken_at = (condition_key(before), entry_text(cell.defense), cell.point)
        others = dict(after.attack.numbered())
        for number, then in before.attack.numbered():
            now = others.get(number)
            if now is None:  # the cascade left this reading only in the earlier run
                continue
            for name, values in (
                ("reading_snr", (then.snr_db, now.snr_db)),
                ("reading_cosine", (then.cosine, now.cosine)),
            ):
                if values[0] is not None and values[1] is not None:
                    key = (cell.seed, cell.draw, number, 0)
                    figures.setdefault((*taken_at, name), {}).setdefault(key, (values[0], values[1]))
    return figures


def _of_trainings(pairs: _Pairs) -> Iterable[_Measurement]:
    """Yield accuracy and overhead for each defense's trainings; each seed is a cluster."""
    by_subject: dict[_Subject, dict[str, _Figures]] = {}
    for number, (before, after) in enumerate(pairs):
        cell = before.cell
        if isinstance(cell, TrainingCell) and cell.defense.name != UNDEFENDED:
            title = f"{entry_text(cell.dataset)} · {entry_text(cell.model)} · {setting_text(cell.federated)}"
            figures = by_subject.setdefault(
                (title, entry_text(cell.defense), "training"), {"accuracy": {}, "overhead": {}}
            )
            for name, values in figures.items():
                then, now = _training_figure(before, name), _training_figure(after, name)
                if then is not None and now is not None:
                    values[(cell.seed, 0, number, 0)] = (then, now)
    for subject, figures in by_subject.items():
        for name, values in figures.items():
            if name != "overhead" or len({seed for seed, *_ in values}) >= _FEWEST_TIMED:
                yield _of_figures(name, values, subject)


def _training_figure(record: Record, name: str) -> float | None:
    return getattr(record.training if name == "accuracy" else record.cost.training, name, None)


def _nearest(worst: WorstCase) -> dict[ExampleKey, float]:
    """Map each example to its least RMSE over the attacks that read the gradient; 1, the maximum, without an RMSE."""
    least = dict.fromkeys(worst.leaked, 1.0)
    for attack, scores in worst.scores.items():
        if not attack.startswith(GRADIENT_FREE):
            for key, example in scores.items():
                least[key] = min(least[key], least[key] if example.rmse is None else example.rmse)
    return least


def _of_shares(name: str, before: WorstCase, after: WorstCase, subject: _Subject) -> _Measurement:
    metric = GATE_METRICS[name]
    was, is_now = _hits(before, name), _hits(after, name)
    keys = [key for key in was if key in is_now]
    then, now = (np.array([hits[key] for key in keys], bool) for hits in (was, is_now))
    worse, better = (now, then) if metric.sign > 0 else (then, now)
    fresh = {key for key in keys if is_now[key] and not was[key]} if name.endswith("asr") else set()
    attacks = sorted(
        attack for attack, scores in after.scores.items() if any(k in scores and scores[k].success for k in fresh)
    )
    return _Measurement(
        metric=metric,
        subject=subject,
        before=float(then.mean()),
        after=float(now.mean()),
        attacks=tuple(attacks),
        increase=of_shares(worse, better, clusters(keys) or range(len(keys))),
    )


def _hits(worst: WorstCase, name: str) -> Mapping[ExampleKey, bool]:
    """Map each example to True if any attack succeeded by the metric `name`: identified, named, else leaked."""
    return {"identified": worst.identified, "named": worst.named}.get(name, worst.leaked)


def _of_epsilon(pairs: _Pairs, margin: float) -> Iterable[Comparison]:
    """Compare ε at each point for the `pairs` of records (before, after), with this `margin`. A missing ε counts as
    infinite. ε has no sampling error: no test is needed."""
    spending = [(old, new) for old, new in pairs if old.attack and old.attack.privacy.epsilon is not None]
    now = {condition.key: condition for condition in by_condition(new for _, new in spending)}
    for condition in by_condition(old for old, _ in spending):
        for defense, row in sorted(condition.rows.items(), key=lambda item: sort_key(item[0], "")):
            for point, worst in row.items():
                before, after = _epsilon(worst), _epsilon(now[condition.key].rows[defense][point])
                worse = after / before - 1 if before else (inf if after else 0.0)
                yield Comparison(
                    metric="epsilon",
                    title=condition.title,
                    defense=defense,
                    point=point,
                    outcome="weaker" if worse >= margin else "pass",
                    before=before,
                    after=after,
                    worse=worse,
                    lower=worse,
                    upper=worse,
                    margin=margin,
                    p=0.0 if worse > 0 else 1.0,
                    pairs=1,
                    clusters=1,
                    drifted=0 < worse < margin,
                )


def _epsilon(worst: WorstCase) -> float:
    spent = recognition(worst)[2]
    return inf if spent is None or spent.epsilon is None else spent.epsilon


def _faults(records: Collection[Record]) -> Iterable[tuple[str, str, str]]:
    """Yield (flag code, subject, text) for broken contracts, unexplained readings, and measurements against an ε."""
    broken = {(entry_text(record.cell.defense), each): None for record in records for each in record.broken}
    yield from ((BROKEN, defense, each) for defense, each in broken)
    others = {
        (entry_text(r.cell.defense), r.cell.point): None
        for r in records
        if isinstance(r.cell, AttackCell) and unexplained(r)
    }
    for defense, point in others:
        yield UNEXPLAINED, f"{defense} · {point}", "the examples that are scored do not explain the reading"
    spending = [record for record in records if record.attack and record.attack.privacy.epsilon is not None]
    for condition in by_condition(spending):
        for defense, row in condition.rows.items():
            for point, worst in row.items():
                for flag in violations(*recognition(worst)):
                    yield flag.code, f"{condition.title} · {defense} · {point}", flag.text


def _of_figures(name: str, figures: _Figures, subject: _Subject) -> _Measurement:
    metric = GATE_METRICS[name]
    then, now = np.array(list(figures.values()), np.float64).T
    return _Measurement(
        metric=metric,
        subject=subject,
        before=float(then.mean()),
        after=float(now.mean()),
        increase=of_numbers(metric.sign * now, metric.sign * then, clusters(list(figures)) or range(len(figures))),
    )


def _judged(measurements: Sequence[_Measurement], margins: Mapping[str, float]) -> Iterable[Comparison]:
    bounds = holm([measurement.increase.p for measurement in measurements])
    for measurement, (p, level) in zip(measurements, bounds, strict=True):
        metric, increase, (title, defense, point) = (measurement.metric, measurement.increase, measurement.subject)
        margin, lower, upper = margins[metric.name], increase.lower(level), increase.upper()
        least = ceil(_EXAMPLES_TIMES_MARGIN / margin) if increase.centre is not None else 0
        outcome: Outcome = "weaker" if lower > 0 and increase.estimate >= margin else "pass"
        needed, reason = None, None
        if outcome == "pass" and (upper >= margin or increase.pairs < least):
            outcome, needed = "inconclusive", _needed(increase, margin, lower, upper, least)
            unknown = "one weight seed and one reading say nothing of how they vary"
            reason = f"too few {metric.of}" if needed else unknown
        elif outcome == "weaker" and metric.name == "undefended_asr":
            # The attackers got worse: a defense that leaks no more proves no strength.
            outcome = "inconclusive"
            reason = "the attacks got weaker: less comes back without a defense than before"
        yield Comparison(
            metric=metric.name,
            title=title,
            defense=defense,
            point=point,
            outcome=outcome,
            before=measurement.before,
            after=measurement.after,
            worse=increase.estimate,
            lower=lower,
            upper=upper,
            margin=margin,
            p=p,
            pairs=increase.pairs,
            clusters=increase.clusters,
            needed=needed,
            reason=reason,
            attacks=measurement.attacks,
            drifted=outcome == "pass" and lower > 0,
        )


def _needed(increase: Increase, margin: float, lower: float, upper: float, least: int) -> int | None:
    """Estimate the number of pairs that a decision requires, at least `least`; None if unknown. `lower` and `upper` are
    the bounds of the worsening, and they narrow with the square root of the number of pairs. A decision requires that
    the bounds exclude the `margin`."""
    if increase.freedom < 1:
        return max(least, 2 * increase.pairs) if increase.pairs > 1 else None
    if increase.estimate < margin:
        width, room = upper - increase.estimate, margin - increase.estimate
    else:
        width, room = increase.estimate - lower, increase.estimate
    return max(least, increase.pairs + 1, ceil(increase.pairs * (width / room) ** 2))
