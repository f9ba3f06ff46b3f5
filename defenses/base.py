"""What a defense is: for each stage of the pipeline, a sequence of transforms.

A transform is a pure function of tensors, state and context.  It is written for any number of leading axes
(`context.lead`): (client, example, *shape) at stages `input` and `example`, (client, *shape) at `step`, `client`,
`exchange` and `server`, and (*shape) at `aggregate`.

At stage `input` the tensors are two, what a local step's gradients are computed on: `inputs` (client, example, *shape)
in [0, 1], and `targets` (client, example, class), class probabilities.  There an example may be mixed with the next
one of its batch, after the last the first, and with no other: at type-2 these two are the truth.  The order of a batch
is a draw of each round, so that the next example is a random one.
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
    """The randomness of a transform, keyed row by row (a row: one client's or example's tensors), or a device's
    generator."""

    def normal(self, name: str, like: Tensor) -> Tensor: ...
    def uniform(self, name: str, like: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Public:
    """What everyone has before a training, or an attack, begins: the model with its weights, name → (*shape), and a
    few examples that belong to no client, `inputs` (example, *shape) in [0, 1] with `labels` (example,)."""

    model: nn.Module
    weights: Tensors
    inputs: Tensor
    labels: Tensor
    classes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a defense may know of the federated setting: N, K, T, L, B, |D_i|, η, and the public data.

    `weight_step`: by how much one unit of a client's update moves the weights, 1 for a difference of weights and η
    for a gradient.  `colluders`: the share of a client's neighbours who collude with the attacker, for statements of
    ε.
    """

    clients: int
    per_round: int
    rounds: int
    steps: int
    batch: int
    client_examples: int
    rate: float
    weight_step: float = 1.0
    colluders: float = 0.0
    public: Public | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """What a client's step is computed on: the model, the client's weights, name → (client, *shape), `inputs`
    (client, example, *shape) and `labels` (client, example)."""

    model: nn.Module
    weights: Tensors
    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where in the training a transform acts: `lead` leading axes, round t, local step, its draws.

    `weights`, name → (*shape), are those at the start of the round.  `norms`, at stage `step` alone, are the examples'
    norms after stage `example`, name → (client, example); `examples`, there and for a transform that `needs_examples`
    alone, their gradients, name → (client, example, *shape).  `local`, at stage `example` alone, is what the gradients
    were computed on.  A description fills them in for candidates where it can.  `colluders`: the share of a client's
    neighbours who tell the attacker what they know; a transform then leaves the noise that they cannot remove.
    """

    lead: int
    stage: Stage
    round: int
    step: int
    setting: Setting
    draws: Draws
    weights: Tensors | None = None
    norms: Tensors | None = None
    examples: Tensors | None = None
    local: Local | None = None
    colluders: float = 0.0


@dataclass(frozen=True, slots=True)
class Scaling:
    """An effect on rows that follows from their tensors' norms: each tensor of a row times its factor,
    name → (row axes), 1 where none is named, plus N(0, deviation²) on every coordinate, a number or (row axes)."""

    factors: Tensors
    deviation: Tensor | float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedNoise:
    """Independent noise of mean 0 on what passes, in its units squared: `variance` of each coordinate, a number or
    name → a tensor that broadcasts to (*shape).

    `bound`: the variance depends on what nobody is told, and is at most this.  `of_mean`: the variance on a
    coordinate of the mean of the round's clients, where it is not `variance` over their number.
    """

    law: Law = "gaussian"
    variance: float | Tensors
    bound: bool = False
    of_mean: float | None = None


class Transform:
    """One step of a defense.  Concrete ones are frozen dataclasses, checked in `__post_init__`.

    The harness calls `update`.  A transform without memory defines `apply`; one with memory defines `initial` and
    `update`.  What adaptive attackers know of it follows from these: its code is public, its draws are not.
    `expected`, `simulate`, `noise` and `log_likelihood` say more where there is more to say.
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
        """The tensors after it: same names, shapes and dtypes, inputs untouched.  With memory: the first time."""
        shapes = {name: tuple(value.shape[context.lead :]) for name, value in tensors.items()}
        rows = len(next(iter(tensors.values()))) if context.lead else 1
        return self.update(tensors, self.initial_of(shapes, rows), context)[0]

    def initial(self, shapes: Shapes) -> State:
        """The state before round 0, of the server or of one client; empty without memory."""
        del shapes
        return {}

    def update(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """The tensors after it, and the next state; a client's state has the clients' axis first."""
        return self.apply(tensors, context), state

    @property
    def keeps(self) -> tuple[Shown, ...]:
        """What its output still shows of its input; a clip keeps zeros and directions, noise keeps nothing."""
        return ()

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State] | None:
        """What a candidate's gradient would look like after it, on average over its draws, and the next state:
        `update`, differentiable in `tensors`.

        None: the harness runs `update` on draws of its own (`bench.federated.straight_through`), with the derivative
        of the identity where its own is of no use.  `context.draws` draws zeros as normals, the middle as uniforms.
        """
        del tensors, state, context
        return None

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor] | None:
        """The same where the reading shows this very row after it, `observed`: at the truth equal to `apply`, whatever
        was drawn.

        Asked only where no mean of several rows and no transform after it hides what it `reads`.  Differentiable in
        `tensors`.  None: the reading tells nothing of its choices, and `expected` stands.
        """
        del tensors, observed, context
        return None

    def log_likelihood(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor | None:
        """log p of `observed` where `expected` is `tensors`, up to a constant, at most 0 and per row, (row,); None:
        that of `noise`."""
        del tensors, observed, context
        return None

    def log_density(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor | None:
        """log p of `observed` where `expected` is `tensors`, per row, (row,), of any sign and up to a constant that no
        candidate moves; None where it is that of `noise`, whose variance is then exact unless it is a bound.

        For who compares candidates; `log_likelihood` is for who seeks them by its derivative.
        """
        return self.log_likelihood(tensors, observed, context)

    def by_norms(self, norms: Tensors, context: Context) -> Scaling | None:
        """The effect of `apply` on rows whose tensors have these norms, name → (row axes), where the norms decide
        it; training then forms no example's gradient.  None: it needs the tensors."""
        del norms, context
        return None

    def update_by_norms(self, norms: Tensors, state: State, context: Context) -> tuple[Scaling, State] | None:
        """`by_norms` in place of `apply`, in `update`."""
        scaling = self.by_norms(norms, context)
        return None if scaling is None else (scaling, state)

    def noise(self, context: Context, state: State) -> AddedNoise | None:
        """What it adds to every coordinate, around `expected`; None where it adds nothing.

        `state`: as it is before.  Other draws of a `random` transform are no noise, and none that `simulate` reads off
        the reading's values.
        """
        del context, state
        return None

    def variance_at(self, tensors: Tensors, context: Context) -> Tensors | None:
        """The variance of what it adds to each coordinate where `tensors` pass, name → (*lead, *shape); None: that of
        `noise`.

        For noise that follows from what passes, of which `noise` states a bound alone: the contracts then ask for this
        one, exactly.
        """
        del tensors, context
        return None

    def initial_of(self, shapes: Shapes, clients: int) -> State:
        """The state before round 0: the server's, or that of so many clients, their axis first."""
        state = self.initial(shapes)
        if self.owner == "server":
            return state
        return {key: value.expand(clients, *value.shape).clone() for key, value in state.items()}


StageTransforms = Mapping[Stage, Sequence[Transform]]


class Defense(ABC):
    """A choice of transforms and numbers.  Concrete ones are frozen dataclasses.

    `stages` lists where it may act (for `bench list`); the contracts check that it acts there
    and nowhere else.
    """

    reference: ClassVar[str]
    stages: ClassVar[tuple[Stage, ...]]

    @abstractmethod
    def transforms(self, setting: Setting) -> StageTransforms:
        """The transforms of each stage, in order.  Raises ValueError for a setting that it refuses."""

    def mechanism(self, setting: Setting) -> Mechanism | Reports | None:
        """Its noise, or the locally private reports that it sends, as an accountant reads them.

        None: no noise that is calibrated to a bound, and no ε.
        """
        del setting
        return None
