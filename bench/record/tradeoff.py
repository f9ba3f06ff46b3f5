"""Trade-offs: for each family of defenses and listener, the shares of named examples by strength, and the accuracy at
the strengths calibrated for levels.  `bench calibrate` makes a trade-off."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from bench.errors import RecordError
from bench.record import audits
from bench.record.audits import Audited
from bench.record.files import write_atomically

FILE = "tradeoff.json"
NAMED = ("L1", "L2")  # levels of named examples, the strictest first
RECONSTRUCTED = "L3"  # level of reconstructed examples
LEVELS = (*NAMED, RECONSTRUCTED)  # levels of a board, the strictest first
PROVED = "proved"  # the weakest strength at which ε proves L1 for a single reading
PROVED_ALL = "proved-all"  # the weakest strength at which ε proves L1 for all readings of a client in a training
USEFUL = 0.5  # least share of the undefended gain over a constant guess at which a level counts as reached

_STRICT = {"extra": "forbid", "allow_inf_nan": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaked:
    """A point of a trade-off curve: the share of leaked examples at a strength of the defense. A leaked example is
    named (picked by the attacker among candidates) or reconstructed."""

    __pydantic_config__ = _STRICT
    value: float | None
    """The strength: the parameter's value; None for a family without a strength."""
    share: float
    """Share of named or reconstructed examples."""
    hits: tuple[int, ...]
    """Number of named or reconstructed examples for each weight seed."""
    readings: tuple[int, ...]
    """Number of readings for each weight seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtLevel:
    """Figures of a defense at the strength that just meets a level: strength, leakage, test accuracy and ε. A level is
    the largest permitted share of named examples, which the attacker picks among candidates (`L3`: of reconstructed
    examples, in every field). Strengths are chosen on the tuning victims; the figures are measured on the scoring
    victims, other attacked examples."""

    __pydantic_config__ = _STRICT
    level: str
    """Name of the level: `L1`, `L2` or `L3`; `proved`: ε proves L1 for a single reading; `proved-all`: ε proves L1 for
    all readings of a client; `half`: half of the examples are named; `point`: a family without a strength."""
    most: float | None
    """Largest share of named examples that the level permits; None for a family without a strength."""
    value: float | None
    """The strength; None for a family without a strength."""
    interval: tuple[float, float] | None
    """5 % and 95 % quantile of the strength at which the fitted curve meets the level; None without a strength."""
    share: float
    """Share of named examples among the scoring victims."""
    low: float
    """Lower end of the share's 95 % interval over weight seeds."""
    high: float
    """Upper end of the share's 95 % interval."""
    trained: tuple[float, float, float] | None
    """Share of named examples halfway through the trainings, among the scoring victims, with its 95 % interval; None:
    diverged, or too few clients with a victim."""
    accuracies: tuple[float, ...]
    """Test accuracy after the training, per seed; 0 for a diverged training."""
    rate: float
    """Learning rate of these trainings, the best of the grid."""
    epsilon: float | None
    """ε of a reading for this listener; None: no ε is proved."""
    ceiling: float | None
    """Largest share that any attacker can name in one reading, by ε; None: no ε is proved."""
    ceiling_all: float | None
    """Largest share that any attacker with all readings of a client can name, by ε; None: no ε is proved."""
    released: float | None
    """Valid ε of the released models after the training; None: no ε is proved."""
    released_of: str | None
    """Protected unit and neighbours of `released`, in words; None without `released`."""
    all_updates: tuple[float, float, float] | None = None
    """Share of named examples by an attacker who combines all updates of a client in a training (`Row.uploads`, each
    under its round's weights), with its 95 % interval; None: not measured."""
    meets: tuple[str, ...] = ()
    """Levels that a family without a strength meets: the upper end of the share among the tuning victims (95 %,
    one-sided) is at most the permitted share. Empty for a family with a strength."""
    picture: str | None = None
    """Scoring victims above their reconstructions (`bench.attacks.map`): a WebP image, base64. None: private data, a
    federation without a reconstructing attack, or an older file."""

    @property
    def accuracy(self) -> float:
        """Mean test accuracy over seeds."""
        return statistics.fmean(self.accuracies)

    @property
    def leaks_later(self) -> bool:
        """True if the strength, chosen at untrained weights, is too weak later in the training: at trained weights, the
        share of leaked examples is significantly above the level's limit `most`."""
        return self.trained is not None and self.most is not None and self.trained[1] > self.most

    @property
    def proved(self) -> bool:
        """True if ε bounds the share of named examples by the level's limit `most`, for any attacker with one reading
        (observed update)."""
        return self.ceiling is not None and self.most is not None and self.ceiling <= self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstructed:
    """Reconstruction figures of a defense family (a defense at all its strengths) against an attacker who reconstructs
    examples (`bench.attacks.map`), for a listener (an attacker at an interception point). The success rule is that of
    the kind of data; for images, PSNR ≥ 20 dB and 3 dB above a guess without the gradient. Strengths are chosen on the
    tuning victims, and judged on the scoring victims (other attacked examples)."""

    __pydantic_config__ = _STRICT
    curve: tuple[Leaked, ...]
    """Shares of reconstructed tuning examples by strength, from weak to strong."""
    trained_curve: tuple[Leaked, ...]
    """The same shares halfway through the trainings with each strength."""
    at: AtLevel | None
    """Figures among the scoring victims, at the weakest strength that meets `L3` (level `point`: no strength); None: no
    strength meets `L3`."""
    absent: str | None = None
    """Reason for missing figures, such as an attack that does not apply; None: all figures are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Trade-off of a defense family for a listener, a row of the board: leakage by strength, and the figures at each
    level. A family is a defense at all its strengths; a listener is an attacker at an interception point. Named
    examples are those that the attacker picks among candidates."""

    __pydantic_config__ = _STRICT
    dataset: str
    """Name of the data set."""
    model: str
    """Name of the model; `, labels unknown` follows if the attacker does not know the labels."""
    point: str
    """Interception point."""
    also: tuple[str, ...]
    """Later interception points at which the reading is the same."""
    family: str
    """Name of the defense with the parameters that stay fixed."""
    parameter: str | None
    """The strength's parameter; None: a family without a strength."""
    chance: float | None
    """κ, the share of examples that a blind guess names; None without figures."""
    code: str | None
    """Fingerprint of the bench's code that made the records; None: unknown."""
    uploads: int
    """Readings of a client in a whole training: the expected number of rounds with this client, rounded up."""
    curve: tuple[Leaked, ...]
    """Shares of named examples by strength, from weak to strong, among the tuning victims, on which strengths are
    chosen."""
    at_levels: tuple[AtLevel, ...]
    """Figures at each level that the family reaches, among the scoring victims."""
    missed: tuple[str, ...]
    """Levels that no strength in the declared range reaches."""
    trained_curve: tuple[Leaked, ...] = ()
    """Shares of named tuning examples halfway through the trainings with each strength, from weak to strong."""
    reconstructed: Reconstructed | None = None
    """Figures of reconstructed examples; None: not measured."""
    absent: str | None = None
    """Reason for a row without figures; None: the row has figures."""
    seconds: float | None = None
    """Core seconds that the calibration took for this listener, half of a family's trainings for each of two listeners;
    None: unknown."""

    def at(self, level: str) -> AtLevel | None:
        """Return the figures of the defense family at a `level` (a limit on leaked examples), such as `L1`. None if the
        family does not meet the level, and for the level `proved` if the family has no strength."""
        figures = self.at_levels
        if level == RECONSTRUCTED:
            figures = () if self.reconstructed is None or self.reconstructed.at is None else (self.reconstructed.at,)
        found = next((each for each in figures if level in (each.level, *each.meets)), None)
        if found is None or found.level == level:
            return found
        return replace(found, most=permitted(level, self.chance or 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tradeoff:
    """Result of a calibration: for each defense family (a defense at all its strengths), accuracy against the share of
    named examples (which the attacker picks among candidates)."""

    __pydantic_config__ = _STRICT
    machine: str | None
    """Processor of the machine; None: unknown."""
    undefended: dict[str, tuple[float, ...]]
    """Map from federation (data set and model as text) to undefended test accuracies, per seed."""
    commonest: dict[str, float]
    """Map from federation to the share of the most frequent class among the test examples: the accuracy of a constant
    guess."""
    rows: tuple[Row, ...]
    """Families, each for every listener whose reading it changes."""
    settings: dict[str, str] = field(default_factory=dict)
    """Map from federation to its setting in words: clients, batch, rounds, model. Empty in older files."""
    audits: tuple[Audited, ...] = ()
    """Measured lower bounds of ε at level L1; empty without audits. The file beside the trade-off has these."""

    def audit(self, row: Row, setting: str) -> Audited | None:
        """Return the audit of a defense with its parameters, `setting`, such as `dp-sgd:clip=0.5,sigma=1.01`, at the
        interception point of `row`; None if not audited."""
        key = (row.dataset, row.model, row.point, setting)
        return next((each for each in self.audits if key == each.key), None)

    def undefended_mean(self, dataset: str, model: str) -> float:
        """Return the mean undefended test accuracy over seeds, for the names of a `dataset` and a `model`."""
        return statistics.fmean(self.undefended[federation(dataset, model)])

    def kept(self, row: Row, at: AtLevel) -> float:
        """Return the share of the accuracy that remains under a defense: its accuracy divided by the undefended
        accuracy. `row` is the defense family, and `at` its figures at a level (a limit on leaked examples)."""
        return at.accuracy / self.undefended_mean(row.dataset, row.model)

    def useful(self, row: Row, at: AtLevel) -> bool:
        """Return whether the accuracy with a defense remains useful: at least half of the undefended gain over a
        constant guess. `row` is the defense family, and `at` its figures at a level (a limit on leaked examples)."""
        constant = self.commonest[federation(row.dataset, row.model)]
        return at.accuracy - constant >= USEFUL * (self.undefended_mean(row.dataset, row.model) - constant)


_TRADEOFF = TypeAdapter(Tradeoff)


def federation(dataset: str, model: str) -> str:
    """Return the key of a data set and model in `Tradeoff.undefended`: the names of `dataset` and `model` as a single
    text."""
    return f"{dataset} · {model}"


def codes(tradeoff: Tradeoff) -> str:
    """Return the fingerprints (hashes) of the code behind the rows of a trade-off, shortened, as a text for the page of
    the trade-off."""
    return ", ".join(sorted({(row.code or "unknown")[:12] for row in tradeoff.rows}))


def permitted(level: str, chance: float) -> float:
    """Return the limit of a leakage level: the largest share of named examples (which the attacker picks among
    candidates), or for `L3` of reconstructed examples. `chance` is the share that a blind guess names; the limit of
    `L1` lies above it."""
    strictest = chance + 0.05
    most = {"L1": strictest, PROVED: strictest, PROVED_ALL: strictest, "L2": 0.20, "half": 0.5, RECONSTRUCTED: 0.05}
    return most[level]


def write(run: Path, result: Tradeoff) -> Path:
    """Write the trade-off `result` into the run folder `run`, without its audits, and return the file's path."""
    path = run / FILE
    write_atomically(path, _TRADEOFF.dump_json(result, indent=1, exclude={"audits"}) + b"\n")
    return path


def read(path: Path) -> Tradeoff:
    """Read a trade-off from the file `path`, or from the trade-off file in the folder `path`, with the audits in the
    same folder. Raises `RecordError` for a missing file or other content."""
    path = path / FILE if path.is_dir() else path
    try:
        found = _TRADEOFF.validate_json(path.read_bytes())
    except OSError as error:
        if (path.parent / "records").is_dir():
            raise RecordError(f"{path.parent}: no trade-off yet; the command that began this run continues") from None
        raise RecordError(f"{path}: {error.strerror}; `bench calibrate` makes a trade-off") from None
    except ValidationError as error:
        raise RecordError(f"{path}: no trade-off ({error.error_count()} faults); `bench calibrate` makes one") from None
    for key in (federation(row.dataset, row.model) for row in found.rows):
        if key not in found.undefended or key not in found.commonest:
            raise RecordError(f"{path}: no undefended accuracy of {key}; run `bench calibrate` again")
    return replace(found, audits=audits.read(path.parent))


def joined(results: Iterable[Tradeoff]) -> Tradeoff:
    """Return the rows of all trade-offs in `results` as a single trade-off. A later row replaces an earlier row of the
    same defense family, data set, model and interception point. Earlier rows are left out if a later trade-off has
    another setting for the same data set and model: accuracies of two settings are not comparable."""
    first, *others = results
    settings = {key: value for each in (first, *others) for key, value in each.settings.items()}
    rows = {
        (row.dataset, row.model, row.point, row.family): row
        for each in (first, *others)
        for row in each.rows
        if each.settings.get(key := federation(row.dataset, row.model), last := settings.get(key)) == last
    }
    audited = {audit.key: audit for each in (first, *others) for audit in each.audits}
    return Tradeoff(
        machine=first.machine,
        undefended={key: value for each in (first, *others) for key, value in each.undefended.items()},
        commonest={key: value for each in (first, *others) for key, value in each.commonest.items()},
        rows=tuple(rows.values()),
        settings=settings,
        audits=tuple(audited.values()),
    )
