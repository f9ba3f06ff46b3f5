"""Cells: the configurations of a matrix, frozen, in canonical JSON, named by their hash.

Two kinds, one record format.  A *training cell* gives curve, accuracy and checkpoints; an
*attack cell* gives reconstructions and scores.  The *cell id* hashes the configuration (with
the content hash of its data).  The code that answers has a fingerprint of its own (`bench.record.fingerprint`).
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Params = dict[str, Any]
PublicKnowledge = Literal["distribution", "statistics", "none"]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

# Of the defense: nothing; what it says of itself; nothing, but it can be run on examples of the attacker's own.
Knowledge = Literal["plain", "adaptive", "black-box"]


class Frozen(BaseModel):
    """A value that is checked once, at the border, and never changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Entry(Frozen):
    """A registered name with its parameters, defaults written out."""

    name: str
    params: Params = {}

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={value}" for key, value in sorted(self.params.items()))
        return f"{self.name}({shown})" if shown else self.name


class DataRef(Entry):
    """A data set, by content: `sha256` over its arrays, `subset` where it is not whole."""

    sha256: Sha256
    subset: str | None = None


class Federated(Frozen):
    """The federated setting (Fed-αCDP §3): who trains, on what, how much of it a round sees.

    `fedsgd` uploads the gradient of one local step; `fedavg` uploads w_0 - w_L after L steps.
    """

    algorithm: Literal["fedsgd", "fedavg"] = "fedsgd"
    clients: Annotated[int, Field(ge=1, description="N")] = 100
    per_round: Annotated[int, Field(ge=1, description="K")] = 10
    steps: Annotated[int, Field(ge=1, description="L, local steps")] = 1
    batch: Annotated[int, Field(ge=1, description="B, local batch")] = 3
    rate: Annotated[float, Field(gt=0, description="η, local learning rate")] = 0.05
    partition: Literal["iid", "two-shard", "two-class"] = "iid"
    client_examples: int | None = Field(default=None, ge=1, description="|D_i|; none: the training split over N")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.per_round > self.clients:
            raise ValueError(f"per_round must be at most clients={self.clients}, got {self.per_round}")
        if self.algorithm == "fedsgd" and self.steps > 1:
            raise ValueError(f"fedsgd sends one step's gradient; for steps={self.steps} say fedavg")
        return self

    @property
    def unit(self) -> float:
        """One unit of gradient in the units that a client sends: 1 (FedSGD) or η (FedAvg)."""
        return 1.0 if self.algorithm == "fedsgd" else self.rate


class InitialWeights(Frozen):
    """Untrained weights, drawn by key with the model's own initialisation."""

    kind: Literal["init"] = "init"


class FileWeights(Frozen):
    """Weights from a file, by content hash; `path` is only where it was found, no part of the configuration.

    `series` names what the files of several seeds have in common, so that tables can count them together.
    """

    kind: Literal["file"] = "file"
    sha256: Sha256
    path: str
    series: str = ""


class CheckpointWeights(Frozen):
    """Weights after round `round` of a training cell, by that cell's id; `series` is the id that it would
    have with seed 0."""

    kind: Literal["checkpoint"] = "checkpoint"
    training: Sha256
    round: Annotated[int, Field(ge=0)]
    series: str = ""


Weights = Annotated[InitialWeights | FileWeights | CheckpointWeights, Field(discriminator="kind")]


NOT_IN_ID = ("path", "series")  # of weights: fields that are no part of the configuration


# Fields that came later: where they ask for nothing, the configuration is the one from before.
_ADDED_LATER = ("until_accuracy", "until_epsilon", "bayesian", "reference", "after")


class Grants(Frozen):
    """What an attacker is granted beyond the reading.  A field with its default is no part of a cell's id, so
    that a grant added later changes no id.

    A field's description is the grant in words, with `{}` for its value.
    """

    labels: Annotated[bool, Field(description="the true labels")] = False
    repeated_readings: int = Field(default=1, ge=1, description="{} draws of the defense's noise at frozen weights")
    colluders: float = Field(default=0.0, ge=0, le=1, description="what {:.0%} of a client's neighbours know")
    public: PublicKnowledge = Field(default="distribution", description="public data: {}")
    gallery: int = Field(default=0, ge=0, description="{} candidates, of which the examples are some")

    def granted(self) -> dict[str, Any]:
        """The grants that differ from nothing, by name."""
        return self.model_dump(exclude_defaults=True)

    def words(self) -> list[str]:
        """Each grant in a few words: `the true labels`."""
        fields = type(self).model_fields
        return [(fields[name].description or name).format(value) for name, value in self.granted().items()]


class _Cell(Frozen):
    dataset: DataRef
    model: Entry
    federated: Federated
    defense: Entry
    seed: Annotated[int, Field(ge=0)] = 0

    def canonical(self) -> str:
        """The canonical JSON: sorted keys, no spaces.

        Where a weights file was found, its series, and which rounds of a training are kept, are not part of
        the configuration: a cell's id does not depend on what else is in the matrix.
        """
        content = self.model_dump(mode="json")
        for name in _ADDED_LATER:
            if not content.get(name):
                content.pop(name, None)
        content.pop("checkpoints", None)
        if isinstance(self, AttackCell):
            content["grants"] = self.grants.granted()
        if isinstance(content.get("weights"), dict):
            content["weights"] = {k: v for k, v in content["weights"].items() if k not in NOT_IN_ID}
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def id(self) -> str:
        """SHA-256 of the canonical JSON, 64 hexadecimal digits."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As pydantic's, with an id of its own."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("id", None)
        return copied


class Bayesian(Frozen):
    """Bayesian accounting beside a training (Triastcyn & Faltings 2019): at which levels, and how costs are estimated.

    `instances`: how instance costs of clients add up; `formula`: c^R, as in the author's code or as printed;
    `dependent`: correct for rounds that depend on one another, by Hölder.
    """

    levels: tuple[Literal["client", "instance", "joint"], ...] = ("client",)
    instances: Literal["parallel", "sequential"] = "parallel"
    formula: Literal["code", "paper"] = "code"
    delta: Annotated[float, Field(gt=0, lt=1, description="δ")] = 1e-5
    estimator: Annotated[float, Field(gt=0, lt=1, description="δ', of one round's estimate")] = 1e-16
    dependent: bool = False


class TrainingCell(_Cell):
    """Train: data set, model, federated setting, defense, rounds, seed."""

    kind: Literal["training"] = "training"
    rounds: Annotated[int, Field(ge=1, description="T")]
    checkpoints: tuple[int, ...] = ()
    test_every: Annotated[int, Field(ge=1)] = 5
    test_examples: Annotated[int, Field(ge=1)] = 2000
    until_accuracy: Annotated[float | None, Field(gt=0, le=1, description="stop once reached")] = None
    until_epsilon: float | None = Field(default=None, gt=0, description="stop before the paper's count passes it")
    bayesian: Bayesian | None = None


class AttackCell(_Cell):
    """Attack: weights, defense, point, attack, knowledge, grants, budget, readings, draw, seed."""

    kind: Literal["attack"] = "attack"
    weights: Weights = InitialWeights()
    attack: Entry
    knowledge: Knowledge = "plain"
    grants: Grants = Grants()
    point: str
    readings: Annotated[int, Field(ge=1)] = 16
    evaluations: Annotated[int, Field(ge=1, description="budget, restarts included")] = 500
    chunk: Annotated[int, Field(ge=1, description="readings in memory at once")] = 32
    draw: Annotated[int, Field(ge=0, description="which draw of the defense's noise")] = 0
    reference: Annotated[bool, Field(description="compute the linear-Gaussian reference beside it")] = False
    after: tuple[Sha256, ...] = Field(
        default=(), description="cells before it in a cascade, by id: it attacks the readings that they left"
    )


AnyCell = TrainingCell | AttackCell
Cell = Annotated[AnyCell, Field(discriminator="kind")]
