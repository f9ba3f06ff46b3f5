"""Values between the stages, in order: Victims → Reading → Reconstruction (→ `bench.scoring.score.Scores`).

Axis names in every docstring:

    reading      an observed update: a client's local step or round, or an aggregate
    observation  a repeated report on the same victims, each under its round's weights
    example      a distinct example behind a reading (type-2: 1, type-1 and type-0: B·L, aggregate: K·B·L)
    client, step      inside the federated pipeline
    candidate    an example in the granted gallery
    mark         an evaluation count with noted losses
    *shape       axes for an example, (channel, height, width) or (feature,), or for a parameter
    class        a label's class probabilities

Every tensor field in `Reading` and `Reconstruction` names its leading axes in its metadata.
"""

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
    """Base class for batches: fields with the metadata `READING` or `MARK` hold a row per reading."""

    def of(self, rows: Sequence[int]) -> Self:
        """The same batch with the chosen readings only, by position, in the order given."""
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
        if isinstance(content, Tensor):  # the first readings, at least
            return content[:, torch.tensor([row for row in rows if row < content.shape[1]], dtype=torch.long)]
        return tuple((mark, _chosen(losses, READING["axis"], rows)) for mark, losses in content)
    if isinstance(content, Tensor):
        return content[torch.tensor(rows, dtype=torch.long)]
    return tuple(content[row] for row in rows)


def _concatenated(contents: Sequence[Any]) -> Any:
    first = contents[0]
    if all(each is None for each in contents):
        return None
    if isinstance(first, Mapping):
        return {name: torch.cat([each[name] for each in contents]) for name in first}
    return torch.cat(list(contents)) if isinstance(first, Tensor) else tuple(row for each in contents for row in each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """The truth behind a cell's readings, known to the harness only."""

    inputs: Tensor
    """(reading, sender, step, example, *shape) in [0, 1]."""
    labels: Tensor
    """(reading, sender, step, example)."""
    indices: Tensor
    """(reading, sender, step, example): positions in the training split."""
    clients: tuple[tuple[int, ...], ...]
    """(reading, sender): client numbers, K senders for an aggregate and a single sender otherwise."""

    def __len__(self) -> int:
        return len(self.clients)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Distribution of a defense's additive noise in an observation, around the description's `simulate`."""

    law: Literal["gaussian", "laplace"] = "gaussian"
    """Law of each coordinate."""
    variance: float = 0.0
    """Mean over coordinates, in squared gradient units; 0 without noise."""
    variances: Mapping[str, Tensor] | None = None
    """Variance of each coordinate if they differ: name → a tensor that broadcasts to (*shape)."""
    bound: bool = False
    """True if the variances are upper bounds; attackers then estimate the true values from the reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """A local step's candidate batch, before its gradients."""

    inputs: Tensor
    """(row, example, *shape)."""
    targets: Tensor
    """(row, example, class)."""
    weights: Tensors
    """name → (*shape), or (row, *shape) if rows have different weights."""


# (local step, each example's gradient, name → (row, example, *shape), candidates) → that step's mean, (row, *shape)
StepDefense = Callable[[int, Mapping[str, Tensor], Candidates], dict[str, Tensor]]


class Description(Protocol):
    """A defense's public description: the effect on a candidate's gradient, all in gradient units.

    Attackers get the description, never the defense.  Examples are in the order clients, local steps, batch.
    """

    @property
    def noise(self) -> Noise:
        """Noise around `simulate`."""

    @property
    def additive(self) -> bool:
        """True if nothing but `noise` is random: observations on the same victims may then be averaged."""

    @property
    def inside_steps(self) -> bool:
        """True if a transform acts inside a local step, at stage example or step."""

    @property
    def ordered(self) -> bool:
        """True if exchanging examples between clients changes a simulation."""

    @property
    def senders(self) -> int:
        """Clients behind a reading."""

    @property
    def mixed(self) -> bool:
        """True if training used convex mixtures of examples and labels, with unknown partners and shares."""

    def simulate(
        self, per_example: Tensors, observed: Tensors, candidates: Candidates | None = None
    ) -> dict[str, Tensor]:
        """Candidates' gradients, (reading, example, *shape), → the expected reading, (reading, *shape).

        `observed` (reading, *shape) is the reading itself.  Equals `local_steps` followed by `sent`.
        """

    def local_steps(self, observed: Tensors) -> StepDefense:
        """The defense inside a client's local steps; rows are the clients in each reading."""

    def sent(self, updates: Tensors, observed: Tensors) -> dict[str, Tensor]:
        """Clients' updates, (reading, client, *shape), → the expected reading, (reading, *shape)."""

    def log_likelihood(self, simulated: Tensors, observed: Tensors) -> Tensor | None:
        """(reading,), at most 0, up to a constant; None for Gaussian and Laplace noise."""

    def log_density(self, simulated: Tensors, observed: Tensors) -> Tensor | None:
        """Exact density (reading,), any sign, up to a constant for all candidates; None if `noise` gives the same."""


class Simulator(Protocol):
    """The defended round as a black box, for attackers without a description."""

    @property
    def budget(self) -> int:
        """Simulations allowed in total; each observation of a candidate costs a simulation."""

    @property
    def used(self) -> int:
        """Simulations so far; a repeated call costs no more."""

    @property
    def seconds(self) -> float:
        """Time spent in simulations."""

    def __call__(self, inputs: Tensor, labels: Tensor, draw: int) -> dict[str, Tensor]:
        """Candidates → their readings, name → (reading, observation, *shape) in gradient units.

        `inputs` (reading, example, *shape), `labels` (reading, example).  `draw` numbers the defense's draws, all
        independent from the victims' draws.  Raises `PluginError` beyond the budget.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(ByReading):
    """The attacker's whole knowledge: a batch with readings taken at a point, under the same weights.

    Fields from `description` to `gallery_labels` keep their defaults unless the cell's knowledge or grants fill them.
    Without a grant, no field holds a victim's example or label.  No field holds a batch statistic or a batch order.
    """

    point: Point
    """Observation point in the pipeline."""
    linked: Literal["vector", "coordinate"]
    """"vector" if all coordinates in an update share a known sender; "coordinate" if each arrived without a sender."""
    values: Tensors = field(metadata=READING)
    """name → (reading, observation, *shape): gradient, or update in `unit`; at `aggregate` the mean over `senders`."""
    weights: Tensors = field(metadata=OBSERVATION)
    """name → (observation, *shape)."""
    rounds: tuple[int, ...] = field(metadata=OBSERVATION)
    """(observation,): training rounds."""
    indices: tuple[int, ...] = field(metadata=READING)
    """(reading,): numbers within the cell, which key the attack's starts."""
    model: nn.Module
    """Architecture in eval mode; the weights are in `weights`."""
    kind: Kind
    """Data kind."""
    shape: tuple[int, ...] = field(metadata=SHARED)
    """Shape per example."""
    value_range: tuple[float, float]
    """Least and largest input value."""
    classes: int
    """Class count."""
    batch: int
    """B, local batch size."""
    steps: int
    """L, local steps behind a reading."""
    rate: float
    """η, local learning rate."""
    unit: float
    """A gradient unit in sent units: 1 for a gradient, η for a weight difference w_0 - w_L."""
    client_examples: int
    """|D_i|, examples per client."""
    senders: int
    """Clients behind a reading: K at `aggregate`, else 1."""
    public_mean: Tensor = field(metadata=SHARED)
    """(*shape): mean over `public_inputs`."""
    public_inputs: Tensor = field(metadata=SHARED)
    """(example, *shape): public split, or draws from the granted law (`bench.answer.public`)."""
    public_labels: Tensor = field(metadata=SHARED)
    """(example,), -1 if unknown."""
    description: Description | None = None
    """Public description, for an adaptive attacker."""
    simulator: Simulator | None = None
    """Black-box access, for an attacker without a description."""
    labels: Tensor | None = field(default=None, metadata=READING)
    """(reading, example): granted labels, sorted."""
    repeated_readings: int = 1
    """Observations per reading under fresh noise draws."""
    gallery_inputs: Tensor | None = field(default=None, metadata=SHARED)
    """(candidate, *shape): examples behind all readings, among strangers, in a keyed order."""
    gallery_labels: Tensor | None = field(default=None, metadata=SHARED)
    """(candidate,)."""
    momentum: float = 0.0
    """Momentum in the client's SGD (`bench.own` only)."""
    weight_decay: float = 0.0
    """Weight decay in the client's SGD (`bench.own` only)."""
    ragged: bool = False
    """True if epochs over `client_examples` end with a smaller batch (`bench.own` only)."""

    @staticmethod
    def joined(readings: Sequence["Reading"]) -> tuple["Reading", tuple[tuple[int, ...], ...]]:
        """Several cells' readings as a single batch, and each cell's rows in the batch.

        Rows are in the order of `indices`, then of cells: the first readings of all cells come first.  All cells need
        equal shared fields: equal `reading.of(())`.
        """
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
    def examples(self) -> int:
        """Examples behind each reading, over all local steps and senders."""
        if self.ragged:
            return sum(self.batches)
        return self.point.examples(batch=self.batch, steps=self.steps, senders=self.senders)

    @property
    def batches(self) -> tuple[int, ...]:
        """Examples in each local step, for a single client."""
        if not self.ragged:
            return (self.point.examples(batch=self.batch, steps=self.steps, senders=1) // self.steps,) * self.steps
        whole, rest = divmod(self.client_examples, self.batch)
        epoch = (self.batch,) * whole + ((rest,) if rest else ())
        return tuple(islice(cycle(epoch), self.steps))

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """An attack's resources per cell."""

    evaluations: int
    """Objective evaluations per reading, restarts included."""
    chunk: int = 32
    """Readings in memory at once."""
    traced: int = TRACED
    """First readings with a kept trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconstruction(ByReading):
    """An attack's result: the examples behind each reading, in any order."""

    inputs: Tensor = field(metadata=READING)
    """(reading, example, *shape), as optimised, not clipped."""
    labels: Tensor = field(metadata=READING)
    """(reading, example), -1 if unnamed."""
    loss: Tensor = field(metadata=READING)
    """(reading,): final objective."""
    evaluations: Tensor = field(metadata=READING)
    """(reading,): objective evaluations used."""
    outer: Tensor = field(metadata=READING)
    """(reading,): iterations as the paper counts them."""
    restarts: Tensor = field(metadata=READING)
    """(reading,): restarts used."""
    status: tuple[Status, ...] = field(metadata=READING)
    """(reading,)."""
    history: tuple[tuple[int, tuple[float, ...]], ...] = field(default=(), metadata=MARK)
    """Pairs (mark, least losses so far (reading,)); a mark is an evaluation count."""
    trajectory: Tensor | None = field(default=None, metadata=MARK)
    """(mark, reading, example, *shape): the examples with those losses, for the first readings at least."""
    certificate: Tensor | None = field(default=None, metadata=READING)
    """(reading,) in [0, 1]: share proved correct by the attack itself, without the truth; None without a proof."""
    named: Tensor | None = field(default=None, metadata=READING)
    """(reading, candidate): gallery numbers named by the attack, as many as examples; for a single example a ranked
    list, best first; None if unnamed."""
    notes: tuple[str, ...] = field(default=(), metadata=SHARED)
    """Departures from the paper."""
