"""Cells: a matrix's configurations as immutable values, each identified by the hash of its canonical JSON.

A *training cell* gives a curve, an accuracy and checkpoints.  An *attack cell* gives reconstructions and scores.  The
*cell id* covers the configuration and the data's content hash.  Code has a separate fingerprint
(`bench.record.fingerprint`).
"""

import hashlib
import json
from collections.abc import Mapping
from enum import Enum
from functools import cache, cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bench.points import POINTS, Scope

Params = dict[str, Any]
PublicKnowledge = Literal["distribution", "statistics", "none"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

# Knowledge about the defense: none; its description; none, but runs on the attacker's examples.
Knowledge = Literal["plain", "adaptive", "black-box"]

# Threat levels of the server: honest weights; weights by the attack's choice, equal for all clients; such weights anew
# in each round; such weights for the victim only; equal weights with layers inserted before the agreed model.
ServerLevel = Literal["listen", "weights", "rounds", "inconsistent", "layers"]


class Mark(Enum):
    """Marks for the fields of a cell (an experiment configuration), written in a field's annotation. A mark says
    whether the field enters the cell's id, a matrix or a table; the mark's value explains it."""

    IN_ID = "part of the id also at its default; other fields leave the id at their default"
    NOT_IN_ID = "no part of the configuration"
    NOT_AN_AXIS = "no axis of a matrix"
    VARIED = "different within a table of results"
    ATTACKER = (
        "different within a cascade (attacks one after the other on the same readings), and within a table of results"
    )


IN_ID, NOT_IN_ID, NOT_AN_AXIS, VARIED, ATTACKER = Mark


class Frozen(BaseModel):
    """Base class for the immutable parts of a cell (an experiment configuration); pydantic checks the values when an
    instance is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def configuration(self, content: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the fields that enter the id (a hash) of a cell (an experiment), field name → JSON value. `content` is
        this object's JSON with all fields; None computes it. A field with its default value is left out, so a field
        added later changes no existing id. The mark `IN_ID` always keeps a field, and `NOT_IN_ID` always drops a
        field."""
        content = self.model_dump(mode="json") if content is None else content
        kept = {}
        for name, default in _in_ids(type(self)):
            value = getattr(self, name)
            if default is _ALWAYS or value != default:
                kept[name] = value.configuration(content[name]) if isinstance(value, Frozen) else content[name]
        return kept


_ALWAYS = object()


@cache
def _in_ids(kind: type[Frozen]) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (
            name,
            _ALWAYS if field.is_required() or IN_ID in field.metadata else field.get_default(call_default_factory=True),
        )
        for name, field in kind.model_fields.items()
        if NOT_IN_ID not in field.metadata
    )


def marked(kind: type[BaseModel], *marks: Mark) -> tuple[str, ...]:
    """Return the names of the fields of the cell class `kind` whose annotation carries at least one of the `marks`,
    such as `IN_ID` (part of a cell's id)."""
    return tuple(name for name, field in kind.model_fields.items() if {*marks} & {*field.metadata})


class Entry(Frozen):
    """A registered attack, defense, data set or model, with its parameters."""

    name: str
    """Name in the registry."""
    params: Annotated[Params, IN_ID] = {}
    """Parameter name → value, with defaults written out."""

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={value}" for key, value in sorted(self.params.items()))
        return f"{self.name}({shown})" if shown else self.name


class DataRef(Entry):
    """A cell's data set, with the hash of its content: a cell on changed data files is another cell."""

    sha256: Sha256
    """SHA-256 hash over the data arrays, in hexadecimal."""
    subset: Annotated[str | None, IN_ID] = None
    """Name of the subset; None: the whole data set."""


class Federated(Frozen):
    """The federated setting: clients, local training and the upload (Fed-αCDP §3)."""

    algorithm: Annotated[Literal["fedsgd", "fedavg"], IN_ID] = "fedsgd"
    """Upload: a local step's gradient (`fedsgd`), or the weight difference w_0 - w_L over L local steps (`fedavg`)."""
    clients: Annotated[int, Field(ge=1, description="N"), IN_ID] = 100
    """N, the number of clients."""
    per_round: Annotated[int, Field(ge=1, description="K"), IN_ID] = 10
    """K, the number of clients in a round."""
    steps: Annotated[int, Field(ge=1, description="L, local steps"), IN_ID] = 1
    """L, the number of local steps."""
    batch: Annotated[int, Field(ge=1, description="B, local batch"), IN_ID] = 3
    """B, the number of examples in a local batch."""
    rate: Annotated[float, Field(gt=0, description="η, local learning rate"), IN_ID] = 0.05
    """η, local learning rate."""
    partition: Annotated[Literal["iid", "two-shard", "two-class"], IN_ID] = "iid"
    """Partition of the training examples among clients: `iid` (at random), `two-shard` (two shards of the examples
    sorted by label for each client) or `two-class` (examples of two classes for each client)."""
    client_examples: Annotated[int | None, Field(ge=1, description="|D_i|; none: the training split over N"), IN_ID] = (
        None
    )
    """|D_i|, the number of examples per client; None: the number of training examples divided by N."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.per_round > self.clients:
            raise ValueError(f"per_round must be at most clients={self.clients}, got {self.per_round}")
        if self.algorithm == "fedsgd" and self.steps > 1:
            raise ValueError(f"fedsgd sends one step's gradient; for steps={self.steps} say fedavg")
        return self

    @property
    def unit(self) -> float:
        """Factor from gradient units to the units of an upload (a client's message): 1 for FedSGD, the learning rate η
        for FedAvg."""
        return 1.0 if self.algorithm == "fedsgd" else self.rate


class InitialWeights(Frozen):
    """Untrained weights, drawn with the model's initialisation from the seed of the cell (an experiment)."""

    kind: Annotated[Literal["init"], IN_ID] = "init"
    """Always `init`: tells this class from the other classes of weights in JSON."""


class FileWeights(Frozen):
    """Weights from a file, such as those of a user's own training, at which a cell (an experiment) attacks. The hash of
    the file's content identifies them."""

    kind: Annotated[Literal["file"], IN_ID] = "file"
    """Always `file`: tells this class from the other classes of weights in JSON."""
    sha256: Sha256
    """SHA-256 hash over the file, in hexadecimal."""
    path: Annotated[str, NOT_IN_ID]
    """The file's location on the machine which made the cell."""
    series: Annotated[str, NOT_IN_ID] = ""
    """Name shared by the weights files from several seeds, which tables count together; empty without a series."""


class CheckpointWeights(Frozen):
    """Weights that a training cell (an experiment) saved after a round, so that an attack runs in the middle of a
    training."""

    kind: Annotated[Literal["checkpoint"], IN_ID] = "checkpoint"
    """Always `checkpoint`: tells this class from the other classes of weights in JSON."""
    training: Sha256
    """Id of the training cell."""
    round: Annotated[int, Field(ge=0)]
    """Training round after which the weights were saved."""
    further: tuple[int, ...] = ()
    """Later rounds, in ascending order, whose updates the attacker combines with the update of `round`: each under the
    weights saved after its round, of the same clients with the same batches."""
    series: Annotated[str, NOT_IN_ID] = ""
    """Id of the same training with seed 0; tables count trainings with equal `series` together."""

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if any(late <= early for early, late in pairwise(self.rounds)):
            raise ValueError(f"further must be later rounds in ascending order, got {list(self.rounds)}")
        return self

    @property
    def rounds(self) -> tuple[int, ...]:
        """All combined rounds, in ascending order."""
        return (self.round, *self.further)

    @property
    def single(self) -> tuple[Self, ...]:
        """The weights of each combined round alone, in ascending order."""
        return tuple(self.model_copy(update={"round": round_, "further": ()}) for round_ in self.rounds)

    def __str__(self) -> str:
        if not self.further:
            return f"round {self.round}"
        return f"{len(self.rounds)} rounds from {self.round} to {self.rounds[-1]}"


Weights = Annotated[InitialWeights | FileWeights | CheckpointWeights, Field(discriminator="kind")]


class Grants(Frozen):
    """The attacker's permissions in addition to the reading (the observed update), such as the true labels.

    A field's annotation has a `description`, the text for tables; `{}` stands for the field's value."""

    labels: Annotated[bool, Field(description="the true labels")] = False
    """Whether the attacker knows the true labels of the examples behind a reading."""
    repeated_readings: int = Field(default=1, ge=1, description="{} draws of the defense's noise at frozen weights")
    """Number of observed reports on the same victims and examples at equal weights, each with new noise of the
    defense; 1: a single report."""
    colluders: float = Field(default=0.0, ge=0, le=1, description="what {:.0%} of a client's neighbours know")
    """Share of a client's neighbours (the clients with which it exchanges noise) that collude with the attacker, 0 to
    1."""
    public: PublicKnowledge = Field(default="distribution", description="public data: {}")
    """The attacker's public data: examples (`distribution`), only their mean and covariance (`statistics`), or
    `none`."""
    gallery: int = Field(default=0, ge=0, description="{} candidates, of which the examples are some")
    """How many candidate examples the attacker gets, including the true examples; 0: no gallery."""
    mates: Annotated[bool, Field(description="all other examples behind a reading")] = False
    """Whether the attacker knows all examples behind a reading except the first, the only victim."""
    server: ServerLevel = Field(default="listen", description="a server that chooses the {}")
    """Threat level of the server: `listen` sends honest weights; `weights` sends weights that the attack chooses once,
    equal for all clients (`Attack.craft`); `rounds` sends other weights in each of the `repeated_readings` rounds, on
    the clients' same batches: the attack chooses them after the readings of the rounds before; `inconsistent` sends
    the weights to the victim and zeros to the round's other clients, at `aggregate` only; `layers` also inserts a
    fully connected layer before the agreed model. At `inconsistent`, a reading is the mean times the number of
    clients: the victim's message, plus the other clients' gradients where zero weights do not make these zero (the
    last layer)."""
    dummies: int = Field(default=0, ge=0, description="{} of a round's clients are the attacker's")
    """k, the number of the K clients in a round that the attacker controls (dummies), at `aggregate` only. A reading is
    the mean over the other K - k clients, because the attacker subtracts the dummies' messages."""

    def granted(self) -> dict[str, Any]:
        """Return the granted permissions: the fields whose values differ from the defaults, field name → value."""
        return self.model_dump(exclude_defaults=True)

    def words(self) -> list[str]:
        """Return a text of a few words for each granted permission, such as `the true labels`, for tables."""
        fields = type(self).model_fields
        granted = self.granted() | ({} if self.server == "listen" else {"server": self.chosen})
        if self.varies:
            granted.pop("repeated_readings", None)
        return [(fields[name].description or name).format(value) for name, value in granted.items()]

    @property
    def silences(self) -> bool:
        """True if the server silences all of a round's clients but the victim, by zero weights."""
        return self.server == "inconsistent"

    @property
    def varies(self) -> bool:
        """True if the server sends other weights in each round (level `rounds`)."""
        return self.server == "rounds"

    @property
    def chosen(self) -> str:
        """The server's choice in words, such as `weights`, `layers` or `weights of each client`, for tables."""
        if self.varies:
            return f"weights of each of {self.repeated_readings} rounds"
        return "weights of each client" if self.silences else self.server


class _Cell(Frozen):
    def canonical(self) -> str:
        """Return the configuration of the cell (an experiment) as JSON text with sorted keys and without spaces; the
        text is equal for equal cells."""
        return json.dumps(self.configuration(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def id(self) -> str:
        """Id of the cell (an experiment): SHA-256 of the canonical JSON, as 64 hexadecimal digits."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy the cell (an experiment configuration) as in pydantic, with the changed fields `update`; the copy
        computes a new id."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("id", None)
        return copied


class Bayesian(Frozen):
    """Options for the Bayesian accounting of a training (Triastcyn & Faltings 2019). It computes an ε that holds for
    protected data from the same distribution as the training data, not for arbitrary data."""

    levels: Annotated[tuple[Literal["client", "instance", "joint"], ...], IN_ID] = ("client",)
    """Protected units for which ε is computed: a `client`; an example (`instance`); `joint`: a client, protected by
    the noise on its examples."""
    instances: Annotated[Literal["parallel", "sequential"], IN_ID] = "parallel"
    """How the costs of several clients' examples compose: the maximum (`parallel`) or the sum (`sequential`)."""
    formula: Annotated[Literal["code", "paper"], IN_ID] = "code"
    """Formula for the bound on a round's log moments: as in the authors' `code`, or as printed in the `paper`."""
    delta: Annotated[float, Field(gt=0, lt=1, description="δ"), IN_ID] = 1e-5
    """δ, the failure probability in an (ε, δ) guarantee."""
    estimator: Annotated[float, Field(gt=0, lt=1, description="δ', of one round's estimate"), IN_ID] = 1e-16
    """δ', the failure probability of each round's estimate of the privacy cost from samples."""
    dependent: Annotated[bool, IN_ID] = False
    """True if each round's privacy cost is corrected by Hölder's inequality, so that rounds may depend on each
    other."""
    masked: bool = False
    """True if the server reads only sums and maxima of the clients' privacy costs, from masked messages. At level
    `client` the server computes the cost from the updates, without a message about costs."""


# Fields of the two cells stand in the order of a matrix: the first axis varies slowest.


class TrainingCell(_Cell):
    """The configuration of a training: data, model, federated setting, defense, rounds and seed."""

    kind: Annotated[Literal["training"], IN_ID, NOT_AN_AXIS] = "training"
    """Always `training`: tells this class from `AttackCell` in JSON."""
    dataset: DataRef
    """Data set with the training and test examples."""
    model: Entry
    """Trained model, with its parameters."""
    federated: Federated
    """Federated setting: clients, local training and upload."""
    defense: Entry
    """Defense in the training, with its parameters; `none` for an undefended training."""
    rounds: Annotated[int, Field(ge=1, description="T")]
    """T, the largest number of rounds."""
    seed: Annotated[int, Field(ge=0), IN_ID] = 0
    """Seed for every random draw."""
    checkpoints: Annotated[tuple[int, ...], NOT_IN_ID, NOT_AN_AXIS] = ()
    """Rounds after which weights are saved."""
    test_every: Annotated[int, Field(ge=1), IN_ID, NOT_AN_AXIS] = 5
    """Number of rounds between two measurements of the test accuracy."""
    test_examples: Annotated[int, Field(ge=1), IN_ID, NOT_AN_AXIS] = 2000
    """Largest number of test examples in a measurement of the test accuracy."""
    until_round: Annotated[int | None, Field(ge=1, description="stop after this round"), NOT_AN_AXIS] = None
    """Number of rounds after which the training stops, before all `rounds` are run; None: no such limit. A defense with
    a schedule over the training follows `rounds`."""
    until_accuracy: Annotated[float | None, Field(gt=0, le=1, description="stop once reached"), NOT_AN_AXIS] = None
    """Test accuracy in (0, 1] at which the training stops; None: no such limit."""
    until_epsilon: Annotated[
        float | None, Field(gt=0, description="stop before the paper's count passes it"), NOT_AN_AXIS
    ] = None
    """ε, computed as in the defense's paper, that the training must not exceed; None: no such limit."""
    bayesian: Annotated[Bayesian | None, NOT_AN_AXIS] = None
    """Bayesian accounting; None: not requested."""

    @property
    def last_round(self) -> int:
        """Number of rounds that the training runs if no limit on accuracy or ε ends it earlier."""
        return min(self.rounds, self.until_round or self.rounds)


class AttackCell(_Cell):
    """The configuration of an attack experiment: data, model, setting, defense, interception point, attack and seed."""

    kind: Annotated[Literal["attack"], IN_ID, NOT_AN_AXIS, VARIED] = "attack"
    """Always `attack`: tells this class from `TrainingCell` in JSON."""
    dataset: DataRef
    """Data set from which the victims' examples are drawn."""
    model: Entry
    """Attacked model, with its parameters."""
    weights: Annotated[Weights, IN_ID] = InitialWeights()
    """Weights of the model in the attacked round: untrained, from a file, or from a checkpoint of a training."""
    federated: Federated
    """Federated setting: clients, local training and upload."""
    attack: Annotated[Entry, ATTACKER]
    """Attack, with its parameters."""
    knowledge: Annotated[Knowledge, IN_ID, ATTACKER] = "plain"
    """The attacker's knowledge about the defense: none (`plain`), its public description (`adaptive`), or runs of the
    defended round on chosen examples (`black-box`)."""
    grants: Annotated[Grants, IN_ID] = Grants()
    """The attacker's permissions in addition to the reading (observed update) and the knowledge about the defense."""
    point: Annotated[str, VARIED]
    """Interception point, the attacker's position in a round: `type-2`, `type-1`, `type-0` or `aggregate`."""
    defense: Annotated[Entry, VARIED]
    """Defense of the clients or the server, with its parameters; `none` for an undefended round."""
    draw: Annotated[int, Field(ge=0, description="which draw of the defense's noise"), IN_ID, VARIED] = 0
    """Number of the draw of the defense's noise; another number gives other noise on the same victims."""
    seed: Annotated[int, Field(ge=0), IN_ID, VARIED] = 0
    """Seed for every random draw."""
    evaluations: Annotated[int, Field(ge=1, description="budget, restarts included"), IN_ID, ATTACKER] = 500
    """Budget: the largest number of gradient evaluations per reading, restarts included."""
    readings: Annotated[int, Field(ge=1), IN_ID] = 16
    """Number of readings (observed updates) that the cell draws and attacks."""
    chunk: Annotated[int, Field(ge=1, description="readings in memory at once"), IN_ID, ATTACKER] = 32
    """Number of readings that the attack holds in memory at the same time."""
    reference: Annotated[bool, Field(description="compute the linear-Gaussian reference beside it"), ATTACKER] = False
    """Whether to compute, for comparison, the PSNR of the best estimate if the gradient were linear in the examples
    (`reference_db` in the record)."""
    after: Annotated[
        tuple[Sha256, ...],
        Field(description="cells before it in a cascade, by id: it attacks the readings that they left"),
        NOT_AN_AXIS,
        ATTACKER,
    ] = ()
    """Ids of the earlier cells in the cascade (attacks one after the other); readings whose examples all leaked to
    these cells are not attacked again."""
    victims: Annotated[str | None, Field(min_length=1, description="which draw of victims"), NOT_AN_AXIS] = None
    """Key by which other victims are drawn, at equal weights (`bench.matrix.suites.draw_key`), or the half of the
    training split from which they come in a calibration (`tuning`, `scoring`); None: the usual victims, drawn by the
    seed."""

    @model_validator(mode="after")
    def _rounds_of_an_honest_server(self) -> Self:
        grants = self.grants
        further = isinstance(self.weights, CheckpointWeights) and self.weights.further
        if further and (grants.server != "listen" or grants.repeated_readings > 1):
            raise ValueError("further rounds need an honest server and a single report in each round")
        return self

    @property
    def senders(self) -> int:
        """Number of clients whose updates a reading (an observed update) combines. At `aggregate` this is K - k, for K
        clients in a round and k dummies of the attacker, or 1 if the server silences all clients but one (grant `server
        = "inconsistent"`). At other points it is 1."""
        mean = POINTS[self.point].scope is Scope.AGGREGATE and not self.grants.silences
        return self.federated.per_round - self.grants.dummies if mean else 1


AnyCell = TrainingCell | AttackCell
ENTRIES = ("dataset", "model", "defense", "attack")  # fields with an entry and its parameters, in the order of tables
Cell = Annotated[AnyCell, Field(discriminator="kind")]


def axes(kind: type[AnyCell]) -> tuple[str, ...]:
    """Return the names of the axes over which a matrix varies cells of the class `kind` (training or attack): the
    fields of the class that may be lists in a matrix, whose combinations are cells. The order is that of a matrix's
    cells: the first axis varies slowest."""
    return tuple(name for name in kind.model_fields if name not in marked(kind, NOT_AN_AXIS))
