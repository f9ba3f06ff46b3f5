"""A record: all that is known of one cell after it ran.  docs/RECORDS.md describes each field.

These classes are the schema.  `bench.record.store` reads JSON into them once, and names the field that is wrong;
nobody else looks a key up.  Numbers are finite.  What is absent is None, with a reason beside it where there is one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from bench.cell import Cell
from bench.errors import RecordError
from bench.record.metrics import Metric

SCHEMA = 2
Status = Literal["done", "n/a", "crashed"]
Figures = dict[str, float | None]  # by name; None: no number


class _Strict:
    """Part of the schema: unknown fields, other types and NaN are refused."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share(_Strict):
    """A share in [0, 1] with its 95 % Wilson interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleScore(_Strict):
    """One true example against what the attack made of it.

    `label` is the true one; `matched` is which of the attack's examples was paired with it, None for none; `strict`
    success at PSNR ≥ 30 dB (images); `identified`: nearer to its own reconstruction than every example of the gallery;
    `named`: the attack picked it from the gallery that it was granted; `place` on its list, from 0.  `priors_db` has
    the PSNR of each prior-only baseline, `prior_db` the best of them, `over_prior_db` what the attack has above it. The
    other metrics are those of `bench.record.metrics`; None: not a number, or not measured.
    """

    status: str
    success: bool
    strict: bool | None = None
    identified: bool | None = None
    named: bool | None = None
    place: int | None = None
    label: int | None = None
    matched: int | None = None
    rmse: float | None = None
    rmse_unclipped: float | None = None
    psnr_db: float | None = None
    ssim: float | None = None
    lpips: float | None = None
    numeric_rmse: float | None = None
    groups_right: float | None = None
    prior_db: float | None = None
    over_prior_db: float | None = None
    priors_db: Figures | None = None

    def value(self, metric: Metric) -> float:
        """A metric of this example; NaN where there is none."""
        value = getattr(self, metric.name)
        return float("nan") if value is None else float(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingScore(_Strict):
    """One reading: how the attack ended on it, and each example behind it.

    `loss` is the attack's own; `evaluations`, `outer` (as the published loop counts) and `restarts` were used.
    `snr_db` (capped at 120: unchanged) and `cosine` compare the reading with the undefended one.  `clients` and
    `indices` (into the training split) say whose examples they are; `labels` are as claimed, -1 for none.
    `certificate` is the share of the examples that the attack itself knew to be right; None: it cannot know.
    `number` is its place in the cell where cells before it in a cascade left only some; None: its position.
    """

    status: str
    examples: tuple[ExampleScore, ...]
    leaked: bool | None = None
    labels: tuple[int, ...] = ()
    label_accuracy: float | None = None
    loss: float | None = None
    evaluations: int | None = None
    outer: int | None = None
    restarts: int = 0
    snr_db: float | None = None
    cosine: float | None = None
    clients: tuple[int, ...] = ()
    indices: tuple[int, ...] = ()
    certificate: float | None = None
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorScore(_Strict):
    """A prior-only baseline: its success rate (of images: PSNR ≥ 20 dB alone), its medians, and on what share of
    examples the attack beats it."""

    asr: float
    psnr_db_median: float | None
    rmse_median: float | None
    beaten: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(_Strict):
    """A cell's figures over its examples.  Nothing that failed is dropped from any of them.

    `asr` is the share of examples leaked: PSNR ≥ 20 dB and ≥ 3 dB over the best prior-only baseline; tables: numeric
    RMSE ≤ .2 standardised and ≥ 90 % of categorical groups; `asr_strict` at 30 dB.  `lower_bound`: some examples
    diverged or are no numbers, so read the ASR as "at least".  `medians` are of each metric. `identification` is None
    without a gallery. `gallery` is its number of strangers.  `naming` is the share of examples that the attack
    picked from the gallery that it was granted.  `prior_beaten` is the share of examples on which the attack is nearer
    than the best prior; `beats_prior`: on more than half of them.
    """

    readings: int
    examples: int
    asr: Share
    asr_strict: Share | None
    lower_bound: bool
    readings_leaked: Share
    identification: Share | None
    identification_chance: float | None
    gallery: int
    medians: Figures
    label_accuracy: float | None
    evaluations_median: float
    outer_median: float
    diverged_share: float
    nan_share: float
    missing_share: float
    priors: dict[str, PriorScore]
    prior_beaten: float | None
    beats_prior: bool | None
    naming: Share | None = None
    naming_chance: float | None = None

    def median(self, metric: Metric) -> float | None:
        """The median of a metric, an example that failed counted as worse than any; None: no number."""
        return self.medians.get(metric.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distortion(_Strict):
    """The readings against the undefended ones, known to the harness alone; SNR is capped at 120 dB: unchanged."""

    snr_db_median: float | None = None
    snr_db_least: float | None = None
    cosine_median: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCheck(_Strict):
    """The matching distance at the truth and at random public examples: an attacker should recognise the truth.

    `explained`: the described truth is as far from the reading as its stated noise; None where that cannot be said.
    """

    distance_at_truth: float | None = None
    distance_at_public: float | None = None
    recognises_truth: bool | None = None
    explained: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackConditions(_Strict):
    """What the attack ran under: the training round, the weights' test accuracy and norm, the size of a gradient.

    `mode` of the model while gradients were computed: eval or train.  `described`: the attacker knew all that the
    defense does to these readings; `simulated`: he could run it; `exact`: a decoder had the readings' own
    likelihood, of one example the attacker himself, of a batch one who knows the others, so that among exchangeable
    candidates nobody does better. `random`: they depend on a draw of the
    defense's.  `gradient_norm_median` is of undefended gradients.
    """

    weights_norm: float | None = None
    random: bool = False
    described: bool = False
    simulated: bool = False
    exact: bool = False
    round: int | None = None
    accuracy: float | None = None
    gradient_norm_median: float | None = None
    mode: str | None = None
    client_examples: int | None = None
    examples_per_reading: int | None = None
    subset: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Epsilon(_Strict):
    """One figure for ε at δ, or why there is none (`absent`), with all that it means.

    `adversary` is who looks: at the released models, or at a tap.  `multiplier` is noise over sensitivity, its first
    and last value; `q` and `steps` are what was composed; `caveats` what the figure does not cover.
    """

    convention: str
    accountant: str
    unit: str
    adversary: str
    epsilon: float | None
    delta: float
    q: float
    steps: int
    multiplier: tuple[float, float] | None
    sampling: str
    adjacency: str
    caveats: tuple[str, ...] = ()
    absent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy(_Strict):
    """Every figure for ε; `epsilon` is the headline, `absent` why there is none."""

    epsilon: float | None = None
    absent: str | None = None
    figures: tuple[Epsilon, ...] = ()

    def by(self, convention: str) -> Epsilon | None:
        """The first figure of a convention, None where there is none."""
        return next((figure for figure in self.figures if figure.convention == convention), None)

    def released(self) -> Epsilon | None:
        """The headline of the released models: the first valid figure; before protocol 3 "tight", as if sampling were
        Poisson.  None where there is none."""
        return self.by("valid") or self.by("tight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory(_Strict):
    """The least loss so far, median over the readings, after each number of evaluations: 1, 2, 4, … and the
    end; of `map`, where its minimisations ended."""

    losses: tuple[float | None, ...]
    evaluations: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult(_Strict):
    """What an attack cell gave.  `summary` is None in a record that was cut
    short for the gate's baseline file (`bench.record.compact`), and where a cascade left nothing to attack: then there
    are no `readings` either.

    `arrays` names RUN/arrays/<sha256>.npz by content.  `lpips_absent` says why LPIPS was not measured.
    `reference_db`: the median PSNR of the linear-Gaussian reference over the first eight readings, where the cell asks
    for it and it has one.
    """

    kind: Literal["attack"] = "attack"
    readings: tuple[ReadingScore, ...]
    summary: Summary | None = None
    distortion: Distortion = Distortion()
    self_check: SelfCheck = SelfCheck()
    conditions: AttackConditions = AttackConditions()
    privacy: Privacy = Privacy()
    trajectory: Trajectory | None = None
    private: bool = False
    lpips_absent: str | None = None
    notes: tuple[str, ...] = ()
    arrays: str | None = None
    reference_db: float | None = None

    def numbered(self) -> Iterator[tuple[int, ReadingScore]]:
        """The readings that were attacked, each with its number in the cell."""
        for position, reading in enumerate(self.readings):
            yield position if reading.number is None else reading.number, reading

    def figures(self) -> Summary:
        """The summary; raises `RecordError` where there is none: of a baseline, or where nothing was left."""
        if self.summary is None and not self.readings:
            raise RecordError("cells before it in its cascade left nothing to attack: it has no figures")
        if self.summary is None:
            raise RecordError("this record is a baseline's and has no summary; take the run's own")
        return self.summary


@dataclass(frozen=True, slots=True, kw_only=True)
class BayesianRound(_Strict):
    """Bayesian ε after a round, beside the moments accountant's of the same run."""

    round: int
    epsilon: float | None
    moments_epsilon: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BayesianResult(_Strict):
    """Bayesian accounting by level: at each tested round, at the end, or why there is none."""

    by_round: dict[str, tuple[BayesianRound, ...]]
    spent: dict[str, Epsilon]
    absent: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot(_Strict):
    """What the defense changed in one round of its own training, in gradient units, of the round's first client.

    `signal` is the squared norm of what that client would send without a defense; `changes` point → that of the
    difference to what the point shows of it, at `aggregate` of what is done to the mean; `cosine` at the last point
    that shows the client alone.
    """

    round: int
    signal: float
    changes: dict[str, float]
    cosine: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult(_Strict):
    """What a training cell gave.

    `accuracy` is the last tested, 0 if it diverged; `curve` (round, accuracy); `rounds` those that ran; `checkpoints`
    round → SHA-256 of RUN/weights/<id>/round-<n>.safetensors; `upload_bytes` of one client and round; `spots` of its
    first, its last and some drawn rounds.
    """

    kind: Literal["training"] = "training"
    accuracy: float
    curve: tuple[tuple[int, float], ...]
    rounds: int
    diverged: bool
    checkpoints: dict[int, str] = field(default_factory=dict)
    privacy: Privacy = Privacy()
    bayesian: BayesianResult | None = None
    upload_bytes: int | None = None
    private: bool = False
    spots: tuple[Spot, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCost(_Strict):
    """Time of a round, and of one client's step over the undefended one's: median and quartiles of their ratio."""

    seconds_per_round: float | None = None
    milliseconds_per_step: float | None = None
    undefended_milliseconds_per_step: float | None = None
    overhead: float | None = None
    overhead_quartiles: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost(_Strict):
    """What a cell took.  `reused_from` is the cell whose reconstruction of equal readings this one shares.

    `simulations`: readings that a black-box attacker simulated; `simulation_seconds` are part of the attack's, less
    where an earlier cell had made them.  `company` are the ids of cells whose readings were attacked beside these;
    seconds are then a share, by evaluations.
    """

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0
    attack_seconds: float | None = None
    reused_from: str | None = None
    simulations: int | None = None
    simulation_seconds: float | None = None
    training: TrainingCost | None = None
    company: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment(_Strict):
    """The machine and the versions that answered.  `threads` are those that the cell was given: a training uses them,
    an attack one.  `tf32`: whether a GPU's products had 10 bits of mantissa; None on a CPU."""

    bench: str
    torch: str
    numpy: str
    python: str
    platform: str
    device: str
    device_name: str
    threads: int
    cores: int | None
    tf32: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Code(_Strict):
    """The code of bench, or of one entry: where it comes from, and a fingerprint of its files.

    `origin` is a distribution's name, or a plug-in's file name where `plugin`; `protocol` is bench's, the
    version of the rules of evaluation.
    """

    origin: str
    sha256: str | None = None
    version: str | None = None
    protocol: int | None = None
    plugin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance(_Strict):
    """What answered a cell: bench's code, each entry's, on a checkpoint or a file the weights by content, and of a
    cascade the numbers of the readings that the cells before it left."""

    bench: Code
    defense: Code | None = None
    dataset: Code | None = None
    model: Code | None = None
    attack: Code | None = None
    weights: str | None = None
    left: tuple[int, ...] | None = None


Result = Annotated[AttackResult | TrainingResult, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(_Strict):
    """One cell after it ran.

    `id` names the file; it is the cell's own id, but for a record of schema 1, whose cell was spelt in other words.
    Compare `cell.id` to pair records.  `result` is there when `status` is done, `reason` when it is not.
    `broken`: contracts that the defense, a plug-in, broke on the day (`bench check`), with the reasons.
    """

    id: str
    status: Status
    cell: Cell
    provenance: Provenance
    result: Result | None = None
    reason: str | None = None
    environment: Environment | None = None
    cost: Cost = Cost()
    broken: tuple[str, ...] = ()
    schema: int = SCHEMA

    @property
    def attack(self) -> AttackResult | None:
        """The result of an attack cell that is done."""
        return self.result if isinstance(self.result, AttackResult) else None

    @property
    def training(self) -> TrainingResult | None:
        """The result of a training cell that is done."""
        return self.result if isinstance(self.result, TrainingResult) else None

    @property
    def arrays(self) -> str | None:
        """The content hash of the arrays file, None where there is none."""
        return self.result.arrays if isinstance(self.result, AttackResult) else None

    @property
    def private(self) -> bool:
        """Whether the data are private, so that their examples stay on this disk."""
        return self.result is not None and self.result.private

    @property
    def protocol(self) -> int | None:
        """The version of the rules of evaluation; figures of two versions never stand in one table."""
        return self.provenance.bench.protocol


@cache
def adapter() -> TypeAdapter[Record]:
    """Reads and writes records; made once, as it takes a moment."""
    return TypeAdapter(Record)
