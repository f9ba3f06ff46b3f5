"""A defense: a sequence of transforms for each stage of the pipeline.

A transform is a pure function of tensors, state and context, for any number of leading axes (`context.lead`): (client,
example, *shape) at stages `input` and `example`; (client, *shape) at `step`, `client`, `exchange` and `server`;
(*shape) at `aggregate`.

At stage `input` the tensors are a local step's training data: `inputs` (client, example, *shape) in [0, 1], and
`targets` (client, example, class), class probabilities.  A transform may mix an example with its successor in the batch
(the last with the first) and with no other example: at type-2 these two are the truth.  Each round draws a new batch
order, so the successor is random.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from torch import Tensor, nn

from bench.defenses.accounting.mechanism import Mechanism, Reports
from bench.points import Stage

Tensors = Mapping[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]
State = Mapping[str, Tensor]
Law = Literal["gaussian", "laplace"]  # of additive noise
# What a reading shows of an earlier transform's output: which of its coordinates are zero; its tensors, each up to a
# factor; or all of it.
Shown = Literal["zeros", "directions", "values"]


class Draws(Protocol):
    """Random numbers for a transform: keyed row by row (a row: one client's or example's tensors), or from a device's
    generator."""

    def normal(self, name: str, like: Tensor) -> Tensor: ...
    def uniform(self, name: str, like: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Public:
    """Knowledge shared by everyone before a training or an attack begins."""

    model: nn.Module
    weights: Tensors
    """Initial weights, name → (*shape)."""
    inputs: Tensor
    """Public examples (example, *shape) in [0, 1]; no client holds them."""
    labels: Tensor
    """Labels (example,)."""
    classes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Federated setting, as a defense may know it."""

    clients: int
    """N."""
    per_round: int
    """K, clients in a round."""
    rounds: int
    """T."""
    steps: int
    """L, local steps."""
    batch: int
    """B."""
    client_examples: int
    """D_i|."""
    rate: float
    """η."""
    weight_step: float = 1.0
    """Weight change per unit of a client's update: 1 for a difference of weights, η for a gradient."""
    colluders: float = 0.0
    """Share of a client's neighbours that collude with the attacker; enters ε."""
    public: Public | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """Inputs to a client's gradients."""

    model: nn.Module
    weights: Tensors
    """The client's weights, name → (client, *shape)."""
    inputs: Tensor
    """(client, example, *shape)."""
    labels: Tensor
    """(client, example)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Position in the training at which a transform acts.  A description fills the optional fields for candidates if
    possible."""

    lead: int
    """Number of leading axes."""
    stage: Stage
    round: int
    """t, from 0."""
    step: int
    """Local step, from 0."""
    setting: Setting
    draws: Draws
    weights: Tensors | None = None
    """Weights at the start of the round, name → (*shape)."""
    norms: Tensors | None = None
    """At stage `step` only: norms after stage `example`, name → (client, example)."""
    examples: Tensors | None = None
    """At stage `step`, if the transform `needs_examples`: gradients, name → (client, example, *shape)."""
    local: Local | None = None
    """At stage `example` only: inputs to the gradients."""
    colluders: float = 0.0
    """Share of a client's neighbours that tell the attacker their secrets; a transform then leaves only the noise they
    cannot remove."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Effect on rows, determined by the norms: a factor for each tensor, plus N(0, deviation²) on every coordinate."""

    factors: Tensors
    """Name → (row axes); 1 for an absent name."""
    deviation: Tensor | float = 0.0
    """A number, or (row axes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedNoise:
    """Independent noise with mean 0; variances in squared units of the tensors."""

    law: Law = "gaussian"
    variance: float | Tensors
    """Per coordinate: a number, or name → a tensor that broadcasts to (*shape)."""
    bound: bool = False
    """The true variance is secret, and at most `variance`."""
    of_mean: float | None = None
    """Variance per coordinate of the clients' mean, if not `variance` over the number of clients."""


class Transform:
    """One step of a defense.  Concrete transforms are frozen dataclasses, checked in `__post_init__`.

    The harness calls `update`.  A transform without memory defines `apply`; a transform with memory defines `initial`
    and `update`.  Adaptive attackers know the code and not the draws.  `expected`, `simulate`, `noise` and
    `log_likelihood` describe more.
    """

    random: ClassVar[bool] = False
    batchwise: ClassVar[bool] = False  # an example's result depends on the others of its batch
    mixes_examples: ClassVar[bool] = False  # at `input`: convex mixtures of a batch's examples, and labels
    mixes_clients: ClassVar[bool] = False  # a client's result depends on the others of its round
    needs_examples: ClassVar[bool] = False  # at stage `step`: it looks at each example's gradient
    unlinks: ClassVar[bool] = False  # after it nobody can tell which coordinates belong to one client
    owner: Literal["server", "client"] = "server"  # of the state: one for all, or one for each client
    reads: ClassVar[Shown] = "values"  # what `simulate` reads off the reading

    def __init_subclass__(cls) -> None:
        if cls.apply is Transform.apply and cls.update is Transform.update:
            raise TypeError(f"{cls.__name__} does nothing: define apply, or initial and update")

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        """Transformed tensors: same names, shapes and dtypes; inputs untouched.  With memory: the first round."""
        shapes = {name: tuple(value.shape[context.lead :]) for name, value in tensors.items()}
        rows = len(next(iter(tensors.values()))) if context.lead else 1
        return self.update(tensors, self.initial_of(shapes, rows), context)[0]

    def initial(self, shapes: Shapes) -> State:
        """State before round 0, for the server or a single client; empty without memory."""
        del shapes
        return {}

    def update(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """Transformed tensors, and the next state; a client state has the client axis first."""
        return self.apply(tensors, context), state

    @property
    def keeps(self) -> tuple[Shown, ...]:
        """Properties of the input still visible in the output: a clip keeps zeros and directions, noise keeps none."""
        return ()

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State] | None:
        """A candidate's gradient after the transform, averaged over its draws, and the next state; differentiable in
        `tensors`.

        `context.draws` gives zeros as normals and 1/2 as uniforms.  None: the harness runs `update` with its draws off
        (`bench.federated.straight_through`), with the identity's derivative if the true derivative is useless.
        """
        del tensors, state, context
        return None

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor] | None:
        """`expected`, if the reading shows this very row: `observed`.  At the truth equal to `apply`, for every draw.

        Called only if neither a mean over rows nor a later transform hides the properties in `reads`.  Differentiable
        in `tensors`.  None: the reading reveals no draws, and `expected` applies.
        """
        del tensors, observed, context
        return None

    def log_likelihood(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor | None:
        """log p(`observed`), with `tensors` from `expected`, up to a constant, at most 0: (row,).  None: the likelihood
        under `noise`."""
        del tensors, observed, context
        return None

    def log_density(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor | None:
        """log p(`observed`), with `tensors` from `expected`, up to a constant independent of the candidate, any sign:
        (row,).

        Ranks candidates; `log_likelihood` guides a search by its derivative.  None: `noise` gives the exact density,
        unless its variance is a bound.
        """
        return self.log_likelihood(tensors, observed, context)

    def by_norms(self, norms: Tensors, context: Context) -> Scaling | None:
        """Effect of `apply` on rows with these norms, name → (row axes), if the norms determine the effect; training
        then forms no example gradients.  None: the tensors are needed."""
        del norms, context
        return None

    def update_by_norms(self, norms: Tensors, state: State, context: Context) -> tuple[Scaling, State] | None:
        """`update`, by norms."""
        scaling = self.by_norms(norms, context)
        return None if scaling is None else (scaling, state)

    def noise(self, context: Context, state: State) -> AddedNoise | None:
        """Noise on every coordinate around `expected`; None without noise.

        `state` is the state before the transform.  Draws recovered by `simulate`, and other randomness, are no noise.
        """
        del context, state
        return None

    def variance_at(self, tensors: Tensors, context: Context) -> Tensors | None:
        """Exact noise variance for these `tensors`, name → (*lead, *shape); None: `noise` has the variance.

        For noise that depends on the tensors, if `noise` gives only a bound: the contracts then test this variance
        exactly.
        """
        del tensors, context
        return None

    def initial_of(self, shapes: Shapes, clients: int) -> State:
        """State before round 0: the server's, or `clients` copies with the client axis first."""
        state = self.initial(shapes)
        if self.owner == "server":
            return state
        return {key: value.expand(clients, *value.shape).clone() for key, value in state.items()}


StageTransforms = Mapping[Stage, Sequence[Transform]]


class Defense(ABC):
    """A choice of transforms and parameters.  Concrete defenses are frozen dataclasses.

    `stages` lists the possible stages (for `bench list`); the contracts check that the defense acts at no other stage.
    """

    reference: ClassVar[str]
    stages: ClassVar[tuple[Stage, ...]]

    @abstractmethod
    def transforms(self, setting: Setting) -> StageTransforms:
        """Transforms for each stage, in order.  Raises ValueError for an unsupported setting."""

    def mechanism(self, setting: Setting) -> Mechanism | Reports | None:
        """Noise, or locally private reports, as an accountant reads them.  None: no calibrated noise, and no ε."""
        del setting
        return None
