"""Values passed between a cell's steps: Victims → (Server →) Reading → Reconstruction (→ `bench.scoring.score.Scores`).

Axis names in every docstring:

    reading        an observed update: a client's local step or round, or an aggregate
    observation    a repeated report on the same victims, each under its round's weights
    example        a distinct example behind a reading (type-2: 1, type-1 and type-0: B·L, aggregate: K·B·L)
    client, step   inside the federated pipeline: K clients in a round, L local steps, B examples in each
    candidate      an example in the granted gallery
    mark           an evaluation count at which losses were noted
    *shape         axes for an example, (channel, height, width) or (feature,), or for a parameter
    class          a label's class probabilities

Every tensor field in `Reading` and `Reconstruction` names its leading axes in its metadata."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import cycle, islice
from typing import Any, Literal, Protocol, Self

import torch
from torch import Tensor, nn

from bench.kinds.base import Kind
from bench.points import Point

TRACED = 8  # readings per cell with a kept trajectory: a full reconstruction grid

Tensors = Mapping[str, Tensor]
Status = Literal["ok", "diverged", "nan"]

# Field metadata: the leading axes
READING = {"axis": "reading"}
MARK = {"axis": "mark, reading"}
OBSERVATION = {"axis": "observation"}
SHARED = {"axis": "shared"}  # equal for all readings


@dataclass(frozen=True, slots=True)
class ByReading:
    """Base class for results with a value for each reading (observed update). The method `of` selects readings in all
    fields with the metadata `READING` or `MARK`."""

    def of(self, rows: Sequence[int]) -> Self:
        """Return the same object restricted to the readings (observed updates) at positions `rows`, in this order."""
        return replace(self, **{name: _chosen(getattr(self, name), axis, rows) for name, axis in self._row_fields()})

    def _row_fields(self) -> Iterator[tuple[str, str]]:
        for each in fields(self):
            if (axis := each.metadata.get("axis")) in (READING["axis"], MARK["axis"]):
                yield each.name, axis


def _chosen(content: Any, axis: str, rows: Sequence[int]) -> Any:
    if content is None:
        return None
    if isinstance(content, Mapping):
        return {name: _chosen(value, axis, rows) for name, value in content.items()}
    if axis == MARK["axis"]:
        if isinstance(content, Tensor):  # a trajectory may hold only the first readings
            return content[:, torch.tensor([row for row in rows if row < content.shape[1]], dtype=torch.long)]
        return tuple((mark, _chosen(losses, READING["axis"], rows)) for mark, losses in content)
    if isinstance(content, Tensor):
        return content[torch.tensor(rows, dtype=torch.long)]
    return tuple(content[row] for row in rows)


def repeated(tensors: Tensors, count: int) -> dict[str, Tensor]:
    """Return a single row's `tensors`, name → (1, *shape), repeated without a copy: name → (`count`, *shape)."""
    return {name: value.expand(count, *value.shape[1:]) for name, value in tensors.items()}


def _concatenated(contents: Sequence[Any]) -> Any:
    first = contents[0]
    if all(each is None for each in contents):
        return None
    if isinstance(first, Mapping):
        return {name: torch.cat([each[name] for each in contents]) for name in first}
    return torch.cat(list(contents)) if isinstance(first, Tensor) else tuple(row for each in contents for row in each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """The true examples behind the readings (observed updates) in a cell (an experiment), known to the harness only."""

    inputs: Tensor
    """(reading, sender, step, example, *shape): inputs in [0, 1]."""
    labels: Tensor
    """(reading, sender, step, example): class numbers."""
    indices: Tensor
    """(reading, sender, step, example): positions in the training split."""
    clients: tuple[tuple[int, ...], ...]
    """(reading, sender): client numbers; an aggregate has a round's K senders, any other reading a single sender."""

    def __len__(self) -> int:
        return len(self.clients)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Distribution of a defense's additive noise in an observed update, around the simulated update (the output of
    `Description.simulate`)."""

    law: Literal["gaussian", "laplace"] = "gaussian"
    """Distribution of each coordinate."""
    variance: float = 0.0
    """Variance in squared gradient units, as a mean over coordinates; 0 without noise."""
    variances: Mapping[str, Tensor] | None = None
    """Each coordinate's variance if they differ, name → a tensor that broadcasts to (*shape); None if equal."""
    bound: bool = False
    """True if the variances are upper bounds; attackers then estimate the true values from the reading."""

    def times(self, factor: float) -> "Noise":
        """Return the distribution of the noise after the observed update is multiplied by `factor`."""
        square = factor**2
        each = self.variances and {name: square * value for name, value in self.variances.items()}
        return replace(self, variance=square * self.variance, variances=each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """The few values that a random defense may send for each coordinate, such as 0 or the value itself. Coordinates are
    independent."""

    values: Tensors
    """Possible values, name → (outcome, row, *shape)."""
    chances: Tensors
    """Probability of each value, with the same axes; the sum over outcomes is 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Candidate batches of examples for a local step, before their gradients are computed; a row is a batch."""

    inputs: Tensor
    """(row, example, *shape): candidate inputs."""
    targets: Tensor
    """(row, example, class): class probabilities."""
    weights: Tensors
    """Model weights, name → (*shape), or (row, *shape) if rows have different weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamRule:
    """Options for the optimizer Adam, as in `torch.optim`: a step turns a gradient into a direction; the moments are
    zero at the start."""

    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the means of gradients and of squared gradients."""
    eps: float = 1e-8
    """Term in the denominator, for stability."""
    decoupled: bool = False
    """True for AdamW: weight decay acts on the weights, not through the gradient."""


# (local step, each example's gradient, name → (row, example, *shape), candidates) → that step's mean, (row, *shape)
StepDefense = Callable[[int, Mapping[str, Tensor], Candidates], dict[str, Tensor]]

# (gradients of candidates for the first example, name → (row, *shape), candidates) → simulated readings, (row, *shape)
Given = Callable[[Mapping[str, Tensor], Candidates], dict[str, Tensor]]


class Description(Protocol):
    """Public description of a defense, by which an adaptive attacker simulates readings (observed updates) of candidate
    examples, in gradient units. The attacker gets this description, never the defense. Examples are ordered by client,
    local step, batch position."""

    @property
    def noise(self) -> Noise:
        """Distribution of the defense's noise around the simulated reading (the output of `simulate`)."""

    @property
    def additive(self) -> bool:
        """True if `noise` is the only randomness; observations on the same victims may then be averaged."""

    @property
    def inside_steps(self) -> bool:
        """True if the defense acts inside a local step, at stage `example` or `step`."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines for the record about the defense's transforms (functions on tensors) without a description. Each line
        names the transform, and the rule by which the reading shows its random draws (such as zeros that show a mask).
        Attacks do not use these lines."""

    @property
    def ordered(self) -> bool:
        """True if the order between examples matters: a simulated reading changes when two clients exchange an example,
        as under a clip on each client's update."""

    @property
    def senders(self) -> int:
        """Number of clients behind a reading (an observed update)."""

    @property
    def mixed(self) -> bool:
        """True if training used convex mixtures of examples and labels, whose partners and shares are secret."""

    @property
    def hard(self) -> bool:
        """True if the defense makes a hard decision (a coordinate kept or not, a sign, a limit), so that `simulate` has
        no useful derivative."""

    @property
    def clients(self) -> "Clients | None":
        """Description for single clients' messages, if the reading is a mean over clients' quantised messages; None
        otherwise."""

    @property
    def single(self) -> "Description | None":
        """Description for a single client's message, if the reading is a mean over clients. None unless the other
        clients' updates determine their messages (`message`), up to a few values (`outcomes`); noise, for example,
        gives None."""

    def message(self, others: Tensors, observed: Tensors) -> dict[str, Tensor]:
        """Return the first client's message behind a mean over clients, name → (1, *shape), in gradient units: the mean
        times the number of clients, minus the other clients' messages, which have no random draws. A difference that
        rounding explains is 0. Allowed only if `single` is not None.

        - `others`: the other clients' known updates, name → (client - 1, *shape).
        - `observed`: the mean, name → (1, *shape)."""

    def softened(self, width: float) -> "Description":
        """Return a description with gradual transitions in place of hard decisions, for a search by derivatives.
        `width` > 0 is the transitions' relative width (`Transform.smoothed`)."""

    def simulate(
        self, per_example: Tensors, observed: Tensors, candidates: Candidates | None = None
    ) -> dict[str, Tensor]:
        """Return the reading (observed update) that the defense would make from candidates (guessed examples), without
        `noise`: name → (reading, *shape).

        - `per_example`: the candidates' gradients, name → (reading, example, *shape).
        - `observed`: the attacked reading itself, name → (reading, *shape), which may show random draws.
        - `candidates`: the candidates; needed if the defense acts inside local steps, otherwise None.

        The result equals `local_steps` followed by `sent`."""

    def with_mates(self, mates: Tensors, observed: Tensors, behind: Candidates) -> Given:
        """Return a function that simulates readings for candidates of the first example, while all other examples (the
        mates) are known. The function takes the candidates and their gradients, name → (row, *shape), and returns
        simulated readings, name → (row, *shape). A simulated reading equals `simulate` for a single local step.

        - `mates`: gradients of the known examples, name → (1, example - 1, *shape).
        - `behind`: the known examples themselves.
        - `observed`: the attacked reading, name → (1, *shape)."""

    def local_steps(self, observed: Tensors) -> StepDefense:
        """Return a function that applies the defense inside a local step to the step's gradients, client by client for
        each reading. `observed` is the attacked reading, name → (reading, *shape)."""

    def sent(self, updates: Tensors, observed: Tensors) -> dict[str, Tensor]:
        """Return the reading (observed update) that the defense would make from the clients' `updates`, without
        `noise`: name → (reading, *shape). `updates` are name → (reading, client, *shape); `observed` is the attacked
        reading itself, name → (reading, *shape)."""

    def with_clients(self, others: Tensors, observed: Tensors) -> Callable[[Tensors], dict[str, Tensor]]:
        """Return a function that simulates readings (observed updates) for the first client's candidate updates, while
        the other clients' updates are known. The function takes candidate updates and returns simulated readings, both
        name → (row, *shape). The result equals `sent`.

        - `others`: the other clients' updates, name → (1, client - 1, *shape); empty for a single client.
        - `observed`: the attacked reading, name → (1, *shape)."""

    def outcomes(self, updates: Tensors) -> Outcomes | None:
        """Return the values that clients may send for their `updates` (client, *shape), in gradient units. None if a
        message may take more than a few values, or if the reading is not just the mean of the messages."""

    def log_likelihood(self, simulated: Tensors, observed: Tensors) -> Tensor | None:
        """Return log p(`observed` | `simulated`) ≤ 0 for each reading, (reading,), up to a constant, as the objective
        of a search. Both are name → (reading, *shape). None for Gaussian and Laplace noise, whose likelihood follows
        from `noise`."""

    def log_density(self, simulated: Tensors, observed: Tensors) -> Tensor | None:
        """Return the exact log p(`observed` | `simulated`) for each reading, (reading,), up to a common constant, for a
        ranking of candidates. Both are name → (reading, *shape). None if `noise` gives the density."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Description for single clients' messages behind a mean over quantised messages. In a message, each coordinate is
    -τ, 0 or τ, with a step τ for each tensor."""

    signs: bool
    """True for messages of ±τ; False for -τ, 0, τ."""
    alone: Description
    """Description of a single client's message, for readings that may hold only some tensors."""


class Simulator(Protocol):
    """The defended round as a black box, for attackers without a description: candidates in, simulated readings
    (observed updates) out."""

    @property
    def budget(self) -> int:
        """Number of simulations allowed in total; each observation of a candidate costs a simulation."""

    @property
    def used(self) -> int:
        """Number of simulations so far; a repeated call with equal arguments costs no more."""

    @property
    def seconds(self) -> float:
        """Time spent in simulations, in seconds."""

    def __call__(self, inputs: Tensor, labels: Tensor, draw: int) -> dict[str, Tensor]:
        """Run the round on candidates; returns name → (reading, observation, *shape) in gradient units.

        `inputs` are (reading, example, *shape), `labels` (reading, example). Each `draw` number gives new random draws
        for the defense, independent of the draws in the victims' readings. Raises `PluginError` beyond the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Everything known to a server before a round, for an attack with chosen weights (`Attack.craft`). No field holds a
    victim's update, example or label, except a granted gallery: candidates with the victims' examples among them."""

    model: nn.Module
    """Model in eval mode; its parameters are in `weights`."""
    weights: Tensors
    """The round's honest weights, name → (*shape)."""
    kind: Kind
    """Kind of data."""
    shape: tuple[int, ...]
    """Shape of an example."""
    classes: int
    """Number of classes."""
    steps: int
    """L, the number of local steps behind a reading."""
    examples: int
    """Number of examples behind each reading, over all local steps and senders."""
    public_inputs: Tensor
    """(example, *shape): the public split, or draws from the granted distribution (`bench.answer.public`)."""
    public_labels: Tensor
    """(example,): class numbers; -1 if unknown."""
    gallery_inputs: Tensor | None = None
    """(candidate, *shape): granted candidates, in random order; None without the grant."""
    gallery_labels: Tensor | None = None
    """(candidate,): class numbers; None without the grant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(ByReading):
    """Everything known to the attacker: a batch of readings (observed updates), taken at an interception point under
    the same weights.

    Fields from `description` to `mates_labels` keep their defaults unless the cell's knowledge or grants fill them.
    Without a grant, no field holds a victim's example or label. No field holds a batch order. Batch statistics are in
    no field except `statistics`."""

    point: Point
    """Interception point: the attacker's position in the round."""
    linked: Literal["vector", "coordinate"]
    """"vector" if a known client sent all coordinates in an update; "coordinate" if each arrived without a sender."""
    values: Tensors = field(metadata=READING)
    """Gradients, or updates in `unit`, name → (reading, observation, *shape); at `aggregate` the senders' mean."""
    weights: Tensors = field(metadata=OBSERVATION)
    """Model weights, name → (observation, *shape)."""
    rounds: tuple[int, ...] = field(metadata=OBSERVATION)
    """(observation,): number of the training round."""
    indices: tuple[int, ...] = field(metadata=READING)
    """(reading,): numbers within the cell; they key the attack's random starts."""
    model: nn.Module
    """Model in eval mode; its parameters are in `weights`."""
    kind: Kind
    """Kind of data."""
    shape: tuple[int, ...] = field(metadata=SHARED)
    """Shape of an example."""
    value_range: tuple[float, float]
    """Smallest and largest possible input value."""
    classes: int
    """Number of classes."""
    batch: int
    """B, the local batch size."""
    steps: int
    """L, the number of local steps behind a reading."""
    rate: float
    """η, the local learning rate."""
    unit: float
    """Factor from gradient units to the units of `values`: 1 for a gradient, η for a weight difference w_0 - w_L."""
    client_examples: int
    """|D_i|, the number of examples per client."""
    senders: int
    """Number of clients behind a reading: K at `aggregate`, otherwise 1."""
    public_mean: Tensor = field(metadata=SHARED)
    """(*shape): mean of `public_inputs`."""
    public_inputs: Tensor = field(metadata=SHARED)
    """(example, *shape): the public split, or draws from the granted distribution (`bench.answer.public`)."""
    public_labels: Tensor = field(metadata=SHARED)
    """(example,): class numbers; -1 if unknown."""
    description: Description | None = None
    """The defense's public description, for an adaptive attacker; None for other attackers."""
    simulator: Simulator | None = None
    """Black-box access to the defended round, for an attacker without a description; None for other attackers."""
    labels: Tensor | None = field(default=None, metadata=READING)
    """(reading, example): granted labels, sorted; None without the grant."""
    repeated_readings: int = 1
    """Number of observations per reading, each with new noise."""
    gallery_inputs: Tensor | None = field(default=None, metadata=SHARED)
    """(candidate, *shape): the readings' examples among strangers, in random order; None without the grant."""
    gallery_labels: Tensor | None = field(default=None, metadata=SHARED)
    """(candidate,): class numbers; None without the grant."""
    mates_inputs: Tensor | None = field(default=None, metadata=READING)
    """(reading, example - 1, *shape): known examples behind a reading, all but the first; None without the grant."""
    mates_labels: Tensor | None = field(default=None, metadata=READING)
    """(reading, example - 1): class numbers; None without the grant."""
    momentum: float = 0.0
    """Momentum in the client's SGD (`bench.own` only)."""
    weight_decay: float = 0.0
    """Weight decay of the client's optimizer (`bench.own` only)."""
    adam: AdamRule | None = None
    """The client's Adam or AdamW, in place of SGD (`bench.own` only); None: SGD."""
    ragged: bool = False
    """True if each epoch over `client_examples` ends with a smaller batch (`bench.own` only)."""
    statistics: Tensors | None = field(default=None, metadata=READING)
    """Running statistics of BatchNorm after the client's steps, name of the buffer → (reading, channel); None: not
    sent. The model's buffers hold the values of BatchNorm before the client's steps."""

    @staticmethod
    def joined(readings: Sequence["Reading"]) -> tuple["Reading", tuple[tuple[int, ...], ...]]:
        """Join the readings (observed updates) from several cells (experiments) in a single batch, for a common attack;
        return the batch, and each cell's positions in the batch.

        Readings are ordered by `indices`, then by cell, so the first readings from all cells come first. Fields without
        a reading axis must be equal in all cells."""
        whole = replace(
            readings[0],
            **{
                name: _concatenated([getattr(each, name) for each in readings]) for name, _ in readings[0]._row_fields()
            },
        )
        cells = [cell for cell, reading in enumerate(readings) for _ in reading.indices]
        order = sorted(range(len(cells)), key=lambda row: (whole.indices[row], cells[row]))
        rows = tuple(tuple(at for at, row in enumerate(order) if cells[row] == cell) for cell in range(len(readings)))
        return whole.of(order), rows

    @property
    def stepwise(self) -> bool:
        """True if the reading is not a mean of gradients at the given weights, because the client uses several local
        steps, or Adam."""
        return self.steps > 1 or self.adam is not None

    @property
    def examples(self) -> int:
        """Number of examples behind each reading (observed update), over all local steps and senders."""
        if self.ragged:
            return sum(self.batches)
        return self.point.examples(batch=self.batch, steps=self.steps, senders=self.senders)

    @property
    def unknown(self) -> int:
        """Number of examples behind each reading (observed update) that the attacker does not know."""
        return self.examples if self.mates_inputs is None else 1

    @property
    def batches(self) -> tuple[int, ...]:
        """Number of examples in each local step, for a single client."""
        if not self.ragged:
            return (self.point.examples(batch=self.batch, steps=self.steps, senders=1) // self.steps,) * self.steps
        whole, rest = divmod(self.client_examples, self.batch)
        epoch = (self.batch,) * whole + ((rest,) if rest else ())
        return tuple(islice(cycle(epoch), self.steps))

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits that a cell (an experiment) sets for its attack."""

    evaluations: int
    """Objective evaluations per reading, restarts included."""
    chunk: int = 32
    """Number of readings attacked at once."""
    traced: int = TRACED
    """Number of readings, from the first, whose trajectory is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction(ByReading):
    """An attack's result: the examples behind each reading (observed update), in any order."""

    inputs: Tensor = field(metadata=READING)
    """(reading, example, *shape): inputs as optimised, not clipped."""
    labels: Tensor = field(metadata=READING)
    """(reading, example): class numbers; -1 if the attack names none."""
    loss: Tensor = field(metadata=READING)
    """(reading,): final value of the attack's objective."""
    evaluations: Tensor = field(metadata=READING)
    """(reading,): number of objective evaluations used."""
    outer: Tensor = field(metadata=READING)
    """(reading,): number of iterations, as the attack's paper counts them."""
    restarts: Tensor = field(metadata=READING)
    """(reading,): number of restarts used."""
    status: tuple[Status, ...] = field(metadata=READING)
    """(reading,): "ok", "diverged" or "nan" for each attacked reading."""
    history: tuple[tuple[int, tuple[float, ...]], ...] = field(default=(), metadata=MARK)
    """Loss history: pairs (evaluation count, least losses so far (reading,))."""
    trajectory: Tensor | None = field(default=None, metadata=MARK)
    """(mark, reading, example, *shape): examples at each mark in `history`, for the first readings; None if absent."""
    certificate: Tensor | None = field(default=None, metadata=READING)
    """(reading,) in [0, 1]: share of examples that the attack proves right without the truth; None without a proof."""
    named: Tensor | None = field(default=None, metadata=READING)
    """(reading, candidate): gallery numbers that the attack names, as many as examples. A single example has a ranked
    list, best first. None without names."""
    notes: tuple[str, ...] = field(default=(), metadata=SHARED)
    """The attack's departures from its paper, for the record."""
