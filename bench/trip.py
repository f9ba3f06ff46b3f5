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
    """Base class for dataclasses whose tensors hold values of many readings (observed updates), a reading per position
    on an axis. The method `of` selects readings, in every field whose metadata names this axis (`READING` or
    `MARK`)."""

    def of(self, rows: Sequence[int]) -> Self:
        """Return a copy with only the readings (observed updates) at the positions `rows`, in this order."""
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
    """Return `tensors`, name → (1, *shape), repeated `count` times along the first axis, without a copy: name →
    (`count`, *shape)."""
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
    """The true examples behind the readings (observed updates) in a cell (an experiment), known to the harness only. A
    sender is a client whose update enters a reading; a step is a local step."""

    inputs: Tensor
    """(reading, sender, step, example, *shape): inputs in [0, 1]."""
    labels: Tensor
    """(reading, sender, step, example): class numbers."""
    indices: Tensor
    """(reading, sender, step, example): positions in the training split."""
    clients: tuple[tuple[int, ...], ...]
    """(reading, sender): numbers of the clients whose updates the reading combines: a round's K clients at point
    `aggregate`, a single client at other points."""

    def __len__(self) -> int:
        return len(self.clients)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Distribution of a defense's additive noise, as an attacker knows it: the observed update is the simulated update
    (the output of `Description.simulate`) plus this noise."""

    law: Literal["gaussian", "laplace"] = "gaussian"
    """The noise's distribution in each coordinate."""
    variance: float = 0.0
    """Variance in squared gradient units, as a mean over coordinates; 0 without noise."""
    variances: Mapping[str, Tensor] | None = None
    """Each coordinate's variance if they differ, name → a tensor that broadcasts to (*shape); None if equal."""
    bound: bool = False
    """True if the variances are upper bounds; attackers then estimate the true values from the reading."""

    def times(self, factor: float) -> "Noise":
        """Return the distribution of this noise if the update is multiplied by `factor`: all variances times
        `factor`²."""
        square = factor**2
        each = self.variances and {name: square * value for name, value in self.variances.items()}
        return replace(self, variance=square * self.variance, variances=each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Distribution of a random defense's message, if each coordinate can take only a few values, such as 0 or the value
    itself: these values with their probabilities. Coordinates are independent. Attackers compute likelihoods from the
    distribution."""

    values: Tensors
    """Possible values, name → (outcome, row, *shape); a row is a client's or an example's tensor."""
    chances: Tensors
    """Probability of each value, name → (outcome, row, *shape); the sum over outcomes is 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """An attacker's guesses of the examples in a local step: inputs, class probabilities, and the weights at which
    gradients are computed. A row is a guessed batch."""

    inputs: Tensor
    """(row, example, *shape): guessed inputs."""
    targets: Tensor
    """(row, example, class): guessed class probabilities."""
    weights: Tensors
    """Model weights, name → (*shape), or (row, *shape) if rows have different weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamRule:
    """Options for a client's optimizer Adam or AdamW, as in `torch.optim`. The running means (moments) are zero before
    the local training."""

    betas: tuple[float, float] = (0.9, 0.999)
    """Decay factors for two running means: gradients, and squared gradients."""
    eps: float = 1e-8
    """Term added to the denominator, against a division by zero."""
    decoupled: bool = False
    """True for AdamW: weight decay acts on the weights, not through the gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRule:
    """Options of a client's local training beyond learning rate, momentum and weight decay, such as a schedule, FedProx
    or gradient clipping. Attacks repeat these options in simulated local steps."""

    nesterov: bool = False
    """True for Nesterov's momentum, as in `torch.optim.SGD`."""
    schedule: tuple[float, ...] = ()
    """(step,): each step's learning rate, divided by the reading's `rate`; empty: a constant rate."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """Parameter's name → factor of its learning rate; a missing name has 1."""
    decays: Mapping[str, float] = field(default_factory=dict)
    """Parameter's name → weight decay, in place of the reading's `weight_decay`."""
    proximal: float = 0.0
    """μ, the weight of FedProx's term μ/2 ‖w - w_0‖² in the loss."""
    clip: float | None = None
    """Largest L2 length of a step's mean gradient, as in `torch.nn.utils.clip_grad_norm_`; None: no clipping."""
    kept: bool = False
    """True for a loop without `zero_grad()`: each step uses the sum of all gradients so far."""

    def decay(self, name: str, default: float) -> float:
        """Return the weight decay of the parameter `name`: its own (`decays`), or otherwise `default`, the reading's
        `weight_decay`."""
        return self.decays.get(name, default)


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
        """Distribution of the additive noise that the defense puts on an update: a reading is the output of `simulate`
        for the true examples plus this noise."""

    @property
    def additive(self) -> bool:
        """True if additive noise (`noise`) is the defense's only randomness; repeated observations with the same
        victims may then be averaged."""

    @property
    def changes(self) -> bool:
        """False if the defense leaves every reading as it is."""

    @property
    def inside_steps(self) -> bool:
        """True if the defense acts inside a local step, at stage `example` or `step`; a simulation then needs the
        gradient of each step."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the limits of this description, for the record; attacks do not use the remarks. A line names a
        transform (function on tensors) of the defense that is not described exactly, and the rule by which random draws
        are read from the reading (zeros show a mask, for example)."""

    @property
    def ordered(self) -> bool:
        """True if an attacker must also find the client and local step of each example: a simulated reading changes if
        two clients exchange an example, as under a clip on each client's update."""

    @property
    def senders(self) -> int:
        """Number of clients whose updates a reading (an observed update) combines."""

    @property
    def mixed(self) -> bool:
        """True if the victim trained on convex mixtures between two examples and between their labels (mixup); the
        pairs and the mixing ratios are secret."""

    def mixing(self, size: int, count: int, seed: int) -> Tensor:
        """Draw random mixing matrices, as mixup would mix a client's batch of `size` examples: `count` matrices, (draw,
        mixture, original), each row with the shares of the originals in a mixture. `seed` determines the draws. Only
        for a description with `mixed`."""

    @property
    def hard(self) -> bool:
        """True if the defense makes hard decisions (a coordinate kept or not, a sign, a limit). The derivative of the
        simulated reading is then zero or useless, and a search by derivatives needs the description from `softened`."""

    @property
    def clients(self) -> "Clients | None":
        """Description of a single client's quantised message, for a reading that is the mean over several clients'
        messages. Attacks use this to split the mean into the clients' messages. None for any other reading."""

    @property
    def single(self) -> "Description | None":
        """Description of the first client's message alone, for a reading that is a mean over several clients. An
        attacker who knows the other clients' updates subtracts their messages from the mean (method `message`), and
        attacks the rest by this description. None for other readings, and if the other clients' messages cannot be
        computed from their updates, as under noise."""

    def message(self, others: Tensors, observed: Tensors) -> dict[str, Tensor]:
        """Subtract the other clients' messages from a mean over clients: return the first client's message, name → (1,
        *shape), in gradient units. The messages are computed from the other clients' known updates. Coordinates within
        rounding error of 0 become 0. Allowed only if `single` is not None.

        - `others`: the other clients' known updates, name → (client - 1, *shape).
        - `observed`: the mean, name → (1, *shape)."""

    def softened(self, width: float) -> "Description":
        """Return a description with smooth transitions in place of hard decisions (such as a sign), for a search by
        derivatives. `width` > 0 is a transition's width relative to the values; `width` → 0 gives the hard
        decisions."""

    def simulate(
        self, per_example: Tensors, observed: Tensors, candidates: Candidates | None = None
    ) -> dict[str, Tensor]:
        """Return the reading (observed update) that the defense would make from candidates (guessed examples), without
        `noise`: name → (reading, *shape).

        - `per_example`: the candidates' gradients, name → (reading, example, *shape).
        - `observed`: the attacked reading itself, name → (reading, *shape). It may show the defense's random draws,
          such as a mask by its zeros.
        - `candidates`: the candidates' inputs and labels; needed if `inside_steps`, otherwise None."""

    def with_mates(self, mates: Tensors, observed: Tensors, behind: Candidates) -> Given:
        """Return a simulator of readings (observed updates) for an attacker who knows all examples behind the reading
        except the first (the known examples are the mates). The simulator takes the gradients of guesses at the first
        example, name → (row, *shape), and the guesses. Its result is a simulated reading for each guess, name → (row,
        *shape). Allowed for a single local step only.

        - `mates`: the known examples' gradients, name → (1, example - 1, *shape).
        - `behind`: the known examples' inputs and labels.
        - `observed`: the attacked reading, name → (1, *shape)."""

    def local_steps(self, observed: Tensors) -> StepDefense:
        """Return the part of the defense that acts inside local steps, as a function for attacks that simulate the
        steps one by one. The function takes the step's number, each example's gradient, name → (row, example, *shape),
        and the examples. The result is the defended mean gradient of the step, name → (row, *shape); a row is a client
        behind a reading. Calls must follow the order of the steps. `observed` is the attacked reading, name → (reading,
        *shape)."""

    def sent(self, updates: Tensors, observed: Tensors) -> dict[str, Tensor]:
        """Simulate the part of the defense that acts after local training: return the reading (observed update) from
        the clients' finished `updates`, name → (reading, client, *shape). The result, name → (reading, *shape), is
        without the defense's additive noise. `observed` is the attacked reading itself, name → (reading, *shape)."""

    def with_clients(self, others: Tensors, observed: Tensors) -> Callable[[Tensors], dict[str, Tensor]]:
        """Return a simulator of readings (observed updates) for an attacker who knows the updates of all clients except
        the first. The simulator takes guesses at the first client's update and returns a simulated reading for each
        guess, both name → (row, *shape).

        - `others`: the other clients' updates, name → (1, client - 1, *shape); empty for a single client.
        - `observed`: the attacked reading, name → (1, *shape)."""

    def outcomes(self, updates: Tensors) -> Outcomes | None:
        """Return the few values that the random defense may send for each coordinate in the clients' `updates`, name →
        (client, *shape), with their probabilities, in gradient units; a likelihood follows from these. None if a
        coordinate may take more than a few values, or if the reading is not just the mean of the messages."""

    def log_likelihood(self, simulated: Tensors, observed: Tensors) -> Tensor | None:
        """Return how likely the `observed` readings are, given the `simulated` readings of candidates: log-likelihood
        (reading,), ≤ 0 and up to a constant. A search for examples maximises the value. Both arguments are name →
        (reading, *shape). None for Gaussian and Laplace noise, whose likelihood follows from `noise`."""

    def log_density(self, simulated: Tensors, observed: Tensors) -> Tensor | None:
        """Return the exact log density of the `observed` readings, given the `simulated` readings of candidates:
        (reading,), up to a constant common to all candidates. An attack that is granted a list of candidates ranks the
        list by this value; a search for examples uses `log_likelihood`. Both arguments are name → (reading, *shape).
        None if the density follows from `noise`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Description of a single client's quantised message behind a reading that is the mean over clients. In a message,
    each coordinate is a scale τ > 0, the tensor's, times an integer. Attacks split the mean into such messages."""

    values: Literal["signs", "ternary", "levels"]
    """Possible integers: -1 and 1 (`signs`), also 0 (`ternary`), or any (`levels`)."""
    alone: Description
    """Description for a single client's message; the readings may hold only some tensors."""


class Simulator(Protocol):
    """The defended round as a black box, for attackers who know no description of the defense: a call takes guessed
    examples and returns the readings (observed updates) that the round would give. The number of calls is limited."""

    @property
    def budget(self) -> int:
        """Largest number of simulated rounds for all calls together. A call counts once for each observation (repeated
        report) and each reading's candidates."""

    @property
    def used(self) -> int:
        """Number of simulated rounds so far; a repeated call with equal arguments costs no more."""

    @property
    def seconds(self) -> float:
        """Time spent in simulations, in seconds."""

    def __call__(self, inputs: Tensor, labels: Tensor, draw: int) -> dict[str, Tensor]:
        """Run the defended round on candidates (guessed examples), and return the simulated readings, name → (reading,
        observation, *shape), in gradient units.

        - `inputs` (reading, example, *shape), `labels` (reading, example): the candidates, with their class numbers.
        - `draw`: number for the defense's random draws; another number gives other draws. The draws in the victims'
          readings are independent.

        Raises `PluginError` beyond the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Everything known to an attacking server before a round, to choose the round's weights (`Attack.craft`). No field
    holds a victim's update, example or label, except a granted gallery: candidates with the victims' examples among
    them."""

    model: nn.Module
    """Model in eval mode; its parameters are in `weights`."""
    weights: Tensors
    """The weights that an honest server would send, name → (*shape)."""
    kind: Kind
    """Kind of data: images, table rows or texts."""
    shape: tuple[int, ...]
    """Shape of an example."""
    classes: int
    """Number of classes."""
    steps: int
    """L, the number of local steps behind a reading (an observed update)."""
    examples: int
    """Number of examples behind each reading, over all local steps and clients."""
    public_inputs: Tensor
    """(example, *shape): public examples, or random draws in their place (`bench.answer.public`)."""
    public_labels: Tensor
    """(example,): class numbers for `public_inputs`; -1 if unknown."""
    batch: int
    """B, the number of examples in a client's local batch."""
    rate: float
    """η, the clients' learning rate."""
    gallery_inputs: Tensor | None = None
    """(candidate, *shape): granted candidates, in random order; None without the grant."""
    gallery_labels: Tensor | None = None
    """(candidate,): class numbers for `gallery_inputs`; None without the grant."""
    rounds: int = 1
    """Number of rounds, of the same examples, for which the server chooses weights."""
    seen: "Reading | None" = None
    """Readings (observed updates) of the rounds before, of the same examples under the weights of these rounds; None in
    the first round."""

    @property
    def finished(self) -> int:
        """Number of earlier rounds with the same examples under weights of this server; 0 in the first round."""
        return 0 if self.seen is None else len(self.seen.rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(ByReading):
    """Everything known to the attacker: a batch of readings (observed updates) from an interception point at equal
    weights, with the federated setting, public data and granted knowledge.

    Fields from `description` to `mates_labels` keep their defaults unless the cell (experiment) grants them. Without a
    grant, no field holds a victim's example or label, or a batch's order."""

    point: Point
    """Interception point: the attacker's position in the round."""
    linked: Literal["vector", "coordinate"]
    """"vector" if the attacker knows which coordinates came from the same client; "coordinate" if each coordinate
    arrived without a sender (shuffled)."""
    values: Tensors = field(metadata=READING)
    """Observed gradients, or updates in units given by `unit`, name → (reading, observation, *shape); at `aggregate`
    the mean over the senders."""
    weights: Tensors = field(metadata=OBSERVATION)
    """Model weights, name → (observation, *shape)."""
    rounds: tuple[int, ...] = field(metadata=OBSERVATION)
    """(observation,): training round in which each observation was made."""
    indices: tuple[int, ...] = field(metadata=READING)
    """(reading,): each reading's number within the cell (experiment), used in the keys for random draws."""
    model: nn.Module
    """Model in eval mode; its parameters are in `weights`."""
    kind: Kind
    """Kind of data: images, table rows or texts."""
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
    """Number of clients whose updates a reading combines: K at `aggregate` (without the attacker's dummies), otherwise
    1."""
    public_mean: Tensor = field(metadata=SHARED)
    """(*shape): mean of `public_inputs` over the examples."""
    public_inputs: Tensor = field(metadata=SHARED)
    """(example, *shape): public examples, or random draws in their place (`bench.answer.public`)."""
    public_labels: Tensor = field(metadata=SHARED)
    """(example,): class numbers for `public_inputs`; -1 if unknown."""
    description: Description | None = None
    """The defense's public description, for an adaptive attacker; None for other attackers."""
    descriptions: tuple[Description, ...] = field(default=(), metadata=OBSERVATION)
    """(observation,): description in each observation's round, for observations from several rounds of a training;
    empty: `description` holds for all."""
    simulator: Simulator | None = None
    """Black-box access to the defended round, for an attacker with the knowledge `black-box`; None for other
    attackers."""
    labels: Tensor | None = field(default=None, metadata=READING)
    """(reading, example): granted labels, sorted; None without the grant."""
    repeated_readings: int = 1
    """Number of observations per reading, each with new noise."""
    gallery_inputs: Tensor | None = field(default=None, metadata=SHARED)
    """(candidate, *shape): granted candidates, the readings' true examples among strangers, in random order; None
    without the grant."""
    gallery_labels: Tensor | None = field(default=None, metadata=SHARED)
    """(candidate,): class numbers for `gallery_inputs`; None without the grant."""
    mates_inputs: Tensor | None = field(default=None, metadata=READING)
    """(reading, example - 1, *shape): known examples behind a reading, all but the first; None without the grant."""
    mates_labels: Tensor | None = field(default=None, metadata=READING)
    """(reading, example - 1): class numbers for `mates_inputs`; None without the grant."""
    momentum: float = 0.0
    """Momentum in the client's SGD; 0 except for a user's own update (`bench.own`)."""
    weight_decay: float = 0.0
    """Weight decay of the client's optimizer; 0 except for a user's own update (`bench.own`)."""
    adam: AdamRule | None = None
    """Options for the client's Adam or AdamW, for a user's own update (`bench.own`); None: SGD."""
    rule: StepRule | None = None
    """Further options of the client's local steps, for a user's own update (`bench.own`); None: no further options."""
    ragged: bool = False
    """True if each epoch over `client_examples` ends with a smaller batch; only for a user's own update
    (`bench.own`)."""
    statistics: Tensors | None = field(default=None, metadata=READING)
    """Running statistics of BatchNorm after the client's steps, name of the buffer → (reading, channel); None: not
    sent. The model's buffers hold the values of BatchNorm before the client's steps."""

    @staticmethod
    def joined(readings: Sequence["Reading"]) -> tuple["Reading", tuple[tuple[int, ...], ...]]:
        """Join the `readings` (observed updates) of several cells (experiments) in a single batch, so that an attack
        treats all in parallel. Return the batch, and for each cell its readings' positions in the batch, to split the
        result.

        The batch is ordered by a reading's number within its cell (`indices`), then by cell. Fields without a reading
        axis must be equal in all cells."""
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
    def several_rounds(self) -> bool:
        """True if the observations are from several rounds of a training, each under its round's weights."""
        return len({*self.rounds}) > 1

    @property
    def stepwise(self) -> bool:
        """True if the client uses several local steps, Adam or clipping. The reading is then no mean of gradients at
        the given weights, and an attack must simulate the steps."""
        return self.steps > 1 or self.adam is not None or (self.rule is not None and self.rule.clip is not None)

    @property
    def examples(self) -> int:
        """Number of examples behind each reading (observed update), over all local steps and senders."""
        if self.ragged:
            return sum(self.batches)
        return self.point.examples(batch=self.batch, steps=self.steps, senders=self.senders)

    @property
    def unknown(self) -> int:
        """Number of examples behind each reading (observed update) that the attacker must reconstruct: 1 if all others
        are granted (`mates_inputs`), otherwise `examples`."""
        return self.examples if self.mates_inputs is None else 1

    @property
    def batches(self) -> tuple[int, ...]:
        """Number of examples in each local step for a single client: an item for each step."""
        if not self.ragged:
            return (self.point.examples(batch=self.batch, steps=self.steps, senders=1) // self.steps,) * self.steps
        whole, rest = divmod(self.client_examples, self.batch)
        epoch = (self.batch,) * whole + ((rest,) if rest else ())
        return tuple(islice(cycle(epoch), self.steps))

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits on an attack's work in a cell (an experiment): evaluations, memory and time."""

    evaluations: int
    """Largest number of objective evaluations per reading (observed update), restarts included."""
    chunk: int = 32
    """Number of readings attacked at once, as limited by memory."""
    traced: int = TRACED
    """The first `traced` readings get a trajectory: their examples at each mark (`Reconstruction.trajectory`)."""
    seconds: float | None = None
    """Time after which a search over sets of candidates ends with its best set; None: no limit, as for every cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction(ByReading):
    """An attack's result: the reconstructed examples behind each reading (observed update), in any order, with loss,
    status and number of evaluations. Attacks by candidates also tell the picked candidates (`named`)."""

    inputs: Tensor = field(metadata=READING)
    """(reading, example, *shape): reconstructed inputs, as optimised, not clipped."""
    labels: Tensor = field(metadata=READING)
    """(reading, example): class numbers claimed by the attack; -1 for an unknown label."""
    loss: Tensor = field(metadata=READING)
    """(reading,): final value of the attack's objective."""
    evaluations: Tensor = field(metadata=READING)
    """(reading,): number of objective evaluations used."""
    outer: Tensor = field(metadata=READING)
    """(reading,): number of iterations used, as the attack's paper counts iterations."""
    restarts: Tensor = field(metadata=READING)
    """(reading,): number of restarts used."""
    status: tuple[Status, ...] = field(metadata=READING)
    """(reading,): "ok", "diverged" or "nan" (a value that is not finite) for each attacked reading."""
    history: tuple[tuple[int, tuple[float, ...]], ...] = field(default=(), metadata=MARK)
    """Loss history: a pair (evaluation count, each reading's least loss so far (reading,)) for each mark."""
    trajectory: Tensor | None = field(default=None, metadata=MARK)
    """(mark, reading, example, *shape): reconstructed examples at each mark in `history`, for the first readings
    (`Budget.traced`); None if not kept."""
    certificate: Tensor | None = field(default=None, metadata=READING)
    """(reading,) in [0, 1]: share of reconstructed examples that the attack proves right without the true examples;
    None without a proof."""
    named: Tensor | None = field(default=None, metadata=READING)
    """(reading, candidate): granted candidates (gallery) picked as true examples, by number, as many as examples behind
    the reading; -1 for no candidate. For a single example, a ranked list, best first. None if the attack picks no
    candidates."""
    notes: tuple[str, ...] = field(default=(), metadata=SHARED)
    """The attack's departures from its paper, for the record."""
