"""A calibration's result as a value: for each family and listener the curve, the strengths and the figures there."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter

from bench.calibration.measure import accuracy_of, tried
from bench.calibration.run import Listener, Scored
from bench.ceilings.by_epsilon import ceiling
from bench.cell import Entry
from bench.defenses.strength import Strength
from bench.record.files import write_atomically
from bench.record.schema import Record
from bench.scoring.intervals import clustered_share

FILE = "tradeoff.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The share of named examples at a strength."""

    value: float | None
    """The strength: the parameter's value; None for a family without a strength."""
    share: float
    """Share of named examples."""
    hits: tuple[int, ...]
    """Named examples per weight seed."""
    readings: tuple[int, ...]
    """Readings per weight seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtLevel:
    """A defense's figures at the strength calibrated for a level."""

    level: str
    """Name of the level, or `point` for a family without a strength."""
    most: float | None
    """Largest share of named examples that the level permits."""
    value: float | None
    """The strength; None for a family without a strength."""
    interval: tuple[float, float] | None
    """5 % and 95 % quantile of the strength at which the fitted curve meets the level."""
    share: float
    """Share of named scoring examples."""
    low: float
    """Lower end of the share's 95 % interval, over weight seeds."""
    high: float
    """Upper end of the share's 95 % interval."""
    accuracies: tuple[float, ...]
    """Test accuracy after the training, per seed; 0 for a diverged training."""
    rate: float
    """Learning rate of these trainings, the best of the grid."""
    epsilon: float | None
    """ε of a reading at the listener's point; None: no ε is proved."""
    ceiling: float | None
    """Largest share which any attacker can name, by ε; None: no ε is proved."""
    released: float | None
    """Valid ε of the released models after the training; None: no ε is proved."""
    released_of: str | None
    """Protected unit and neighbours of `released`, in words."""

    @property
    def accuracy(self) -> float:
        """Mean test accuracy over seeds."""
        return statistics.fmean(self.accuracies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A family for one listener."""

    dataset: str
    """Name of the data set."""
    model: str
    """Name of the model."""
    point: str
    """Interception point."""
    also: tuple[str, ...]
    """Later points that show the same reading."""
    family: str
    """Name of the defense with the parameters that stay fixed."""
    parameter: str | None
    """The strength's parameter; None: a family without a strength."""
    chance: float | None
    """κ, the share which a blind guess names; None without figures."""
    curve: tuple[Named, ...]
    """Tuning figures, from weak to strong."""
    at_levels: tuple[AtLevel, ...]
    """Figures at each level that the family reaches, with accuracy."""
    missed: tuple[str, ...]
    """Levels that no strength in the declared range reaches."""
    absent: str | None = None
    """Reason for a row without figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tradeoff:
    """A calibration's result."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    code: str | None
    """Fingerprint of the bench's code that made the records."""
    machine: str | None
    """Processor of the machine."""
    undefended: dict[str, tuple[float, ...]]
    """Data set and model → undefended test accuracies, per seed."""
    rows: tuple[Row, ...]
    """Families, each for every listener whose reading it changes."""


_TRADEOFF = TypeAdapter(Tradeoff)


def write(run: Path, result: Tradeoff) -> Path:
    """Write the result into the run folder, and return the file."""
    path = run / FILE
    write_atomically(path, _TRADEOFF.dump_json(result, indent=1) + b"\n")
    return path


def read(path: Path) -> Tradeoff:
    """Read a result; raises pydantic's `ValidationError` for other content."""
    return _TRADEOFF.validate_json(path.read_bytes(), strict=False)


def row(
    dataset: str, model: str, listener: Listener, scores: Iterable[Scored], strength: Strength | None, family: str
) -> Row:
    """Return a family's row for one listener.  `dataset` and `model` name the federation; `scores` are the figures at
    the strengths of all listeners; `family` is the family's name with its fixed parameters.
    """
    counted = [
        (position, tried(0.0 if position is None else position, records))
        for position, records in listener.strengths.items()
    ]
    curve = [
        Named(
            value=None if strength is None or position is None else strength.value(position),
            share=each.share,
            hits=each.hits,
            readings=each.readings,
        )
        for position, each in sorted(counted, key=lambda pair: pair[0] or 0.0)
        if each is not None
    ]
    own = [each for each in scores if each.listener is listener]
    return Row(
        dataset=dataset,
        model=model,
        point=listener.point,
        also=listener.also,
        family=family,
        parameter=None if strength is None else strength.parameter,
        chance=None if listener.absent is not None else listener.chance,
        curve=tuple(curve),
        at_levels=tuple(_at_level(each, strength) for each in own),
        missed=tuple(name for name, found in listener.calibrated.items() if found.position is None),
        absent=listener.absent,
    )


def _at_level(score: Scored, strength: Strength | None) -> AtLevel:
    counted = tried(0.0, score.readings)
    assert counted is not None
    outcomes = [n < hits for hits, of in zip(counted.hits, counted.readings, strict=True) for n in range(of)]
    seeds = [seed for seed, of in enumerate(counted.readings) for _ in range(of)]
    low, high = clustered_share(outcomes, range(len(outcomes)), seeds)
    found = score.listener.calibrated.get(score.level)
    epsilon, bound = _epsilon(score.readings, score.listener.chance)
    released = None if score.trainings[0].training is None else score.trainings[0].training.privacy.released()
    return AtLevel(
        level=score.level,
        most=None if found is None else found.level,
        value=None if strength is None or found is None or found.position is None else strength.value(found.position),
        interval=None if strength is None or found is None else _ends(found.interval, strength),
        share=counted.share,
        low=low,
        high=high,
        accuracies=tuple(accuracy_of(record) for record in score.trainings),
        rate=score.trainings[0].cell.federated.rate,
        epsilon=epsilon,
        ceiling=bound,
        released=None if released is None else released.epsilon,
        released_of=None if released is None or released.epsilon is None else f"{released.unit}, {released.adjacency}",
    )


def _ends(interval: tuple[float, float], strength: Strength) -> tuple[float, float]:
    low, high = (strength.value(min(1.0, max(0.0, each))) for each in interval)
    return low, high


def _epsilon(records: Sequence[Record], chance: float) -> tuple[float | None, float | None]:
    attack = records[0].attack
    if attack is None or not attack.privacy.figures:
        return None, None
    return attack.privacy.epsilon, ceiling(attack.privacy.figures[0], chance)


def family_name(defense: Entry, strength: Strength | None) -> str:
    """Return a family's name with the parameters other than the strength's."""
    rest = {key: value for key, value in defense.params.items() if strength is None or key != strength.parameter}
    return str(Entry(name=defense.name, params=rest))
