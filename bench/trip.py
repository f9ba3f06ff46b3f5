"""What travels, in order: Victims → Reading → Reconstruction → Score.

Axes are named once, here, and used in every docstring:

    reading      one client-step or client-round seen by the attacker
    observation  one sight of the same secret, with weights and a round of its own
    example      one distinct example behind a reading (type-2: 1, type-1 and type-0: B·L, aggregate: K·B·L)
    client, step      inside the federated pipeline
    *shape       of one example (channel, height, width) or (feature,), or of one parameter
    class        soft label
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from torch import Tensor, nn

from bench.points import Point

Tensors = Mapping[str, Tensor]
Status = Literal["ok", "diverged", "nan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """The truth behind the readings of one cell, known to the harness alone.

    `inputs` (reading, sender, step, example, *shape) in [0, 1]; `labels` and `indices` (reading,
    sender, step, example): label, and index in the training split; `clients` the clients of each
    reading, one unless the point shows an aggregate.
    """

    inputs: Tensor
    labels: Tensor
    indices: Tensor
    clients: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.clients)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The law of what a defense adds to each coordinate of one observation, and its variance, in gradient
    units squared; `variance` 0: nothing."""

    law: Literal["gaussian", "laplace"] = "gaussian"
    variance: float = 0.0


class Description(Protocol):
    """What a defense says in public of what it does to a candidate's gradient, in stage order.

    Attackers see this and never the defense.  `simulate` maps the gradients that the dummies
    would send, `per_example` (reading, example, *shape), to the mean of what the reading would then
    show (reading, *shape), given what it does show; `noise` is what lies around that mean; `additive`
    says that nothing else is random, so that observations of one secret may be averaged; `inside_steps`
    that it acts within a client's local steps.
    """

    @property
    def noise(self) -> Noise: ...
    @property
    def additive(self) -> bool: ...
    @property
    def inside_steps(self) -> bool: ...
    def simulate(self, per_example: Tensors, observed: Tensors) -> dict[str, Tensor]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All that the attacker holds: a batch of readings taken at one point, under the same weights.

    `values` name → (reading, observation, *shape): a gradient, or an update in the units the
    client sends (`unit` = 1 for a gradient, η for a weight difference w_0 - w_L); at `aggregate` the
    mean over `senders` clients.
    `weights` name → (observation, *shape).  `indices` numbers each reading in its cell, for the
    start key.  Fields below `granted` are there only when the cell grants them.  No field holds
    an example, a label, a batch statistic or the order of a batch: that is a matter of types.
    """

    point: Point
    linked: Literal["vector", "coordinate"]
    values: Tensors
    weights: Tensors
    rounds: tuple[int, ...]
    indices: tuple[int, ...]
    model: nn.Module
    kind: Literal["image", "table"]
    shape: tuple[int, ...]
    value_range: tuple[float, float]
    classes: int
    batch: int
    steps: int
    rate: float
    unit: float
    client_examples: int
    senders: int
    public_mean: Tensor
    public_inputs: Tensor
    public_labels: Tensor
    # granted
    description: Description | None = None
    labels: Tensor | None = None
    repeated_readings: int = 1

    @property
    def examples(self) -> int:
        """Distinct examples behind each reading, as far as the attacker knows."""
        return self.point.examples(batch=self.batch, steps=self.steps, senders=self.senders)

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What an attack may spend on each reading, restarts included, and readings held at once."""

    evaluations: int
    chunk: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction:
    """What the attacker claims: for each reading its examples, in any order.

    `inputs` (reading, example, *shape), as optimised, not clipped; `labels` (reading, example),
    -1 where the attack names none; `loss` (reading,) the attack's own; `evaluations` and `outer`
    (reading,) used; `restarts` (reading,); `status` of each reading; `history` sparse
    (evaluation, least loss so far per reading) pairs, and `trajectory` (mark, reading, example, *shape) the
    examples that had those losses, marks as in `history`, for the first readings at least.
    """

    inputs: Tensor
    labels: Tensor
    loss: Tensor
    evaluations: Tensor
    outer: Tensor
    restarts: Tensor
    status: tuple[Status, ...]
    history: tuple[tuple[int, tuple[float, ...]], ...] = ()
    trajectory: Tensor | None = None
    notes: tuple[str, ...] = field(default=())
