"""The matrix file as pydantic models: names become registered entries, and defaults are filled in.

Axes hold no `sweep` here, because `bench.matrix.blocks` has replaced each `sweep` by its values."""

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Annotated, Any, Self, TypeVar

import pydantic
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PlainValidator, ValidationError, create_model

from bench.cell import (
    AnyCell,
    AttackCell,
    Bayesian,
    Entry,
    Federated,
    FileWeights,
    Grants,
    InitialWeights,
    Knowledge,
    TrainingCell,
    axes,
)
from bench.matrix.entries import registered
from bench.matrix.messages import REQUIRED, Wrong, expected, nearest, quoted
from bench.matrix.suites import SUITES
from bench.matrix.weights import SeededFile, weights_file
from bench.points import POINTS
from bench.record.metrics import METRICS

LARGEST = 10**9
MOST_BLOCKS = 200
MOST_ROWS = 2000  # of `[[published]]`
AXES, TRAIN_AXES = axes(AttackCell), axes(TrainingCell)


class Table(BaseModel):
    """Base class for tables of a matrix file (a run's experiments); unknown keys and type conversions are
    refused."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    def written(self, names: Iterable[str]) -> dict[str, Any]:
        """Return those keys in `names` that the matrix file itself sets, name → value, without default values. For
        example, a pattern compares only the set keys."""
        return {name: getattr(self, name) for name in names if name in self.model_fields_set}


def _entry(axis: str) -> PlainValidator:
    def check(raw: Any, info: Any) -> Entry:
        entry = registered(axis, raw, info.context["registry"])
        written = tuple(sorted(name for name in raw if name != "name")) if isinstance(raw, dict) else ()
        info.context["asked"].setdefault((axis, str(entry)), set()).add(written)
        return entry

    return PlainValidator(check)


def _entry_pattern(axis: str) -> PlainValidator:
    """Return a validator for a pattern on an axis. Omitted parameters stay free: the pattern `{ name = "prune" }`
    matches prune with every share."""

    def check(raw: Any, info: Any) -> dict[str, Any]:
        entry = registered(axis, raw, info.context["registry"])
        names = raw if isinstance(raw, dict) else {}
        return {"name": entry.name, **{name: entry.params[name] for name in names if name != "name"}}

    return PlainValidator(check)


def _federated_pattern(raw: Any) -> Any:
    if not isinstance(raw, dict):
        raise Wrong(expected("a table", raw, "{ clients = 100 }"))
    try:
        Federated.model_validate(raw)
    except ValidationError as error:  # a part of a setting need not be consistent
        if any(item["type"] != "value_error" for item in error.errors()):
            raise
    return raw


def _one_of(what: str, names: Iterable[str]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in names:
            raise Wrong(f"unknown {what} {quoted(name)}; {nearest(name, names)}")
        return name

    return AfterValidator(check)


def _line(raw: Any) -> str:
    if not isinstance(raw, str) or len(raw) > 200 or not raw.isprintable():
        raise Wrong(expected("one line of at most 200 characters", raw, '"what this compares"'))
    return raw


def _grants(raw: Any) -> Any:
    """Convert a list such as `["labels", { repeated-readings = 100 }]` to a table with the fields of `Grants`."""
    example = '[], ["labels"], [{ repeated-readings = 100 }] or [{ public = "none" }]'
    if not isinstance(raw, list) or not all(isinstance(item, str | dict) for item in raw):
        raise Wrong(expected("a list of grants", raw, example))
    tables = ({item: True} if isinstance(item, str) else item for item in raw)
    return {name.replace("-", "_"): value for table in tables for name, value in table.items()}


def _weights(raw: Any) -> Any:
    if raw == "init":
        return {}
    if not isinstance(raw, dict) or not raw:
        example = '"init", { file = "w.safetensors" } or { train = { rounds = 20 }, round = 5 }'
        raise Wrong(expected("weights", raw, example))
    return raw


def _tuples(raw: Any) -> Any:
    if not isinstance(raw, dict):
        return raw
    return {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}


T = TypeVar("T")
Axis = Annotated[list[T], Field(min_length=1)]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Index = Annotated[int, Field(ge=0, le=LARGEST)]
Counts = Annotated[Axis[Count], BeforeValidator(lambda raw: raw if isinstance(raw, list) else [raw])]
Dataset = Annotated[Entry, _entry("dataset")]
Model = Annotated[Entry, _entry("model")]
Attack = Annotated[Entry, _entry("attack")]
Defense = Annotated[Entry, _entry("defense")]
Point = Annotated[str, _one_of("point", POINTS)]
Line = Annotated[str, BeforeValidator(_line)]
Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0, le=1e9)]


class Training(Table):
    """Training that makes the attacked weights: value of the key `train` in the axis `weights` of a matrix file (a
    run's experiments)."""

    rounds: Count
    """Number of rounds."""
    defense: Defense = Entry(name="none")
    """Defense that acts in the training."""
    federated: Federated | None = None
    """Federated setting; None: the attacked setting."""
    test_every: Count | None = None
    """Rounds between two tests; None: the default of a training."""
    test_examples: Count | None = None
    """Largest number of test examples in a test; None: the default of a training."""


class Weights(Table):
    """Value of the axis `weights` of a matrix file (a run's experiments): `"init"` (an empty table here), a `file`,
    or a training (`train`) with a `round`."""

    file: Annotated[
        FileWeights | SeededFile | None, PlainValidator(lambda raw, info: weights_file(info.context["folder"], raw))
    ] = None
    """Weights file, or a file per seed; None: no file."""
    train: Training | None = None
    """Training that makes the weights; None: no training."""
    round: Index | None = None
    """Round after which the weights are saved; None without a training."""

    @pydantic.field_validator("round")
    @classmethod
    def _within_the_training(cls, round: int, info: pydantic.ValidationInfo) -> int:
        last = training.rounds if (training := info.data.get("train")) else round
        if round > last:
            raise Wrong(f"{round} is after the last of {last} rounds; give 0 to {last}")
        return round

    @pydantic.model_validator(mode="after")
    def _one_kind(self) -> Self:
        names = self.model_fields_set
        if "file" in names and len(names) > 1:
            raise Wrong("a file and a training; keep one of the two")
        if len(names) == 1 and "file" not in names:
            raise Wrong("lacks round; add e.g. round = 20" if "train" in names else "lacks train")
        return self

    @property
    def value(self) -> "InitialWeights | FileWeights | SeededFile | Weights":
        """The attacked weights in the form for a cell (an experiment): `InitialWeights` (untrained), or `FileWeights`
        for a file. Two forms remain until the cell's seed is known: a `SeededFile` (a file per seed), and this table
        for weights from a training."""
        return self if self.train is not None else self.file or InitialWeights()


# Axes whose values are spelt otherwise than in a cell.
_SPELT: dict[str, Any] = {
    "dataset": Dataset,
    "model": Model,
    "attack": Attack,
    "defense": Defense,
    "point": Point,
    "weights": Annotated[Weights, BeforeValidator(_weights)],
    "grants": Annotated[Grants, BeforeValidator(_grants)],
}


class Budgets(Table):
    """Attack budgets in a matrix file (a run's experiments), at the top of the file or among the axes; each is a
    number or a list of numbers (an experiment per number)."""

    evaluations: Counts | None = None
    """Evaluations of the attack's objective per reading (observed update); None: not given here."""
    readings: Counts | None = None
    """Numbers of attacked readings; None: not given here."""
    chunk: Counts | None = None
    """Numbers of readings in memory at once; None: not given here."""


_T = TypeVar("_T", bound=Table)


def _adding(fields: Mapping[str, Any]) -> Callable[[type[_T]], type[_T]]:
    def added(table: type[_T]) -> type[_T]:
        return create_model(table.__name__, __base__=table, __module__=__name__, __doc__=table.__doc__, **fields)

    return added


def _axes(cell: type[AnyCell], required: Container[str] = (), but: Container[str] = ()) -> dict[str, Any]:
    """Return pydantic fields: a list for each axis of the class `cell`, except the axes `but`. The axes `required` have
    no default."""
    fields: dict[str, Any] = {}
    for name in (name for name in axes(cell) if name not in but):
        field = cell.model_fields[name]
        limits = [*field.metadata, *([Field(le=LARGEST)] if field.annotation is int else [])]
        value = _SPELT.get(name) or Annotated[field.annotation, Field(), *limits]
        axis: Any = Axis[value]  # type: ignore[valid-type]  # a type made at run time
        fields[name] = (axis, ...) if name in required else (axis | None, None)
    return fields


@_adding(_axes(AttackCell, but=Budgets.model_fields))
class Axes(Budgets):
    """Block `[axes]` of a matrix file (a run's experiments): a list of values for each attack axis. A combination
    with a value from each list is an attack."""


class AttackBlock(Axes):
    """Block `[[attack]]` of a matrix file (a run's experiments): attacks on all combinations of the values in its
    lists and in `[axes]`. A list in the block replaces the list in `[axes]`."""

    scale: str | None = None
    """Size of the matrix to which the block belongs; None: every size."""


@_adding(_axes(TrainingCell, REQUIRED))
class TrainAxes(Table):
    """Training axes of a matrix file (a run's experiments): a list of values for each axis. A combination with a
    value from each list is a training."""


class TrainBlock(TrainAxes):
    """Block `[[train]]` of a matrix file (a run's experiments): a training for each combination of the values in its
    lists. The fields below apply to every training in the block."""

    scale: str | None = None
    """Size of the matrix to which the block belongs; None: every size."""
    until_round: Count | None = None
    """Number of rounds after which a training stops, below its `rounds`; None: no limit."""
    checkpoints: list[Index] = []
    """Rounds after which weights are saved."""
    test_every: Count | None = None
    """Rounds between two tests; None: the default of a training."""
    test_examples: Count | None = None
    """Largest number of test examples in a test; None: the default of a training."""
    until_accuracy: Annotated[float | None, Field(ge=1e-6, le=1)] = None
    """Accuracy at which a training stops; None: no limit."""
    until_epsilon: Annotated[float | None, Field(ge=1e-6, le=1e6)] = None
    """ε (by the paper's accounting) that a training must not exceed; None: no limit."""
    bayesian: Annotated[Bayesian | None, BeforeValidator(_tuples)] = None
    """Options of Bayesian accounting; None: not requested."""

    @pydantic.field_validator("checkpoints")
    @classmethod
    def _within_the_rounds(cls, checkpoints: list[int], info: pydantic.ValidationInfo) -> list[int]:
        last = min([*(info.data.get("rounds") or [LARGEST]), info.data.get("until_round") or LARGEST])
        late = [item for item in sorted(set(checkpoints)) if item > last]
        if late:
            raise Wrong(*(f"{item} is after the last of {last} rounds; give 0 to {last}" for item in late))
        return checkpoints


@_adding({metric.name: (Annotated[float, Field(ge=metric.least, le=metric.most)] | None, None) for metric in METRICS})
class Figures(Table):
    """Figures from a paper in a `[[published]]` block of a matrix file (a run's experiments): metrics of attacks,
    and figures of trainings; None: the paper gives no figure."""

    asr: Share | None = None
    """Attack success rate."""
    iterations: Amount | None = None
    """Iterations as the attack's paper counts them."""
    accuracy: Share | None = None
    """Test accuracy of a training."""
    epsilon: Annotated[float | None, Field(ge=0, le=1e6)] = None
    """ε of a training."""
    rounds: Amount | None = None
    """Rounds of a training."""
    milliseconds: Amount | None = None
    """Time of a training, in milliseconds per client and local step."""
    overhead: Amount | None = None
    """Time with the defense divided by time without the defense."""


class PublishedRow(Figures):
    """Block `[[published]]` of a matrix file (a run's experiments): a pattern for cells (experiments), the figures that
    a paper gives for these cells, and the source."""

    source: Annotated[Line, Field(min_length=1)]
    """The paper and its table."""
    dataset: Annotated[dict[str, Any] | None, _entry_pattern("dataset")] = None
    """Pattern for the data set; in every pattern, None matches all cells."""
    model: Annotated[dict[str, Any] | None, _entry_pattern("model")] = None
    """Pattern for the model."""
    attack: Annotated[dict[str, Any] | None, _entry_pattern("attack")] = None
    """Pattern for the attack."""
    knowledge: Knowledge | None = None
    """The attacker's knowledge about the defense: `plain`, `black-box` or `adaptive`."""
    point: Point | None = None
    """Interception point."""
    defense: Annotated[dict[str, Any] | None, _entry_pattern("defense")] = None
    """Pattern for the defense."""
    federated: Annotated[Federated | dict[str, Any] | None, PlainValidator(_federated_pattern)] = None
    """Pattern for the federated setting."""

    @pydantic.model_validator(mode="after")
    def _says_something(self) -> Self:
        lines = []
        if not self.written(PATTERN_AXES):
            lines.append(f"names no axis; say which cells, by {', '.join(PATTERN_AXES)}")
        if not self.written(Figures.model_fields):
            lines.append(f"gives no figure; give one of {', '.join(Figures.model_fields)}")
        if lines:
            raise Wrong(*lines)
        return self


PATTERN_AXES = tuple(name for name in PublishedRow.model_fields if name in AXES)


class Document(Budgets):
    """The whole matrix file (a run's experiments), as pydantic checks it: blocks of attacks, trainings and published
    figures. `bench.matrix.read` makes a `Matrix` of it."""

    title: Line = ""
    """Title above the result tables."""
    cascade: bool = False
    """True if attacks on the same readings form a cascade: a later attack gets only readings without success."""
    informed: bool = False
    """True gives each attack the strongest knowledge of the defense that the attack accepts."""
    suite: Annotated[str | None, _one_of("suite", SUITES)] = None
    """Name of the suite; None: the matrix is not a suite."""
    scales: list[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]] = []
    """Names of the sizes in which the matrix can run, such as `quick`; the default size comes first."""
    axes: Annotated[Axes | None, Field(examples=["[axes]"])] = None
    """Block `[axes]`: values on the axes that all attack blocks share; None: no such block."""
    attack: Annotated[list[AttackBlock], Field(max_length=MOST_BLOCKS, examples=["[[attack]]"])] = []
    """Blocks `[[attack]]`, each with attacks on all combinations of its values."""
    train: Annotated[list[TrainBlock], Field(max_length=MOST_BLOCKS, examples=["[[train]]"])] = []
    """Blocks `[[train]]`, each with trainings on all combinations of its values."""
    published: Annotated[list[PublishedRow], Field(max_length=MOST_ROWS, examples=["[[published]]"])] = []
    """Blocks `[[published]]`: figures from papers, for tables."""
