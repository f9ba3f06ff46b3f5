"""Records: everything known about a cell after its run.

These dataclasses are the schema, and docs/RECORDS.md describes the same fields.
`bench.record.store` parses JSON into these classes and names a wrong field.  Numbers are finite.  Absent values are
None, with a reason beside them where a reason exists.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from bench.cell import Cell
from bench.epsilon import Epsilon
from bench.errors import BenchError, RecordError
from bench.kinds.base import Kind
from bench.kinds.images import IMAGE
from bench.kinds.known import named
from bench.kinds.tables import TABLE
from bench.record.metrics import Metric

SCHEMA: Final = 2
Status = Literal["done", "n/a", "crashed"]
Figures = dict[str, float | None]  # by name; None: not a number, or not measured

# Marks fields younger than schema 2: JSON leaves such a field out at its default, and older files stay equal.
_UNLESS_NONE = Field(exclude_if=lambda value: value is None)
_UNLESS_EMPTY = Field(exclude_if=lambda value: value == ())


class _Strict:
    """Part of the schema: unknown fields, wrong types and NaN are refused."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share(_Strict):
    """A share with its 95 % Wilson interval; the examples of one reading count as correlated."""

    value: float
    """Measured share, in [0, 1]."""
    low: float
    """Lower end of the interval, in [0, 1]."""
    high: float
    """Upper end of the interval, in [0, 1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleScore(_Strict):
    """A true example against its paired reconstruction; metrics follow `bench.record.metrics`."""

    status: str
    """The reading's `ok`, `diverged` or `nan`; `nan`: non-finite example; `missing`: no reconstruction."""
    success: bool
    """Whether the example leaked, by the rule in `Summary.asr`."""
    strict: bool | None = None
    """Whether an image leaked at PSNR ≥ 30 dB; None for tables."""
    identified: bool | None = None
    """Whether the truth is nearer to the reconstruction than every example in the gallery split; None: no gallery."""
    named: bool | None = None
    """Whether the attack picked the truth from its granted gallery; None: no gallery granted."""
    place: int | None = None
    """Rank among the decoder's candidates, from 0; the list's length for a truth missing from the list; None: no
    list."""
    label: int | None = None
    """True label."""
    matched: int | None = None
    """Index in the attack's reconstruction; None: no reconstruction."""
    rmse: float | None = None
    """Root mean squared error after clipping to [0, 1], 0 to 1."""
    rmse_unclipped: float | None = None
    """Root mean squared error before clipping, from 0 upward."""
    psnr_db: float | None = None
    """Peak signal-to-noise ratio after clipping, dB, at most 120 (equal)."""
    ssim: float | None = None
    """Mean structural similarity (images), -1 to 1; None under 7 pixels."""
    lpips: float | None = None
    """Learned perceptual distance (images), from 0 (equal) upward."""
    numeric_rmse: float | None = None
    """Root mean squared error over numeric columns (tables), each in units of its standard deviation."""
    groups_right: float | None = None
    """Share of categorical groups with the true category (tables), 0 to 1."""
    prior_db: float | None = None
    """Highest PSNR among the prior-only baselines, dB."""
    over_prior_db: float | None = None
    """PSNR minus `prior_db`, dB."""
    priors_db: Figures | None = None
    """PSNR by prior-only baseline, dB."""

    def value(self, metric: Metric) -> float:
        """The metric's value; NaN for None."""
        value = getattr(self, metric.name)
        return float("nan") if value is None else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingScore(_Strict):
    """A reading: the attack's end, and the examples behind the reading."""

    status: str
    """`ok`, `diverged` or `nan`."""
    examples: tuple[ExampleScore, ...]
    """True examples in batch order, with their scores."""
    leaked: bool | None = None
    """Whether any example leaked."""
    labels: tuple[int, ...] = ()
    """Labels inferred by the attack, -1: none."""
    label_accuracy: float | None = None
    """Share of correctly inferred labels, as multisets; None: no label inferred."""
    loss: float | None = None
    """Final loss, in the attack's units."""
    evaluations: int | None = None
    """Gradient evaluations used, restarts included."""
    outer: int | None = None
    """Iterations by the published loop's count."""
    restarts: int = 0
    """Starts after the first."""
    snr_db: float | None = None
    """Signal-to-noise ratio against the undefended reading, dB, at most 120 (unchanged)."""
    cosine: float | None = None
    """Cosine similarity to the undefended reading, -1 to 1."""
    clients: tuple[int, ...] = ()
    """Client numbers behind the reading."""
    indices: tuple[int, ...] = ()
    """Example indices in the training split; a mixed example has the index of its first original."""
    certificate: float | None = None
    """Share of examples that the attack proved right without the truth; None: no proof possible."""
    number: Annotated[int | None, _UNLESS_NONE] = None
    """Reading number in the cell, after a cascade removed readings; None: the position in the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorScore(_Strict):
    """A prior-only baseline: a guess without the gradient."""

    asr: float
    """Success rate without a margin: images at PSNR ≥ 20 dB, tables by the rule in `Summary.asr`."""
    psnr_db_median: float | None
    """Median PSNR, dB."""
    rmse_median: float | None
    """Median RMSE, 0 to 1."""
    beaten: float
    """Share of examples with a higher PSNR under the attack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(_Strict):
    """A cell's figures over its examples.  Failed examples stay in every denominator."""

    readings: int
    """Reading count."""
    examples: int
    """Example count."""
    asr: Share
    """Attack success rate: share of leaked examples.  Images: PSNR ≥ 20 dB.  Tables: numeric RMSE ≤ .2 and ≥ 90 %
    right categorical groups.  Both: PSNR ≥ 3 dB above the best prior-only baseline."""
    asr_strict: Share | None
    """The same share at PSNR ≥ 30 dB; None for tables."""
    lower_bound: bool
    """Whether examples diverged or became NaN, so that the ASR is a lower bound."""
    readings_leaked: Share
    """Share of readings with a leaked example."""
    identification: Share | None
    """Share of identified examples; None: no gallery split."""
    identification_chance: float | None
    """Identification rate for random reconstructions."""
    gallery: int
    """Size of the gallery split, 0: no gallery."""
    medians: Figures
    """Median by metric, with failed examples as the worst values."""
    label_accuracy: float | None
    """Mean label accuracy over the readings; None: no labels inferred."""
    evaluations_median: float
    """Median gradient evaluations per reading."""
    outer_median: float
    """Median iterations per reading, by the published loop's count."""
    diverged_share: float
    """Diverged share."""
    nan_share: float
    """Non-finite share."""
    missing_share: float
    """Share without a reconstruction."""
    priors: dict[str, PriorScore]
    """Prior-only baselines by name."""
    prior_beaten: float | None
    """Share of examples with a higher PSNR than the best baseline's; None: no baselines."""
    beats_prior: bool | None
    """Whether `prior_beaten` exceeds one half."""
    naming: Share | None = None
    """Share of examples picked from the granted gallery; None: no gallery granted."""
    naming_chance: float | None = None
    """Naming rate for random picks."""

    def median(self, metric: Metric) -> float | None:
        """The metric's median, failed examples counted as the worst values; None: not a number."""
        return self.medians.get(metric.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distortion(_Strict):
    """The defended readings against the undefended readings, known to the harness only."""

    snr_db_median: float | None = None
    """Median signal-to-noise ratio, dB, at most 120 (unchanged)."""
    snr_db_least: float | None = None
    """Least signal-to-noise ratio, dB, at most 120 (unchanged)."""
    cosine_median: float | None = None
    """Median cosine similarity, -1 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCheck(_Strict):
    """The attack's matching distance at the truth and at random public examples.

    Distances are means over the readings, in the attack's units, and None for attacks without an objective.
    """

    distance_at_truth: float | None = None
    """Mean matching distance at the true examples."""
    distance_at_public: float | None = None
    """Mean matching distance at random public examples."""
    recognises_truth: bool | None = None
    """Whether the distance is smaller at the truth."""
    explained: Annotated[bool | None, _UNLESS_NONE] = None
    """Whether the described truth lies as far from the reading as the stated noise implies; None: not testable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackConditions(_Strict):
    """Conditions during the attack: weights, model mode, gradient norm, knowledge about the defense."""

    weights_norm: float | None = None
    """L2 norm over all weights."""
    random: bool = False
    """Whether the readings depend on the defense's random draws."""
    described: bool = False
    """Whether the attacker knew the defense's complete effect on these readings."""
    simulated: bool = False
    """Whether the attacker could run the defended round as a black box."""
    exact: bool = False
    """Whether the readings' exact likelihood was decoded, so that no attacker names exchangeable candidates better.
    A batch decoder knows the other examples."""
    round: int | None = None
    """Training round at which the weights were saved; None: untrained."""
    accuracy: float | None = None
    """Test accuracy, 0 to 1; None: unknown."""
    gradient_norm_median: float | None = None
    """Median L2 norm over the undefended readings."""
    mode: str | None = None
    """Model mode during gradients: `eval` or `train`."""
    client_examples: int | None = None
    """Examples per client, |D_i|."""
    examples_per_reading: int | None = None
    """Examples behind one reading."""
    subset: str | None = None
    """Name of the subset; None: the whole data set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy(_Strict):
    """A cell's figures for ε."""

    epsilon: float | None = None
    """Headline: the first valid figure (training), the figure at the tap (attack)."""
    absent: str | None = None
    """Reason for an absent headline."""
    figures: tuple[Epsilon, ...] = ()
    """All figures; an attack has at most a single figure."""

    def by(self, convention: str) -> Epsilon | None:
        """The convention's first figure, or None."""
        return next((figure for figure in self.figures if figure.convention == convention), None)

    def released(self) -> Epsilon | None:
        """The released models' headline: the first valid figure, or None; before protocol 3 `tight`, which assumes
        Poisson sampling."""
        return self.by("valid") or self.by("tight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory(_Strict):
    """An attack's progress: the least loss so far, as a median over the readings."""

    losses: tuple[float | None, ...]
    """Median least loss at each mark, in the attack's units."""
    evaluations: tuple[int, ...] = ()
    """Evaluations at each mark: 1, 2, 4, … and the end; for `map` its stage ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult(_Strict):
    """An attack cell's result."""

    kind: Literal["attack"] = "attack"
    data: Annotated[str | None, _UNLESS_NONE] = field(default=None, compare=False)
    """Kind of data (`bench.kinds`); None in records older than this field, and without a summary."""
    readings: tuple[ReadingScore, ...]
    """Attacked readings with their scores; in a cascade the readings left by earlier cells."""
    summary: Summary | None = None
    """Figures over the examples; None in a baseline (`bench.record.compact`) and for a cell without readings."""
    distortion: Distortion = Distortion()
    """The defense's effect on the readings."""
    self_check: SelfCheck = SelfCheck()
    """Test of the attack's objective."""
    conditions: AttackConditions = AttackConditions()
    """Conditions during the attack."""
    privacy: Privacy = Privacy()
    """ε at the interception point."""
    trajectory: Trajectory | None = None
    """Loss over the evaluations; None: not kept by the attack."""
    private: bool = False
    """Whether the data are private: examples leave this disk only with `--include-pictures`."""
    lpips_absent: str | None = None
    """Reason for an absent LPIPS."""
    notes: tuple[str, ...] = ()
    """The attack's remarks, for example departures from its paper and halved chunks."""
    arrays: str | None = None
    """SHA-256 of RUN/arrays/<sha256>.npz (float32, paired): `truth` and `reconstruction` (reading, example, *shape),
    `trajectory` (mark, reading, example, *shape) for the first 8 readings.  A mixed example's truth is the scored
    original."""
    reference_db: Annotated[float | None, _UNLESS_NONE] = None
    """Median PSNR reached by the linear-Gaussian reference on the first 8 readings, dB; None: not requested, or no
    noise law."""

    @property
    def data_kind(self) -> Kind:
        """The kind of data.  Raises `RecordError` for an unknown kind, and for an old record without summary."""
        if self.data is None:  # older records: images alone have a strict rate
            return TABLE if self.figures().asr_strict is None else IMAGE
        try:
            return named(self.data)
        except BenchError as error:
            raise RecordError(f"its data: {error}") from None

    def numbered(self) -> Iterator[tuple[int, ReadingScore]]:
        """The attacked readings, each with its number in the cell."""
        for position, reading in enumerate(self.readings):
            yield position if reading.number is None else reading.number, reading

    def figures(self) -> Summary:
        """The summary; raises `RecordError` for a baseline's record and for a cell without readings."""
        if self.summary is None and not self.readings:
            raise RecordError("cells before it in its cascade left nothing to attack: it has no figures")
        if self.summary is None:
            raise RecordError("this record is a baseline's and has no summary; take the run's own")
        return self.summary


@dataclass(frozen=True, slots=True, kw_only=True)
class BayesianRound(_Strict):
    """Bayesian ε after a round, with the moments accountant's ε for comparison."""

    round: int
    """Composed rounds."""
    epsilon: float | None
    """Bayesian ε; None: no finite order."""
    moments_epsilon: float | None
    """Moments accountant's ε; None: no mechanism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BayesianResult(_Strict):
    """Bayesian accounting by level: `client`, `instance` or `joint`."""

    by_round: dict[str, tuple[BayesianRound, ...]]
    """ε after each tested round, by level."""
    spent: dict[str, Epsilon]
    """ε at the end, by level."""
    absent: dict[str, str]
    """Reason for an absent ε, by level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot(_Strict):
    """The defense's effect on the first client of a training round, in gradient units."""

    round: int
    """Round number, from 0."""
    signal: float
    """Squared norm, undefended update."""
    changes: dict[str, float]
    """Squared norm of the difference to the undefended update, by point; at `aggregate` to the clients' mean."""
    cosine: float
    """Cosine similarity between defended and undefended update at the last point before aggregation, -1 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult(_Strict):
    """A training cell's result."""

    kind: Literal["training"] = "training"
    accuracy: float
    """Last test accuracy, 0 to 1; 0 for a diverged training."""
    curve: tuple[tuple[int, float], ...]
    """Test accuracy by round: (round, accuracy)."""
    rounds: int
    """Finished rounds."""
    diverged: bool
    """Whether weights became non-finite."""
    checkpoints: dict[int, str] = field(default_factory=dict)
    """SHA-256 by round: RUN/weights/<id>/round-<n>.safetensors."""
    privacy: Privacy = Privacy()
    """ε for the released models."""
    bayesian: BayesianResult | None = None
    """Bayesian accounting; None: not requested."""
    upload_bytes: int | None = None
    """Bytes that a client sends per round."""
    private: bool = False
    """Whether the data are private."""
    spots: Annotated[tuple[Spot, ...], _UNLESS_EMPTY] = ()
    """The defense's effect in the first, the last and some drawn rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost(_Strict):
    """Time measurements during a training."""

    seconds_per_round: float | None = None
    """Wall time per round, s."""
    milliseconds_per_step: float | None = None
    """Median time per local step and client, ms."""
    undefended_milliseconds_per_step: float | None = None
    """Median time without the defense, ms, measured alternately on the same clients."""
    overhead: float | None = None
    """Median ratio, defended to undefended step time."""
    overhead_quartiles: tuple[float, float] | None = None
    """The ratio's first and third quartile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost(_Strict):
    """Resources used by a cell."""

    wall_seconds: float = 0.0
    """Wall time, s."""
    cpu_seconds: float = 0.0
    """Processor time, s."""
    peak_mb: float = 0.0
    """Peak process memory, MB."""
    attack_seconds: float | None = None
    """Attack's wall time, s; with `company` a share by evaluations."""
    reused_from: str | None = None
    """Cell with equal readings and the same reconstruction, computed once."""
    simulations: int | None = None
    """Readings simulated by a black-box attacker."""
    simulation_seconds: float | None = None
    """Wall time spent on simulations, s, included in `attack_seconds`; smaller after an earlier cell's simulations."""
    training: TrainingCost | None = None
    """Training times; None for attacks."""
    company: tuple[str, ...] = ()
    """Ids: cells attacked in the same batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment(_Strict):
    """Machine and versions."""

    bench: str
    """Package version."""
    torch: str
    """PyTorch version."""
    numpy: str
    """NumPy version."""
    python: str
    """Python version."""
    platform: str
    """Operating system and architecture."""
    device: str
    """Torch device, for example `cpu`."""
    device_name: str
    """Device model; for a CPU family, model and instructions."""
    threads: int
    """Threads available to the cell: a training uses all, an attack one."""
    cores: int | None
    """Machine's cores; None: unknown."""
    tf32: Annotated[bool | None, _UNLESS_NONE] = None
    """Whether matrix products on the GPU had a 10-bit mantissa; None on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code(_Strict):
    """Code identity: the bench, or an entry."""

    origin: str
    """Distribution name; for a plug-in the file name."""
    sha256: str | None = None
    """Fingerprint over the source files."""
    version: str | None = None
    """Distribution version."""
    protocol: int | None = None
    """Evaluation protocol's version, for the bench only."""
    plugin: bool = False
    """Whether the code is a plug-in file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance(_Strict):
    """Code and inputs behind a cell's result."""

    bench: Code
    """The bench."""
    defense: Code | None = None
    """The defense."""
    dataset: Code | None = None
    """The data set."""
    model: Code | None = None
    """The model."""
    attack: Code | None = None
    """The attack; None for trainings."""
    weights: str | None = None
    """SHA-256 over a checkpoint or weights file; None: untrained."""
    left: Annotated[tuple[int, ...] | None, _UNLESS_NONE] = None
    """Reading numbers left by a cascade's earlier cells; None outside cascades."""


Result = Annotated[AttackResult | TrainingResult, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(_Strict):
    """A cell after its run."""

    id: str
    """The cell's id: SHA-256 of its canonical JSON.  The id names the file."""
    status: Status
    """`done`; `n/a`: not applicable; `crashed`: repeated by the next run."""
    cell: Cell
    """The configuration, defaults written out (`bench.cell`)."""
    provenance: Provenance
    """Code and inputs."""
    result: Result | None = None
    """Result by `kind`, for `done` only."""
    reason: str | None = None
    """Reason for another status, in one line."""
    environment: Environment | None = None
    """Machine and versions."""
    cost: Cost = Cost()
    """Resources."""
    broken: Annotated[tuple[str, ...], _UNLESS_EMPTY] = ()
    """Contracts broken by a plug-in defense in this run (`bench check`), with reasons."""
    schema: int = SCHEMA
    """Schema version."""

    @property
    def attack(self) -> AttackResult | None:
        """The result, for finished attack cells."""
        return self.result if isinstance(self.result, AttackResult) else None

    @property
    def training(self) -> TrainingResult | None:
        """The result, for finished training cells."""
        return self.result if isinstance(self.result, TrainingResult) else None

    @property
    def arrays(self) -> str | None:
        """The arrays file's content hash, or None."""
        return self.result.arrays if isinstance(self.result, AttackResult) else None

    @property
    def private(self) -> bool:
        """Whether the data are private, so that examples stay on this disk."""
        return self.result is not None and self.result.private

    @property
    def protocol(self) -> int | None:
        """The evaluation protocol's version; figures from two versions never share a table."""
        return self.provenance.bench.protocol


@cache
def adapter() -> TypeAdapter[Record]:
    """Reads and writes records; cached, as its construction takes a moment."""
    return TypeAdapter(Record)
