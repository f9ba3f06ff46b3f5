"""Audit of a defense with stated noise and sensitivity: worst-case rows are planted in a federated round of the
bench."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.audit.bounds import Values, epsilon_of
from bench.audit.measure import Measured, Pipeline, Plan, Tick, measured
from bench.audit.result import Audit, Claim
from bench.contracts.planting import LARGE, crafted, first, shown_from, with_row
from bench.contracts.trials import Trial, trials, variants
from bench.defenses.accounting.mechanism import Mechanism, Reports, Sampling
from bench.defenses.accounting.report import paper_epsilon
from bench.defenses.base import Defense
from bench.errors import BenchError
from bench.federated.privacy import at_point
from bench.matrix.typed import written
from bench.points import POINTS, UPDATE_STAGES, Point, Stage
from bench.rows import flattened
from bench.trip import Tensors

ONE_REPORT = "one report"
_TRIED, _DRAWN = 2, 64  # draws that choose the rows, and that estimate the direction between the worlds
_SMALL = 1e-18  # of squared values: the variance of values without noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """Two neighbouring data sets (worlds) for the audit of a defense, and the interception points to audit. The worlds
    differ in a planted row: the tensors of a client or an example, chosen as the worst case."""

    points: tuple[Point, ...]
    """Interception points at which the defense claims an ε or states noise and sensitivity."""
    worlds: tuple[dict[str, Tensor], dict[str, Tensor]]
    """Tensors that enter the round at the stage `start`, in world 0 and in world 1, each name → tensor."""
    words: str
    """The difference between the worlds, in words."""
    start: Stage
    """Stage of the round at which the rows are planted."""
    suffix: str = ""
    """Addition to a point's name, such as `, one report`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A defense prepared for an audit of its ε: the defense in a small federated round, and its stated noise and
    sensitivity."""

    name: str
    """Name with the parameters that differ from their defaults, as `--defense` takes it."""
    defense: Defense
    """The defense under audit."""
    trial: Trial
    """Federated round with three clients, in which rows (tensors of a client or an example) are planted."""
    mechanism: Mechanism | Reports
    """The defense's stated noise and sensitivity, or its locally private reports."""

    @property
    def points(self) -> tuple[Point, ...]:
        """Interception points at which the audit can test an ε: at these, the defense's stated noise and sensitivity
        (or its locally private reports) protect an example or a client."""
        return tuple(
            point
            for point in POINTS.values()
            if (point.after_training or self.mechanism.unit == "example")
            and (isinstance(self.mechanism, Reports) or point.after in self.mechanism.rows)
        )


def subject(name: str, defense: Defense) -> Subject:
    """Prepare a defense for an audit: return it in a small federated round, with its stated noise and sensitivity.
    `name` is its name in the result. The round has the first of the audit's settings that the defense accepts. If no
    setting fits, a single parameter of the defense is changed. Raises `BenchError` for a defense that states no noise
    and sensitivity, or that refuses every setting."""
    reasons: list[str] = []
    for variant in variants(defense):
        try:
            _, trial = next(trials(variant))
            mechanism = variant.mechanism(trial.stages.setting)
        except ValueError as error:
            reasons.append(str(error))
            continue
        if mechanism is None:
            raise BenchError(f"{name} has no mechanism to audit: {variant.no_epsilon}")
        return Subject(name=_label(name, variant), defense=variant, trial=trial, mechanism=mechanism)
    raise BenchError(f"{name} refuses every setting of the audit: {reasons[0]}")


def has_mechanism(defense: Defense) -> bool:
    """Return whether `defense` can be audited: it states its noise and sensitivity in some federated setting of the
    audit, if necessary after a change of a single parameter."""
    try:
        subject("", defense)
    except BenchError:
        return False
    return True


def pipeline_of(subject: Subject) -> tuple[Pipeline, dict[str, tuple[Point, str]]]:
    """Turn the federated round of `subject` into a pipeline for an audit: a function of world (0 or 1, two neighbouring
    data sets) and seed that returns released values by name. Also return, for each name, (interception point,
    difference between the worlds in words)."""
    planted = [*_planted(subject)]
    readers: dict[str, tuple[Planted, _Reader]] = {}
    for each in planted:
        worlds = [_drawn(subject.trial, each.start, world, each.points, _DRAWN) for world in each.worlds]
        for point in each.points:
            readers[point.name + each.suffix] = (
                each,
                _Reader.of(subject.trial, point, worlds[0][point.name], worlds[1][point.name]),
            )
    places = {name: (reader.point, each.words) for name, (each, reader) in readers.items()}

    @torch.no_grad()
    def run(world: int, seed: int) -> dict[str, Values]:
        seen = {}
        for at, each in enumerate(planted):
            shown = shown_from(subject.trial, each.start, each.worlds[world], draw=seed + (at << 40))
            for point in each.points:
                name = point.name + each.suffix
                seen[name] = readers[name][1].values(shown)
        return seen

    return run, places


def audit_defense(
    subject: Subject, pipeline: Pipeline, places: Mapping[str, tuple[Point, str]], plan: Plan, tick: Tick | None = None
) -> tuple[Audit, ...]:
    """Run the audit of the defense in `subject`; return for each interception point the measured lower bounds of ε, and
    the claimed ε.

    - `pipeline`, `places`: the round as a function of world and seed, and name of released values → (interception
      point, difference between the worlds), both from `pipeline_of`.
    - `plan`: number of runs, δ and confidence.
    - `tick`: function without arguments, called after every pair of runs (a run in each world); None: no call.

    Raises `BenchError` for a round that releases NaN."""
    start = time.process_time()
    found = measured(pipeline, plan, tick=tick)
    seconds = time.process_time() - start
    return tuple(_audit(subject, name, *places[name], at=at, plan=plan, seconds=seconds) for name, at in found.items())


def not_audited(subject: Subject) -> dict[str, str]:
    """Return the interception points at which the defense in `subject` cannot be audited: point's name → reason."""
    reasons = {}
    for name, point in POINTS.items():
        if point not in subject.points:
            _, reason = _proved(subject, point)
            reasons[name] = reason or "no claim"
    return reasons


def _audit(subject: Subject, name: str, point: Point, words: str, *, at: Measured, plan: Plan, seconds: float) -> Audit:
    claim, absent = _claim(subject, point, plan.delta, one_report=ONE_REPORT in name)
    return Audit(
        name=subject.name,
        point=name,
        worlds=words,
        stated=_stated(subject, plan.delta, one_report=ONE_REPORT in name),
        claim=claim,
        absent=absent,
        delta=plan.delta,
        confidence=plan.confidence,
        runs=plan.runs,
        epsilon=at.epsilon,
        mu=at.mu,
        scores=at.scores,
        seconds=seconds,
    )


def _claim(subject: Subject, point: Point, delta: float, *, one_report: bool) -> tuple[Claim | None, str | None]:
    """Return the valid claim at `point` and δ = `delta`, or None with a reason."""
    if isinstance(subject.mechanism, Reports) and one_report:
        return Claim(epsilon=subject.mechanism.epsilon), None
    proved, reason = _proved(subject, point)
    if proved is None or proved.epsilon is None:
        return None, reason if proved is None else proved.absent
    if proved.multiplier is None:
        return Claim(epsilon=proved.epsilon), None
    mu = math.sqrt(proved.steps) / proved.multiplier[0]
    return Claim(epsilon=epsilon_of(mu, delta), mu=mu), None


def _proved(subject: Subject, point: Point) -> tuple[Any, str | None]:
    return at_point(
        subject.defense,
        subject.trial.stages.setting,
        point,
        tensors=len(subject.trial.weights),
        coordinates=_coordinates(subject.trial),
        round_=0,
        observations=1,
    )


def _stated(subject: Subject, delta: float, *, one_report: bool) -> float | None:
    """Return ε as the paper or the library counts for a round in which the row takes part; None if neither count
    applies."""
    mechanism, setting = subject.mechanism, subject.trial.stages.setting
    if isinstance(mechanism, Reports):
        return mechanism.epsilon * (1 if one_report else mechanism.count(_coordinates(subject.trial)))
    if mechanism.stated is not None:
        return mechanism.stated
    if not mechanism.paper or not delta or not mechanism.sigmas[0]:
        return None
    steps = 1 if mechanism.unit == "client" else setting.steps
    return paper_epsilon(mechanism, Sampling(q=1.0, per_round=steps, rounds=1), delta)


def _coordinates(trial: Trial) -> int:
    return sum(value.numel() for value in trial.weights.values())


def _label(name: str, defense: Defense) -> str:
    entry: Any = defense
    try:
        default = type(entry)()
    except (TypeError, ValueError):
        default = None
    changed = [
        f"{item.name}={getattr(entry, item.name)}"
        for item in fields(entry)
        if item.init and (default is None or getattr(entry, item.name) != getattr(default, item.name))
    ]
    return written(name, changed)


def _planted(subject: Subject) -> Iterator[Planted]:
    trial, mechanism = subject.trial, subject.mechanism
    start: Stage = "example" if mechanism.unit == "example" else UPDATE_STAGES[0]
    given = trial.at(start)
    words, rows = _farthest(subject, start, given)
    yield Planted(
        points=subject.points,
        worlds=(with_row(given, rows[0]), with_row(given, rows[1])),
        words=f"one {mechanism.unit} replaced: {words}",
        start=start,
    )
    if isinstance(mechanism, Reports):
        points = tuple(point for point in subject.points if point.after == UPDATE_STAGES[0])
        row = {name: torch.zeros_like(first(value, given)) for name, value in given.items()}
        name = next(iter(row))
        single = torch.zeros_like(row[name])
        single.view(-1)[0] = LARGE
        yield Planted(
            points=points,
            worlds=(with_row(given, row | {name: -single}), with_row(given, row | {name: single})),
            words="one weight of a client replaced, -10⁶ against 10⁶",
            start=start,
            suffix=f", {ONE_REPORT}",
        )


def _farthest(subject: Subject, start: Stage, given: Tensors) -> tuple[str, tuple[Tensors, Tensors]]:
    """Return the pair of rows, in words and as tensors, that moves the readings of all points farthest: in deviations
    of the noise, or by the noise's own size."""
    readings: dict[str, tuple[Tensors, dict[str, Values]]] = {}
    rows: dict[str, Tensors] = {"zero": {}}
    for words, row in crafted(given):
        rows[words] = row
        rows[f"minus {words}"] = {name: -value for name, value in row.items()}
    for words, planted in rows.items():
        readings[words] = (planted, _drawn(subject.trial, start, with_row(given, planted), subject.points, _TRIED))
    best, chosen = -math.inf, ("zero", "zero")
    for words in rows:
        for other in ("zero", f"minus {words}"):
            if other in readings and words != other:
                far = sum(
                    math.log(_apart(readings[words][1][name], readings[other][1][name])) for name in readings[words][1]
                )
                if far > best:
                    best, chosen = far, (words, other)
    return f"{chosen[0]}, against {chosen[1]}", (readings[chosen[0]][0], readings[chosen[1]][0])


@torch.no_grad()
def _drawn(trial: Trial, start: Stage, given: Tensors, points: tuple[Point, ...], draws: int) -> dict[str, Values]:
    """Return the victim's reading at each point for draws that all worlds share, point → (draw, value)."""
    shown = [shown_from(trial, start, given, draw=-1 - draw) for draw in range(draws)]
    return {point.name: np.stack([_seen(each, point)[0] for each in shown]) for point in points}


def _apart(one: Values, other: Values) -> float:
    """Return how far two worlds are apart, from readings (draw, value) with the same draws: the shift in deviations of
    the noise, or the logarithm of the noises' ratio in deviations of its estimate."""
    shift = (one - other).mean(0)
    spreads = [float(world.var(0, ddof=1).mean()) for world in (one, other)]
    least = _SMALL * max(float(np.square(one).mean()), float(np.square(other).mean()), _SMALL)
    low, high = sorted(max(spread, least) for spread in spreads)
    return max(
        float(np.linalg.norm(shift)) / math.sqrt((low + high) / 2),
        math.log(high / low) * math.sqrt(one.shape[1] / 2),
        1e-9,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """The few values of a reading that tell the worlds apart."""

    point: Point
    weights: Values
    """Difference of the worlds over the noise's variance, (value,): the likelihood ratio for Gaussian noise."""
    centre: Values
    """Mean over both worlds, (value,)."""
    precision: Values
    """Inverse variance, (value,)."""
    company: bool
    """Whether other clients' messages belong to the reading, because they share noise."""

    @classmethod
    def of(cls, trial: Trial, point: Point, zero: Values, one: Values) -> "_Reader":
        """Learn how to tell two neighbouring data sets (worlds) apart at an interception point: direction and variance,
        from readings (draw, value) of world `zero` and world `one`, with the same draws. `trial` is the federated
        round."""
        drawn = (zero, one)
        shift = (one - zero).mean(0)
        each = sum(world.var(0, ddof=1) for world in drawn) / len(drawn)
        sizes = [value.numel() for value in trial.weights.values()]
        # noise has a single deviation in each tensor, estimated from all its values
        ends = np.cumsum([0, *sizes])
        pooled = [np.full(end - begin, each[begin:end].mean()) for begin, end in pairwise(ends)]
        variance = np.concatenate(pooled)
        floor = _SMALL * max(np.square(drawn[0]).max(), np.square(drawn[1]).max(), _SMALL)
        precision = 1 / np.maximum(variance, floor)
        sees = point.after in UPDATE_STAGES[1:]
        mixes = trial.stages.first_mixing_stage is not None
        return cls(
            point=point,
            weights=shift * precision,
            centre=(drawn[0].mean(0) + drawn[1].mean(0)) / 2,
            precision=np.where(variance > floor, precision, 0.0),
            company=sees and mixes,
        )

    def values(self, shown: Mapping[Stage, Tensors]) -> Values:
        """Reduce the tensors of a round to the few values that tell the worlds apart, (value,): the likelihood ratio,
        the spread, and the projections of the other clients' messages. `shown` maps each stage to its tensors."""
        seen = _seen(shown, self.point)
        apart = seen[0] - self.centre
        others = [float(self.weights @ other) for other in seen[1:]] if self.company else []
        values = np.array([float(self.weights @ apart), float(self.precision @ np.square(apart)), *others])
        if not np.isfinite(values).all():
            raise BenchError(f"the round releases NaN or infinity at {self.point.name}")
        return values


def _seen(shown: Mapping[Stage, Tensors], point: Point) -> list[Values]:
    """Return the tensors at `point` as vectors: the victim's first, then the other clients'."""
    tensors = shown[point.after]
    if point.after == "aggregate":
        return [_flat(tensors)]
    if point.after == "example":
        return [_flat({name: value[0, 0] for name, value in tensors.items()})]
    clients = len(next(iter(tensors.values())))
    return [_flat({name: value[client] for name, value in tensors.items()}) for client in range(clients)]


def _flat(tensors: Tensors) -> Values:
    flat: Values = flattened(tensors, 0).detach().double().numpy()
    return flat
