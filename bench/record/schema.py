"""Records: everything known about a cell after its run.

These dataclasses are the schema, and docs/RECORDS.md describes the same fields.  `bench.record.store` parses JSON into
these classes, and names a wrong field.  Numbers are finite.  An absent value is None, with a reason if known."""

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
    """Base class: unknown fields, wrong types and NaN are refused."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share(_Strict):
    """A measured share with its 95 % interval (Wilson), which counts examples of the same reading (observed update) as
    correlated."""

    value: float
    """Measured share, in [0, 1]."""
    low: float
    """Lower end of the interval, in [0, 1]."""
    high: float
    """Upper end of the interval, in [0, 1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleScore(_Strict):
    """Scores for a true example and its matched reconstruction; metrics are from `bench.record.metrics`."""

    status: str
    """Status of the reading: `ok`, `diverged`, `nan` (the attack, or this reconstructed example, became non-finite) or
    `missing` (no reconstruction)."""
    success: bool
    """Whether the example leaked: the reconstruction is near enough to the truth, and nearer than the prior-only
    guesses (rule in `Summary.asr`)."""
    strict: bool | None = None
    """Whether an image leaked at PSNR ≥ 30 dB, or a text word for word; None for tables."""
    identified: bool | None = None
    """Whether the reconstruction is nearer to the true example than to every stranger's example (the data set's gallery
    split); None: no gallery split."""
    named: bool | None = None
    """Whether the attack picked the true example among granted candidates (a gallery with the true example and others);
    None: no gallery granted."""
    place: int | None = None
    """Rank of the true example in the attack's ranked list of granted candidates, from 0; the list's length if absent;
    None: no list."""
    label: int | None = None
    """True label."""
    matched: int | None = None
    """Number of the matched example in the attack's reconstruction; None: no reconstruction."""
    rmse: float | None = None
    """Root mean squared error after clipping to [0, 1], 0 to 1."""
    rmse_unclipped: float | None = None
    """Root mean squared error before clipping, from 0 upward."""
    psnr_db: float | None = None
    """Peak signal-to-noise ratio after clipping, dB, at most 120 (equal images)."""
    ssim: float | None = None
    """Mean structural similarity (images), -1 to 1; None under 7 pixels."""
    lpips: float | None = None
    """Learned perceptual distance (images), from 0 (equal) upward."""
    st_lpips: Annotated[float | None, _UNLESS_NONE] = None
    """Shift-tolerant perceptual distance by another network than `lpips` (images), from 0 (equal) upward."""
    numeric_rmse: float | None = None
    """Root mean squared error over numeric columns (tables), each in units of the column's standard deviation."""
    groups_right: float | None = None
    """Share of categorical features with the true category (tables), 0 to 1."""
    prior_db: float | None = None
    """Highest PSNR among the prior-only baselines (guesses without the gradient), dB."""
    over_prior_db: float | None = None
    """PSNR minus `prior_db`, dB."""
    priors_db: Figures | None = None
    """Name of the prior-only baseline → its PSNR, dB."""
    tokens_right: Annotated[float | None, _UNLESS_NONE] = None
    """Share of tokens in their places (texts), of the longer of true and reconstructed text, 0 to 1."""
    token_recall: Annotated[float | None, _UNLESS_NONE] = None
    """Share of a text's tokens that the reconstruction holds, in any place, counted as often as they occur, 0 to 1."""
    token_precision: Annotated[float | None, _UNLESS_NONE] = None
    """Share of the reconstruction's tokens that the true text holds, in any place, counted as often as they occur, 0 to
    1."""
    rouge_1: Annotated[float | None, _UNLESS_NONE] = None
    """Harmonic mean of token recall and precision (texts), 0 to 1."""
    rouge_2: Annotated[float | None, _UNLESS_NONE] = None
    """The same for pairs of adjacent tokens, 0 to 1."""
    over_prior_tokens: Annotated[float | None, _UNLESS_NONE] = None
    """`tokens_right` minus the highest `tokens_right` of a prior-only baseline (texts), -1 to 1."""

    def value(self, metric: Metric) -> float:
        """Return the score in the given `metric`; NaN if unknown."""
        value = getattr(self, metric.name)
        return float("nan") if value is None else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingScore(_Strict):
    """Scores of a reading (an observed update): how the attack ended, and the score of each true example."""

    status: str
    """End of the attack: `ok`, `diverged` or `nan` (non-finite values)."""
    examples: tuple[ExampleScore, ...]
    """True examples in batch order, with their scores."""
    leaked: bool | None = None
    """Whether any example leaked."""
    labels: tuple[int, ...] = ()
    """Labels inferred by the attack; -1: not inferred."""
    label_accuracy: float | None = None
    """Share of labels that the attack inferred correctly, in any order; None: no label inferred."""
    loss: float | None = None
    """Final loss, in the attack's units."""
    evaluations: int | None = None
    """Gradient evaluations used, restarts included."""
    outer: int | None = None
    """Number of iterations, as the attack's paper counts them."""
    restarts: int = 0
    """Number of starts after the first."""
    snr_db: float | None = None
    """Signal-to-noise ratio against the undefended reading, dB, at most 120 (unchanged)."""
    cosine: float | None = None
    """Cosine similarity to the undefended reading, -1 to 1."""
    clients: tuple[int, ...] = ()
    """Client numbers behind the reading."""
    indices: tuple[int, ...] = ()
    """Positions of the true examples in the training split; a mixture has the position of its first example."""
    certificate: float | None = None
    """Share of the reading's examples that the attack itself proved right, without knowledge of the true examples;
    None: the attack cannot prove."""
    number: Annotated[int | None, _UNLESS_NONE] = None
    """Number of the reading in the cell, if a cascade skipped readings; None: equal to the position in the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorScore(_Strict):
    """Success of a prior-only baseline, which guesses without the gradient; an attack must beat this success."""

    asr: float
    """Share of examples that the baseline's guesses would leak, without the required margin over priors: images at PSNR
    ≥ 20 dB, tables with numeric RMSE ≤ .2 and ≥ 90 % right categorical groups, texts with ≥ 90 % of the tokens in
    place."""
    psnr_db_median: float | None
    """Median PSNR over the examples, dB."""
    rmse_median: float | None
    """Median RMSE over the examples, 0 to 1."""
    beaten: float
    """Share of examples for which the attack is nearer to the truth than the baseline, by PSNR or, for texts, by the
    share of tokens in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(_Strict):
    """Figures of a cell (experiment) over all its examples. Failed examples count in every denominator."""

    readings: int
    """Number of readings."""
    examples: int
    """Number of examples."""
    asr: Share
    """Attack success rate: share of leaked examples.  Images: PSNR ≥ 20 dB.  Tables: numeric RMSE ≤ .2 and ≥ 90 %
    right categorical groups.  Both: PSNR ≥ 3 dB above the best prior-only baseline.  Texts: ≥ 90 % of the tokens in
    place, and 10 points above the best prior-only baseline."""
    asr_strict: Share | None
    """The same share with PSNR ≥ 30 dB, or of texts word for word; None for tables."""
    lower_bound: bool
    """Whether examples diverged or became NaN, so that the ASR is a lower bound."""
    readings_leaked: Share
    """Share of readings with a leaked example."""
    identification: Share | None
    """Share of identified examples: the reconstruction is nearer to the true example than to every stranger's; None: no
    gallery split."""
    identification_chance: float | None
    """Share of examples that random reconstructions would identify."""
    gallery: int
    """Number of strangers' examples for identification (the gallery split), 0: no gallery split."""
    medians: Figures
    """Metric → median over the examples, with failed examples as the worst values."""
    label_accuracy: float | None
    """Mean label accuracy over the readings; None: no labels inferred."""
    evaluations_median: float
    """Median over the readings of the number of gradient evaluations."""
    outer_median: float
    """Median over the readings of the number of iterations, as the attack's paper counts them."""
    diverged_share: float
    """Share of examples in diverged readings."""
    nan_share: float
    """Share of examples with non-finite values."""
    missing_share: float
    """Share of examples without a reconstruction."""
    priors: dict[str, PriorScore]
    """Prior-only baselines by name."""
    prior_beaten: float | None
    """Share of examples for which the attack is nearer to the truth than every baseline, by PSNR or, for texts, by the
    share of tokens in place; None: no baselines."""
    beats_prior: bool | None
    """Whether `prior_beaten` exceeds one half."""
    naming: Share | None = None
    """Share of examples that the attack picked among granted candidates (a gallery); None: no gallery granted."""
    naming_chance: float | None = None
    """Share of examples that random picks would name."""

    def median(self, metric: Metric) -> float | None:
        """Return the median of `metric` over the examples, with failed examples as the worst values. None: at least
        half of the examples failed, or no example has the metric."""
        return self.medians.get(metric.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distortion(_Strict):
    """Strength of the defense as seen in the readings (observed updates): their difference from the same readings
    without the defense."""

    snr_db_median: float | None = None
    """Median signal-to-noise ratio over the readings, dB, at most 120 (unchanged)."""
    snr_db_least: float | None = None
    """Least signal-to-noise ratio of a reading, dB, at most 120 (unchanged)."""
    cosine_median: float | None = None
    """Median cosine similarity over the readings, -1 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCheck(_Strict):
    """Test whether the attack's objective, a distance between gradients, could lead to the truth at all: the distance
    must be smaller at the true examples than at random public examples. If not, a low success rate says little about
    the defense. Distances are means over the readings (observed updates), in the attack's units; None for attacks
    without an objective."""

    distance_at_truth: float | None = None
    """Mean over the readings of the attack's objective at the true examples."""
    distance_at_public: float | None = None
    """Mean over the readings of the attack's objective at random public examples."""
    recognises_truth: bool | None = None
    """Whether the objective is smaller at the true examples than at the public examples."""
    explained: Annotated[bool | None, _UNLESS_NONE] = None
    """Whether the defense's description, applied to the true examples, gives the reading up to the stated noise; None:
    not testable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackConditions(_Strict):
    """Circumstances of an attack that explain its success rate: the attacked weights, the model's mode, the gradient's
    norm, and the attacker's knowledge of the defense."""

    weights_norm: float | None = None
    """L2 norm over all weights of the attacked model."""
    random: bool = False
    """Whether the readings depend on the defense's random draws."""
    described: bool = False
    """Whether the attacker knew the defense's complete effect on these readings."""
    simulated: bool = False
    """Whether the attacker could run the defended round as a black box."""
    exact: bool = False
    """Whether candidates were ranked by the exact likelihood of the readings, so that no attacker ranks better.  For
    a batch, this ranking knows the other examples."""
    round: int | None = None
    """Training round at which the weights were saved; None: untrained."""
    accuracy: float | None = None
    """Test accuracy, 0 to 1; None: unknown."""
    gradient_norm_median: float | None = None
    """Median over the readings of the undefended reading's L2 norm."""
    mode: str | None = None
    """Mode of the model while gradients are computed: `eval` or `train`."""
    client_examples: int | None = None
    """Number of examples per client."""
    examples_per_reading: int | None = None
    """Number of examples behind a reading."""
    subset: str | None = None
    """Name of the data set's subset; None: the whole data set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy(_Strict):
    """Guarantees of differential privacy that a defense gives in a cell (experiment): values of ε, one for each rule of
    accounting (convention), and the main ε for tables."""

    epsilon: float | None = None
    """Main ε: for a training the first with convention `valid`, for an attack the ε at the interception point."""
    absent: str | None = None
    """Reason for no main ε."""
    figures: tuple[Epsilon, ...] = ()
    """All values of ε; for an attack at most one."""

    def by(self, convention: str) -> Epsilon | None:
        """Return the first ε with this rule of accounting, or None if there is none. `convention` is "valid" (actual
        sampling), "idealised" (Poisson sampling), "paper" (as in the defense's paper), "tap" (an attacker at an
        interception point) or "bayesian"."""
        return next((figure for figure in self.figures if figure.convention == convention), None)

    def released(self) -> Epsilon | None:
        """Return the main ε of a training, or None without ε. The main ε is the first with the convention `valid`; in
        records before protocol 3, the first with `tight`, which assumes Poisson sampling."""
        return self.by("valid") or self.by("tight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory(_Strict):
    """Learning curve of an attack: the least loss so far after some numbers of evaluations, as a median over the
    readings (observed updates)."""

    losses: tuple[float | None, ...]
    """Median of the least loss after each number in `evaluations`, in the attack's units."""
    evaluations: tuple[int, ...] = ()
    """Numbers of gradient evaluations: 1, 2, 4, … and the last; for the attack `map`, the ends of its stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult(_Strict):
    """Result of an attack cell (an experiment with an attack): scores of each reading (observed update), their summary,
    and the facts that explain them."""

    kind: Literal["attack"] = "attack"
    """Marks the result of an attack in a record's JSON."""
    data: Annotated[str | None, _UNLESS_NONE] = field(default=None, compare=False)
    """Kind of data (`bench.kinds`); None in records older than this field, and without a summary."""
    readings: tuple[ReadingScore, ...]
    """Attacked readings with their scores; in a cascade, only readings with an example not leaked before."""
    summary: Summary | None = None
    """Figures over the examples; None in a baseline (`bench.record.compact`) and for a cell without readings."""
    distortion: Distortion = Distortion()
    """Size of the change that the defense made to the readings."""
    self_check: SelfCheck = SelfCheck()
    """Whether the attack's objective recognises the true examples."""
    conditions: AttackConditions = AttackConditions()
    """Weights, model mode and the attacker's knowledge during the attack."""
    privacy: Privacy = Privacy()
    """ε at the interception point."""
    trajectory: Trajectory | None = None
    """Loss over the evaluations; None: not recorded by the attack."""
    private: bool = False
    """Whether the data are private: examples leave this disk only with the option `--include-pictures`."""
    lpips_absent: str | None = None
    """Reason for an absent LPIPS."""
    st_lpips_absent: Annotated[str | None, _UNLESS_NONE] = None
    """Reason for an absent ST-LPIPS; None also in older records."""
    notes: tuple[str, ...] = ()
    """The attack's remarks, for example differences from its paper and smaller chunks of readings."""
    arrays: str | None = None
    """SHA-256 of RUN/arrays/<sha256>.npz (float32, matched): `truth` and `reconstruction` (reading, example,
    *shape), `trajectory` (evaluation count, reading, example, *shape) for the first 8 readings.  For a mixture,
    `truth` is the scored example."""
    reference_db: Annotated[float | None, _UNLESS_NONE] = None
    """Median PSNR reached by the linear-Gaussian reference on the first 8 readings, dB; None: not requested, or no
    noise law."""

    @property
    def data_kind(self) -> Kind:
        """The kind of data (image, table or text), which decides the metrics in tables. Raises `RecordError` for an
        unknown kind, and for an old record without summary."""
        if self.data is None:  # older records: images alone have a strict rate
            return TABLE if self.figures().asr_strict is None else IMAGE
        try:
            return named(self.data)
        except BenchError as error:
            raise RecordError(f"its data: {error}") from None

    def numbered(self) -> Iterator[tuple[int, ReadingScore]]:
        """Yield (number, score) of each attacked reading (observed update). In a cascade (attacks in a fixed order),
        readings whose examples are already reconstructed are missing."""
        for position, reading in enumerate(self.readings):
            yield position if reading.number is None else reading.number, reading

    def figures(self) -> Summary:
        """Return the summary over the examples. Raises `RecordError` for a record without summary: in a baseline file,
        and for an attack without readings (observed updates)."""
        if self.summary is None and not self.readings:
            raise RecordError("cells before it in its cascade left nothing to attack: it has no figures")
        if self.summary is None:
            raise RecordError("this record is a baseline's and has no summary; take the run's own")
        return self.summary


@dataclass(frozen=True, slots=True, kw_only=True)
class BayesianRound(_Strict):
    """ε after a training round by Bayesian accounting, whose guarantee holds for data like the training data. For
    comparison, also the ε of the moments accountant, which holds for all data."""

    round: int
    """Number of rounds so far."""
    epsilon: float | None
    """Bayesian ε; None: infinite at every order (moment of the privacy loss)."""
    moments_epsilon: float | None
    """Moments accountant's ε; None: the defense has no mechanism for this accountant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BayesianResult(_Strict):
    """ε of a training by Bayesian accounting, for three protected units (levels): `instance` (an example), `client` (by
    the noise on updates), and `joint` (a client, by the noise on updates and in local steps)."""

    by_round: dict[str, tuple[BayesianRound, ...]]
    """Level → ε after each tested round."""
    spent: dict[str, Epsilon]
    """Level → ε at the end."""
    absent: dict[str, str]
    """Level → reason why ε is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot(_Strict):
    """Strength of the defense in a single training round: the change that the defense made to the first client's
    update, in gradient units. A training measures some rounds, unknown to the defense, to reveal a defense that
    protects the training less than the attacked rounds."""

    round: int
    """Round number, from 0."""
    signal: float
    """Squared norm of the undefended update."""
    changes: dict[str, float]
    """Interception point → squared norm of the defense's change of the update; at `aggregate`, of the clients' mean."""
    cosine: float
    """Cosine similarity between the defended and the undefended update before aggregation, -1 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult(_Strict):
    """Result of a training cell (an experiment that trains): test accuracy, saved checkpoints, and ε of the released
    models."""

    kind: Literal["training"] = "training"
    """Marks the result of a training in a record's JSON."""
    accuracy: float
    """Last test accuracy, 0 to 1; 0 for a diverged training."""
    curve: tuple[tuple[int, float], ...]
    """Test accuracy by round: (round, accuracy)."""
    perplexity: Annotated[float | None, _UNLESS_NONE] = None
    """A language model's perplexity after the last round: exp of the mean cross entropy (natural logarithm) over the
    next tokens of the test texts, at least 1; None: a classifier, or diverged."""
    rounds: int
    """Number of finished rounds."""
    diverged: bool
    """Whether weights became non-finite."""
    checkpoints: dict[int, str] = field(default_factory=dict)
    """Round → SHA-256 of RUN/weights/<id>/round-<n>.safetensors."""
    privacy: Privacy = Privacy()
    """ε of the released models."""
    bayesian: BayesianResult | None = None
    """Bayesian accounting; None: not requested."""
    upload_bytes: int | None = None
    """Bytes that a client sends per round."""
    private: bool = False
    """Whether the data are private."""
    spots: Annotated[tuple[Spot, ...], _UNLESS_EMPTY] = ()
    """Changes that the defense made to updates in the first, the last and some random rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost(_Strict):
    """Time that a training took per round and per local step, with and without the defense; `overhead` is the defense's
    cost in the tables."""

    seconds_per_round: float | None = None
    """Wall time per round, s."""
    milliseconds_per_step: float | None = None
    """Median time per local step and client, ms."""
    undefended_milliseconds_per_step: float | None = None
    """Median time without the defense, ms, measured alternately on the same clients."""
    overhead: float | None = None
    """Ratio of the defended to the undefended step time, a median over pairs of measurements."""
    overhead_quartiles: tuple[float, float] | None = None
    """First and third quartile of this ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost(_Strict):
    """Resources used by a cell (experiment)."""

    wall_seconds: float = 0.0
    """Wall time, s."""
    cpu_seconds: float = 0.0
    """Processor time, s."""
    peak_mb: float = 0.0
    """Peak process memory, MB."""
    attack_seconds: float | None = None
    """Attack's wall time, s; in a batch with other cells, this cell's share in proportion to evaluations."""
    reused_from: str | None = None
    """Id of an earlier cell with equal readings, whose reconstruction was used."""
    simulations: int | None = None
    """Number of readings simulated by a black-box attacker."""
    simulation_seconds: float | None = None
    """Wall time for simulations, s, part of `attack_seconds`; less if an earlier cell made the same simulations."""
    training: TrainingCost | None = None
    """Training times; None for attacks."""
    company: tuple[str, ...] = ()
    """Ids of the other cells attacked in the same batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment(_Strict):
    """Machine and software versions in the run of a cell (experiment)."""

    bench: str
    """Version of the bench."""
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
    """Device model; for a CPU its family, model and instruction set."""
    threads: int
    """Threads available to the cell: a training uses all, an attack one."""
    cores: int | None
    """Number of the machine's cores; None: unknown."""
    tf32: Annotated[bool | None, _UNLESS_NONE] = None
    """Whether GPU matrix products used TF32 (10-bit mantissa); None on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code(_Strict):
    """Version of the code that gave a result: of the bench, or of an attack, defense, data set or model. After a change
    of the code, the result is computed again."""

    origin: str
    """Name of the distribution; for a plug-in, its file name."""
    sha256: str | None = None
    """Fingerprint over the source files."""
    version: str | None = None
    """Version of the distribution."""
    protocol: int | None = None
    """Version of the evaluation protocol; None for code other than bench's."""
    plugin: bool = False
    """Whether the code is a plug-in file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance(_Strict):
    """Hashes of the code and the weights behind a result; a record is used only while they are unchanged."""

    bench: Code
    """Code of the bench itself."""
    defense: Code | None = None
    """Code of the defense; None: not recorded."""
    dataset: Code | None = None
    """Code of the data set; None: not recorded."""
    model: Code | None = None
    """Code of the model; None: not recorded."""
    attack: Code | None = None
    """Code of the attack; None for trainings."""
    weights: str | None = None
    """SHA-256 of a checkpoint or weights file; None: untrained."""
    left: Annotated[tuple[int, ...] | None, _UNLESS_NONE] = None
    """In a cascade, numbers of the readings with an example not leaked to earlier attacks; None outside cascades."""


Result = Annotated[AttackResult | TrainingResult, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(_Strict):
    """Record of a cell (experiment) after its run: result, provenance and cost."""

    id: str
    """The cell's id: SHA-256 of its canonical JSON.  The id names the file."""
    status: Status
    """`done`; `n/a`: not applicable; `crashed`: repeated by the next run."""
    cell: Cell
    """The configuration, with defaults written out (`bench.cell`)."""
    provenance: Provenance
    """Code and inputs behind the result."""
    result: Result | None = None
    """Result of an attack or a training; None unless `done`."""
    reason: str | None = None
    """Reason for a status other than `done`, a single line."""
    environment: Environment | None = None
    """Machine and versions."""
    cost: Cost = Cost()
    """Resources used by the cell."""
    broken: Annotated[tuple[str, ...], _UNLESS_EMPTY] = ()
    """Contracts (properties tested by `bench check`) that a plug-in defense broke in this run, with reasons."""
    schema: int = SCHEMA
    """Version of the schema."""

    @property
    def attack(self) -> AttackResult | None:
        """The result of a finished attack cell; None for other cells and without a result."""
        return self.result if isinstance(self.result, AttackResult) else None

    @property
    def training(self) -> TrainingResult | None:
        """The result of a finished training cell; None for other cells and without a result."""
        return self.result if isinstance(self.result, TrainingResult) else None

    @property
    def arrays(self) -> str | None:
        """The content hash in the name of the arrays file (true and reconstructed examples); None without arrays."""
        return self.result.arrays if isinstance(self.result, AttackResult) else None

    @property
    def private(self) -> bool:
        """True if the data are private, so that examples stay on this disk."""
        return self.result is not None and self.result.private

    @property
    def protocol(self) -> int | None:
        """Version of the evaluation protocol; None before versions existed. Two versions never share a table."""
        return self.provenance.bench.protocol


@cache
def adapter() -> TypeAdapter[Record]:
    """Return pydantic's converter between records and JSON. The converter is made once and cached."""
    return TypeAdapter(Record)
