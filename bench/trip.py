"""What travels, in order: Victims → Reading → Reconstruction (→ `bench.scoring.score.Scores`).

Axes are named once, here, and used in every docstring:

    reading      one observed update: a client's local step or round, or an aggregate
    observation  one of several reports on the same victims, each under its round's weights
    example      one distinct example behind a reading (type-2: 1, type-1 and type-0: B·L, aggregate: K·B·L)
    client, step      inside the federated pipeline
    *shape       of an example (channel, height, width) or (feature,), or of a parameter
    class        of a label's probabilities
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Literal, Protocol

from torch import Tensor, nn

from bench.points import Point

TRACED = 8  # readings of a cell whose trajectory is kept: as many as a reconstruction grid shows

Tensors = Mapping[str, Tensor]
Status = Literal["ok", "diverged", "nan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """The truth behind the readings of one cell; the harness alone has it.

    `inputs` (reading, sender, step, example, *shape) in [0, 1]; `labels` and `indices` (reading,
    sender, step, example): label, and index in the training split; `clients` (reading, sender): a
    single sender unless the point shows an aggregate.
    """

    inputs: Tensor
    labels: Tensor
    indices: Tensor
    clients: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.clients)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The distribution of what a defense adds to one observation, around the description's `simulate`.

    `variance`, in gradient units squared and 0 for no noise, is the mean over coordinates; `variances`, where they
    differ, of each: name → a tensor that broadcasts to (*shape).  `bound`: the true variances are unknown and at most
    these; attackers estimate them from the reading.
    """

    law: Literal["gaussian", "laplace"] = "gaussian"
    variance: float = 0.0
    variances: Mapping[str, Tensor] | None = None
    bound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What a step's candidate gradients were computed on: `inputs` (row, example, *shape), `targets` (row, example,
    class) and `weights`, name → (*shape), or (row, *shape) where they differ."""

    inputs: Tensor
    targets: Tensor
    weights: Tensors


# (local step, each example's gradient, name → (row, example, *shape), candidates) → that step's mean, (row, *shape)
StepDefense = Callable[[int, Mapping[str, Tensor], Candidates], dict[str, Tensor]]


class Description(Protocol):
    """The public description of a defense: how it changes a candidate's gradient.

    Attackers see this and never the defense.  `simulate` maps the candidates' gradients, `per_example`
    (reading, example, *shape), to the mean of what the reading would then show, (reading, *shape); `observed`
    (reading, *shape) is what it does show; all in gradient units.  Examples are in the order of clients, then local
    steps, then the batch; `ordered`: a simulation changes where examples of different clients change places.

    `simulate` is two halves.  `local_steps` is what happens inside a client's local steps, and
    takes rows, one for each client of each reading; `sent` maps their updates (reading, client, *shape) to what is
    shown.  `inside_steps`: some transform acts inside, at stage example or step.

    `mixed`: what a candidate stands for, what was trained on, are convex mixtures of a batch's examples and of their
    labels; which ones and with what shares nobody knows.

    `noise` is the noise around the mean.  `additive`: nothing else is random, so that observations of the same
    victims may be averaged.  `log_likelihood` (reading,), at most 0 and up to a constant, is of noise whose
    law is neither Gaussian nor Laplace; None elsewhere.  `log_density` (reading,) is of any sign, up to a constant
    that no candidate moves, and exact: for who compares candidates; None where it is that of `noise`.
    """

    @property
    def noise(self) -> Noise: ...
    @property
    def additive(self) -> bool: ...
    @property
    def inside_steps(self) -> bool: ...
    @property
    def ordered(self) -> bool: ...
    @property
    def senders(self) -> int: ...
    @property
    def mixed(self) -> bool: ...
    def simulate(
        self, per_example: Tensors, observed: Tensors, candidates: Candidates | None = None
    ) -> dict[str, Tensor]: ...
    def local_steps(self, observed: Tensors) -> StepDefense: ...
    def sent(self, updates: Tensors, observed: Tensors) -> dict[str, Tensor]: ...
    def log_likelihood(self, simulated: Tensors, observed: Tensors) -> Tensor | None: ...
    def log_density(self, simulated: Tensors, observed: Tensors) -> Tensor | None: ...


class Simulator(Protocol):
    """The round with its defense as a black box, for an attacker who has no description of it.

    A call maps candidates, `inputs` (reading, example, *shape) and `labels` (reading, example), to what the reading
    would show of them, name → (reading, observation, *shape) in gradient units.  `draw` numbers the defense's draws;
    none of them is a victim's.  Each observation of a candidate is a simulation: `budget` in all, `used` so far, in
    `seconds`; an equal call counts once.  Calls beyond the budget raise `PluginError`.
    """

    @property
    def budget(self) -> int: ...
    @property
    def used(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    def __call__(self, inputs: Tensor, labels: Tensor, draw: int) -> dict[str, Tensor]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All that the attacker has: a batch of readings taken at one point, under the same weights.

    `values` name → (reading, observation, *shape): a gradient, or an update in the units that the client sends
    (`unit` = 1 for a gradient, η for a weight difference w_0 - w_L); at `aggregate` the mean over `senders`
    clients.  `linked`: whether the coordinates of an update are known to be of one client ("vector"), or each came
    without a sender ("coordinate").  `weights` name → (observation, *shape).  `rounds` (observation,). `indices` number
    the readings in their cell, for the key of the start.  `public_mean` (*shape), `public_inputs` (example, *shape)
    and `public_labels` (example,), -1 where unknown, are of the public split, or draws of what is granted of it
    (`bench.answer.public`).  Fields below `granted` differ from their defaults only where the cell's knowledge
    (`description`, `simulator`) or its grants say so.  `gallery_inputs` (candidate, *shape) and `gallery_labels`
    (candidate,) hold the examples of all readings among strangers, in an order that tells nothing.  `momentum` and
    `weight_decay` are of the client's SGD; `ragged`: each epoch over its `client_examples` ends with a smaller batch,
    where B does not divide them.  Unless it is granted, no field has an example of a victim or its label; none has a
    batch statistic or the order of a batch.
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
    simulator: Simulator | None = None
    labels: Tensor | None = None
    repeated_readings: int = 1
    gallery_inputs: Tensor | None = None
    gallery_labels: Tensor | None = None
    # of a federated project of one's own
    momentum: float = 0.0
    weight_decay: float = 0.0
    ragged: bool = False

    @property
    def examples(self) -> int:
        """Examples that the gradients behind each reading were computed on: those of all its local steps."""
        if self.ragged:
            return sum(self.batches)
        return self.point.examples(batch=self.batch, steps=self.steps, senders=self.senders)

    @property
    def batches(self) -> tuple[int, ...]:
        """Examples of each local step of one client."""
        if not self.ragged:
            return (self.point.examples(batch=self.batch, steps=self.steps, senders=1) // self.steps,) * self.steps
        whole, rest = divmod(self.client_examples, self.batch)
        epoch = (self.batch,) * whole + ((rest,) if rest else ())
        return tuple(islice(cycle(epoch), self.steps))

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Evaluations of the objective that an attack may use on each reading, restarts included, readings in memory at
    once, and how many readings, the first ones, have their trajectory kept."""

    evaluations: int
    chunk: int = 32
    traced: int = TRACED


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction:
    """An attack's result: the examples of each reading, in any order.

    `inputs` (reading, example, *shape), as optimised, not clipped; `labels` (reading, example),
    -1 where the attack names none; `loss` (reading,) of the attack's objective; `evaluations`, `outer` (iterations
    as the paper counts them) and `restarts` (reading,), as used; `status` of each reading; `history` pairs of a mark,
    an evaluation count, and the least losses so far (reading,); `trajectory` (mark, reading, example, *shape) the
    examples that had those losses, of the first readings at least; `notes` on departures from the paper.  `certificate`
    (reading,) is the share of the examples that the attack itself knows to be right, in [0, 1], without the truth; None
    for attacks that cannot know.  `named` (reading, candidate) are the candidates of the gallery that the attack names,
    by number: as many as there are examples, and where there is one, more, best first; None for attacks that name none.
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
    certificate: Tensor | None = None
    named: Tensor | None = None
    notes: tuple[str, ...] = field(default=())
