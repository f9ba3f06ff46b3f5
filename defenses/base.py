"""Interfaces for defenses: a defense is a sequence of transforms for each stage of a federated round.

A transform is a pure function of tensors, a state and a context.  Tensors may have any number of leading axes
(`context.lead`): (client, example, *shape) at stages `input` and `example`; (client, *shape) at `step`, `client`,
`exchange` and `server`; (*shape) at `aggregate`.

At stage `input` the tensors are the training data for a local step: `inputs` (client, example, *shape) in [0, 1], and
`targets` (client, example, class), class probabilities.  A transform may mix an example with its successor in the batch
(the last with the first) and with no other example: at type-2 the true examples are these two.  Each round draws a new
batch order, so the successor is random."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from torch import Tensor, nn

from bench.defenses.accounting.mechanism import Mechanism, Reports
from bench.defenses.strength import Strength
from bench.points import Stage
from bench.trip import Outcomes

Tensors = Mapping[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]
State = Mapping[str, Tensor]
Law = Literal["gaussian", "laplace"]  # distribution of additive noise
# The visible part of an earlier transform's output in a reading: only which coordinates are zero; each tensor up to a
# factor; or all values.
Shown = Literal["zeros", "directions", "values"]
# Values of a transform's output: ±τ; -τ, 0 and τ; or τ times any integer, with a step τ for each row and tensor.
Quantised = Literal["signs", "ternary", "levels"]


class Draws(Protocol):
    """Source of a transform's random numbers (`Context.draws`), the only source that a transform may use. Numbers are
    independent between coordinates, rows (clients, or examples of a client), names, transforms, stages, local steps and
    rounds. For attacks, a key with all of these determines the numbers, so that runs can be repeated: a second call
    with the same name, in the same place of a round, returns the same numbers. In a training, a device's generator
    draws them."""

    def normal(self, name: str, like: Tensor) -> Tensor:
        """Return standard normal numbers (mean 0, variance 1) in the shape, dtype and device of `like`.

        - `name`: key of these numbers, such as the tensor's name; a transform with several draws for a tensor gives
          each draw a name of its own.
        - `like`: tensor (*lead, …), whose leading axes are the rows, and whose values are not read."""
        ...

    def uniform(self, name: str, like: Tensor) -> Tensor:
        """Return uniform numbers in [0, 1) in the shape, dtype and device of `like`.

        - `name`: key of these numbers, as for `normal`.
        - `like`: tensor (*lead, …), whose leading axes are the rows, and whose values are not read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Public:
    """Public knowledge before a training or an attack begins: model, initial weights and public data. Clients, server
    and attacker share this knowledge. Two objects are equal only if they are the same object."""

    model: nn.Module
    """The trained or attacked model in eval mode."""
    weights: Tensors
    """Initial weights, name → (*shape)."""
    inputs: Tensor
    """Public examples, (example, *shape) in [0, 1]; no client holds these examples."""
    labels: Tensor
    """Labels of the public examples, (example,)."""
    classes: int
    """Number of classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The federated setting, with the facts that a defense may use."""

    clients: int
    """N, the number of clients."""
    per_round: int
    """K, the number of clients in a round."""
    rounds: int
    """T, the number of rounds."""
    steps: int
    """L, the number of local steps in a round."""
    batch: int
    """B, the number of examples in a local step."""
    client_examples: int
    """The size of a client's data set, |D_i|."""
    rate: float
    """η, the learning rate of local steps."""
    weight_step: float = 1.0
    """Weight change per unit of a client's update: 1 if updates are weight differences, the learning rate η if they are
    gradients."""
    colluders: float = 0.0
    """Share of a client's neighbours that collude with the attacker, in [0, 1]; ε depends on this share."""
    dummies: int = 0
    """k, the number of the K clients in a round that the attacker controls (dummies). The stages and the mean then hold
    only the rows of the other K - k clients; ε depends on k. Clients do not know k."""
    public: Public | None = field(default=None, repr=False, compare=False)
    """Data and weights known to clients, server and attacker; None if a training has none."""

    @property
    def senders(self) -> int:
        """Number of clients behind a round's mean, K - k: the attacker subtracts the messages of its own k clients
        (dummies)."""
        return self.per_round - self.dummies


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """The clients' data and weights in a local step, for a transform that needs more than gradients, such as the loss
    after a trial step."""

    model: nn.Module
    """The clients' model in eval mode."""
    weights: Tensors
    """Each client's weights, name → (client, *shape)."""
    inputs: Tensor
    """Training examples, (client, example, *shape)."""
    labels: Tensor
    """Labels of the training examples, (client, example)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Place of a transform in a training (round, step, stage), with all values available to the transform.

    For an attacker's simulation of the defense (its description), the optional fields are filled where possible."""

    lead: int
    """Number of leading axes of the tensors, such as 2 for (client, example, *shape)."""
    stage: Stage
    """Place of the transform in the round, such as `client` (a client's finished update)."""
    round: int
    """t, the round number, counted from 0."""
    step: int
    """Number of the local step in the round, counted from 0."""
    setting: Setting
    """Federated setting: numbers of clients, rounds and examples, and the rate."""
    draws: Draws
    """Source of the transform's random numbers."""
    weights: Tensors | None = None
    """Weights at the start of the round, name → (*shape)."""
    norms: Tensors | None = None
    """Norms of example gradients after stage `example`, name → (client, example); only at stage `step`."""
    examples: Tensors | None = None
    """Example gradients, name → (client, example, *shape); only at stage `step` with `needs_examples`."""
    local: Local | None = None
    """Data and weights behind the gradients; only at the stages `example` and `step`."""
    colluders: float = 0.0
    """Share of a client's neighbours that reveal their secrets to the attacker, in [0, 1]; transforms omit the noise
    that the attacker can then subtract."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Fast form of a transform for trainings: tensors times factors, plus noise N(0, deviation²) on each coordinate.
    Only for a transform whose effect depends on the rows' norms, such as a clip: the training then never forms a single
    example's gradient. *lead are the leading axes (client, or client and example)."""

    factors: Tensors
    """Factor for each row (client or example), name → (*lead); a tensor whose name is absent has factor 1."""
    deviation: Tensor | float = 0.0
    """Noise deviation: a number, or a value for each row (client or example), (*lead)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedNoise:
    """A transform's noise as attackers know it (law and variance): independent on each coordinate, with mean 0.
    Variances are in squared units of the tensors."""

    law: Law = "gaussian"
    """Distribution of each coordinate: "gaussian" or "laplace"."""
    variance: float | Tensors
    """Variance per coordinate: a number, or name → a tensor that broadcasts to (*shape)."""
    bound: bool = False
    """True if `variance` is only an upper bound and the true variance is secret."""
    of_mean: float | None = None
    """Variance per coordinate of the clients' mean; None: `variance` divided by the number of clients."""


class Transform:
    """An operation of a defense on tensors, such as a clip. Concrete transforms are frozen dataclasses, checked in
    `__post_init__`.

    The harness calls `update`. A transform without memory defines `apply`; a transform with memory defines `initial`
    and `update`. Adaptive attackers know the transform's code, but not its draws. For them, `expected`, `simulate`,
    `noise` and `log_likelihood` describe the transform in more detail. A transform with random noise states `expected`
    and the law of the noise: `noise` for Gaussian or Laplace noise, with `variance_at` if the variance depends on the
    tensors, or `log_density` for any law. In every method, `context` is the transform's place in the training (round,
    step, stage)."""

    random: ClassVar[bool] = False
    """True if the output depends on random draws."""
    batchwise: ClassVar[bool] = False
    """True if an example's result depends on other examples in the batch."""
    mixes_examples: ClassVar[bool] = False
    """True at stage `input` if the output holds convex mixtures of a batch's examples and labels."""
    mixes_clients: ClassVar[bool] = False
    """True if a client's result depends on other clients in the round."""
    allows_dummies: ClassVar[bool] = False
    """True if the transform leaves out all that an attacker with own clients in the round (`Setting.dummies`) can
    subtract. Needed only for a transform that mixes clients, or at stages `server` and `aggregate`."""
    needs_examples: ClassVar[bool] = False
    """True at stage `step` if the transform reads each example's gradient."""
    reads_weights: ClassVar[bool] = False
    """True if the output depends on the round's initial weights (`Context.weights`), equal for all clients."""
    unlinks: ClassVar[bool] = False
    """True if the output no longer shows which coordinates come from the same client."""
    owner: Literal["server", "client"] = "server"
    """Holder of the state (the transform's memory between rounds): the server, or each client."""
    reads: ClassVar[Shown] = "values"
    """Property of the reading (the attacked update) from which `simulate` recovers random draws: the zero coordinates,
    the directions, or all values."""

    def __init_subclass__(cls) -> None:
        if cls.apply is Transform.apply and cls.update is Transform.update:
            raise TypeError(f"{cls.__name__} does nothing: define apply, or initial and update")

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        """Return the transformed tensors, with unchanged names, shapes and dtypes; the given `tensors` are not
        modified. For a transform with memory, the default applies `update` to the initial state, as in the first round.
        `context`: place in the training."""
        shapes = {name: tuple(value.shape[context.lead :]) for name, value in tensors.items()}
        rows = len(next(iter(tensors.values()))) if context.lead else 1
        return self.update(tensors, self.initial_of(shapes, rows), context)[0]

    def initial(self, shapes: Shapes) -> State:
        """Return the state (memory between rounds) before round 0, for the server or for a single client; {} for a
        transform without memory. `shapes`: name → shape of each tensor without leading axes."""
        return {}

    def update(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """Return the transformed `tensors`, and the state (memory between rounds) for the next call. `state` is the
        result of the last call or of `initial`; a client's state has the client axis first. `context`: place in the
        training."""
        return self.apply(tensors, context), state

    @property
    def steady(self) -> bool:
        """True if the output does not depend on the local step's number (`Context.step`), and the code copies nothing
        from the host: a GPU then runs all steps of a round as one recorded program. Only the speed depends on it."""
        return False

    @property
    def quantises(self) -> Quantised | None:
        """Kind of coarse values in the output, from which an attacker can separate clients' messages: "signs" (±τ),
        "ternary" (-τ, 0, τ) or "levels" (τ times any integer), with a step τ for each row (client or example) and
        tensor. None: other values."""
        return None

    @property
    def keeps(self) -> tuple[Shown, ...]:
        """Properties of the input that the output still shows to an attacker, from "zeros", "directions" and "values":
        a clip keeps zeros and directions, noise keeps none."""
        return ()

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State] | None:
        """Return candidate gradients after the transform, averaged over its random draws, and the next state. An
        attacker compares the result with the reading (the observed update), so the result must be differentiable in
        `tensors`, the candidates. `state` is the memory before the transform, `context` the place in the training.

        The method computes the average without random numbers: `context.draws` returns 0 for every normal and 1/2 for
        every uniform. If the method returns None, the harness averages `update` over a few fixed draws
        (`bench.federated.straight_through`). If the code has no useful derivative, the harness takes the derivative of
        the identity."""
        return None

    def smoothed(
        self, tensors: Tensors, state: State, context: Context, width: float
    ) -> tuple[dict[str, Tensor], State] | None:
        """Return `expected` with gradual transitions in place of hard decisions (kept or not, sign, limit), and the
        next state; None if the transform has no hard decision. A hard decision has no derivative, so attackers minimise
        over a sequence of decreasing widths. The result must be differentiable in `tensors`, the candidates.

        - `state`: memory before the transform; `context`: place in the training.
        - `width` > 0: a transition's width as a share of the decision's threshold or scale; for `width` → 0 the result
          tends to `expected`."""
        return None

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor] | None:
        """Return candidate gradients after the transform, name → (*lead, *shape) with the leading axes *lead, under the
        random draws that the reading `observed` (the attacked update) reveals. None if no draws are revealed: the
        harness then uses `expected`. For example, a reading's zeros reveal a random mask. `context`: place in the
        training.

        - Draws that stay hidden are averaged, as in `expected`.
        - At the true gradient, the result equals the actual output of `apply` behind `observed`, apart from `noise`.
        - The result must be differentiable in `tensors`, the candidates.
        - The harness calls the method only if the reading still shows the property `reads`: without a mean over rows,
          and without a later transform that hides the property."""
        return None

    def log_likelihood(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor | None:
        """Return log p(`observed`) of the reading for each row (client or example), (row,), up to a constant and at
        most 0; its derivative guides an attacker's search. None: the harness uses the likelihood under `noise`.

        - `tensors`: candidates after `expected`; `observed`: the reading (the attacked update).
        - `context`: place in the training."""
        return None

    def log_density(self, tensors: Tensors, observed: Tensors, context: Context) -> Tensor | None:
        """Return the exact log p(`observed`) of the reading for each row (client or example), (row,), up to a constant
        for all candidates; an attacker ranks candidates by it. None: `noise` gives the exact density, unless its
        variance is only a bound.

        - `tensors`: candidates after `expected`; `observed`: the reading (the attacked update).
        - `context`: place in the training."""
        return self.log_likelihood(tensors, observed, context)

    def outcomes(self, tensors: Tensors, context: Context) -> Outcomes | None:
        """Return the few values that `apply` may give each coordinate of `tensors`, with their probabilities, as for
        random rounding or a random mask. None: more values, or coordinates that depend on each other. `context`: place
        in the training.

        An attacker with the updates of all other clients uses these values to derive the possible means over clients.
        """
        return None

    def by_norms(self, norms: Tensors, context: Context) -> Scaling | None:
        """Return the effect of `apply` as factors and noise, computed from the norms of rows (clients or examples)
        only: a training then needs no example gradients. None if norms do not determine the effect. `norms`: name →
        (*lead), with the leading axes *lead; `context`: place in the training."""
        return None

    def update_by_norms(self, norms: Tensors, state: State, context: Context) -> tuple[Scaling, State] | None:
        """Return the effect of `update` as factors and noise, with the next state, computed from the norms of rows
        (clients or examples) only: a training then needs no example gradients. None if norms do not determine the
        effect.

        - `norms`: name → (*lead), with the leading axes *lead.
        - `state`: memory before the transform; `context`: place in the training."""
        scaling = self.by_norms(norms, context)
        return None if scaling is None else (scaling, state)

    def noise(self, context: Context, state: State) -> AddedNoise | None:
        """Return the noise that the transform adds to the output of `expected`; None if it adds none. `state` is the
        memory before the transform, `context` the place in the training.

        Noise here is an independent random number with mean 0 on every coordinate. Other randomness, such as a random
        mask, does not count, nor do draws that the attacker recovers from the reading (the observed update) by
        `simulate`."""
        return None

    def variance_at(self, tensors: Tensors, context: Context) -> Tensors | None:
        """Return the exact noise variance for these `tensors`, name → (*lead, *shape) with the leading axes *lead, for
        the contract tests, which compare this variance with random draws. A transform defines this method if its noise
        depends on the tensors and `noise` gives only a bound; None if `noise` already gives the variance. `context`:
        place in the training."""
        return None

    def initial_of(self, shapes: Shapes, clients: int) -> State:
        """Return the state (memory between rounds) before round 0: the server's state, or with clients as `owner` a
        state for each of `clients` clients, with the client axis first. `shapes`: name → shape of each parameter."""
        state = self.initial(shapes)
        if self.owner == "server":
            return state
        return {key: value.expand(clients, *value.shape).clone() for key, value in state.items()}


StageTransforms = Mapping[Stage, Sequence[Transform]]


class Defense(ABC):
    """Base class for defenses: a defense is a choice of transforms for the stages of a round. Concrete defenses are
    frozen dataclasses; their fields are the parameters. The contract tests check the class attributes."""

    reference: ClassVar[str]
    """Paper that describes the defense."""
    stages: ClassVar[tuple[Stage, ...]]
    """Stages (places in the round) at which the defense may act, such as `example` or `client`."""
    strength: ClassVar[Strength | None] = None
    """Parameter that sets the amount of protection, with its range; None for a defense with a single strength."""
    no_epsilon: ClassVar[str] = (
        "it adds no noise that is calibrated to a bound on what one example or client can change"
    )
    """Reason why no ε is stated if `mechanism` returns None, in words that continue a sentence."""

    @abstractmethod
    def transforms(self, setting: Setting) -> StageTransforms:
        """Return the transforms for each stage (place in the round), in the order of use. `setting`: the federated
        setting. Raises `ValueError` for an unsupported setting."""

    def mechanism(self, setting: Setting) -> Mechanism | Reports | None:
        """Return the noise and sensitivity, or the locally private reports, from which accountants compute ε; None if
        no ε exists. `setting`: the federated setting."""
        return None
