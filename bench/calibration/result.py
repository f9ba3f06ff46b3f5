"""A calibration's result: for each defense family and interception point the curve, the calibrated strengths, and the
leakage and accuracy at these strengths."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bench.calibration.curve import Counts
from bench.calibration.measure import Federation, Question, accuracy_of, counts_of
from bench.calibration.run import Bound, Listener
from bench.calibration.score import Score
from bench.cell import Entry
from bench.defenses.base import Defense
from bench.defenses.strength import Strength
from bench.parameters import parameters
from bench.record.schema import Record
from bench.record.tradeoff import AtLevel, Leaked, Reconstructed, Row
from bench.scoring.intervals import LEVEL, clustered_share


def row(
    federation: Federation,
    listeners: Sequence[Listener],
    scores: Iterable[Score],
    defense: type[Defense],
    bound: Bound,
    seconds: float | None = None,
    picture: Callable[[Record], str | None] = lambda record: None,
) -> Row:
    """Return the row of the trade-off (a table of leakage and accuracy) for a defense family at an interception point.

    - `federation`: data set, model and setting of the calibration.
    - `listeners`: the family's measurements at this point: of named examples (picked among candidates), of
      reconstructed examples, or both. The row leaves out a quantity without measurements.
    - `scores`: leakage and accuracy at the calibrated strengths; scores of other listeners are ignored.
    - `defense`: the family's class, which declares the strength and the default parameters.
    - `bound`: function that returns an upper bound on the share of named examples by ε; None: no ε.
    - `seconds`: core seconds that the calibration took at this point; None: unknown.
    - `picture`: function from an attack's record to a picture of its reconstructions (base64); None: no picture."""
    strength = defense.strength
    at_levels = {
        listener.question: tuple(
            _at_level(each, strength, federation.uploads, bound, picture)
            for each in scores
            if each.listener is listener
        )
        for listener in listeners
    }
    by_question = {listener.question: listener for listener in listeners}
    names, pixels, either = by_question.get("named"), by_question.get("reconstructed"), listeners[0]
    measured = [records for each in (names, pixels) if each is not None for records in each.strengths.values()]
    return Row(
        dataset=federation.dataset,
        model=federation.model,
        point=either.point,
        also=either.also,
        family=family_name(either.defense, defense),
        parameter=None if strength is None else strength.parameter,
        chance=None if names is None or names.absent is not None else names.chance,
        code=next((each.provenance.bench.sha256 for group in measured for each in group), None),
        uploads=federation.uploads,
        curve=() if names is None else _curve(names.strengths, strength, "named"),
        trained_curve=() if names is None else _curve(names.trained, strength, "named"),
        at_levels=at_levels.get("named", ()),
        missed=()
        if names is None
        else tuple(level for level, result in names.calibrated.items() if result.position is None),
        reconstructed=None
        if pixels is None
        else Reconstructed(
            curve=_curve(pixels.strengths, strength, "reconstructed"),
            trained_curve=_curve(pixels.trained, strength, "reconstructed"),
            at=next(iter(at_levels["reconstructed"]), None),
            absent=pixels.absent,
        ),
        absent=None if names is None else names.absent,
        seconds=seconds,
    )


def _curve(
    records: Mapping[Any, Sequence[Record]], strength: Strength | None, question: Question
) -> tuple[Leaked, ...]:
    """Return the shares of named or reconstructed examples (`question`) from weak to strong, for position → records;
    None: no strength."""
    counted = [(position, counts_of(position or 0.0, each, question)) for position, each in records.items() if each]
    return tuple(
        Leaked(
            value=None if strength is None or position is None else strength.value(position),
            share=each.share,
            hits=each.hits,
            readings=each.readings,
        )
        for position, each in sorted(counted, key=lambda pair: pair[0] or 0.0)
        if each is not None
    )


def _at_level(
    score: Score, strength: Strength | None, uploads: int, bound: Bound, picture: Callable[[Record], str | None]
) -> AtLevel:
    question = score.listener.question
    fixed = score.listener.strengths.get(None)
    share, low, high = _share(score.readings, question)
    found = score.listener.calibrated.get(score.level)
    point, chance = score.listener.point, score.listener.chance
    attack = score.readings[0].attack
    released = None if score.trainings[0].training is None else score.trainings[0].training.privacy.released()
    return AtLevel(
        level=score.level,
        most=None if found is None else found.level,
        value=None if strength is None or found is None or found.position is None else strength.value(found.position),
        interval=None if strength is None or found is None else _ends(found.interval, strength),
        share=share,
        low=low,
        high=high,
        trained=_share_if_measured(score.trained, question),
        all_updates=_share_if_measured(score.updates, question),
        accuracies=tuple(accuracy_of(record) for record in score.trainings),
        rate=score.trainings[0].cell.federated.rate,
        epsilon=None if attack is None else attack.privacy.epsilon,
        ceiling=bound(score.defense, point, chance, 1),
        ceiling_all=bound(score.defense, point, chance, uploads),
        released=None if released is None else released.epsilon,
        released_of=None if released is None or released.epsilon is None else f"{released.unit}, {released.adjacency}",
        meets=() if fixed is None else levels_met(_counted(fixed, question), score.listener.levels),
        picture=None if score.pictured is None else picture(score.pictured),
    )


def levels_met(counts: Counts, levels: Mapping[str, float]) -> tuple[str, ...]:
    """Return the names of the levels that the measured `counts` (numbers of named or reconstructed examples) meet.
    `levels` are name → largest permitted share of examples. A level is met if the upper confidence bound of the
    measured share (95 %, one-sided, over weight seeds) is at most the permitted share."""
    high = _interval(counts, 2 * LEVEL - 1)[1]
    return tuple(level for level, most in levels.items() if high <= most)


def _share_if_measured(records: Sequence[Record], question: Question) -> tuple[float, float, float] | None:
    """Return `_share`; None without records, or if a record has no share."""
    counted = counts_of(0.0, records, question) if records else None
    return None if counted is None else (counted.share, *_interval(counted, LEVEL))


def _share(records: Sequence[Record], question: Question) -> tuple[float, float, float]:
    """Return (share of named or reconstructed examples, lower end, upper end), with the 95 % interval over weight
    seeds."""
    share = _share_if_measured(records, question)
    assert share is not None
    return share


def _counted(records: Sequence[Record], question: Question) -> Counts:
    counted = counts_of(0.0, records, question)
    assert counted is not None
    return counted


def _interval(counts: Counts, level: float) -> tuple[float, float]:
    outcomes = [n < hits for hits, of in zip(counts.hits, counts.readings, strict=True) for n in range(of)]
    seeds = [seed for seed, of in enumerate(counts.readings) for _ in range(of)]
    return clustered_share(outcomes, range(len(outcomes)), seeds, level)


def _ends(interval: tuple[float, float], strength: Strength) -> tuple[float, float]:
    low, high = (strength.value(min(1.0, max(0.0, each))) for each in interval)
    return low, high


def family_name(entry: Entry, defense: type[Defense]) -> str:
    """Return a defense family's name: the name of `entry` (a defense with parameters), and the parameters that differ
    from the defaults of its class `defense`. The strength parameter is left out."""
    fixed = {each.name: each.default for each in parameters(defense)}
    if defense.strength is not None:
        fixed[defense.strength.parameter] = entry.params.get(defense.strength.parameter)
    rest = {key: value for key, value in entry.params.items() if key not in fixed or fixed[key] != value}
    return str(Entry(name=entry.name, params=rest))
