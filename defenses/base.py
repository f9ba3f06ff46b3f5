"""What a defense is: for each stage of the pipeline, a sequence of transforms.

A transform is a pure function of tensors and context.  It is written for any number of leading
axes (`context.lead`): (client, example, *shape) at stage `example`, (client, *shape) at `step`,
`client`, `exchange` and `server`, and (*shape) at `aggregate`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from torch import Tensor, nn

from bench.defenses.accounting.mechanism import Mechanism, Reports
from bench.points import Stage

Tensors = Mapping[str, Tensor]


class Draws(Protocol):
    """Where a transform's randomness comes from: keyed row by row, or a device's generator."""

    def normal(self, name: str, like: Tensor) -> Tensor: ...
    def uniform(self, name: str, like: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Public:
    """What everyone has before a training, or an attack, begins: the model with its weights then, name → (*shape), and
    a few pictures (example, *shape) with labels (example,) that are no client's."""

    model: nn.Module
    weights: Tensors
    inputs: Tensor
    labels: Tensor
    classes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a defense may know of the federated setting: N, K, T, L, B, |D_i|, η, and what is public.

    `moves`: by how much one unit of what a client sends moves the weights, 1 for a difference of weights and η
    for a gradient.  `colluders`: the share of a client's neighbours who side with an attacker, for what is said of ε.
    """

    clients: int
    per_round: int
    rounds: int
    steps: int
    batch: int
    client_examples: int
    rate: float
    moves: float = 1.0
    colluders: float = 0.0
    public: Public | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """What a client's step is computed on: the model, its own weights, name → (client, *shape), `inputs` (client,
    example, *shape) and `labels` (client, example)."""

    model: nn.Module
    weights: Tensors
    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where in the training a transform acts: `lead` leading axes, round t, local step, its draws.

    `weights` name → (*shape) are those that the round began with.  At stage `step` `norms` are those of the
    examples as they left stage `example`, name → (client, example); at stage `example` `local` is what they were
    computed on; elsewhere, and for an attacker's candidate, there are none.  `colluders`: the share of a client's
    neighbours who tell the reader what they know; a transform then leaves what they cannot take off.
    """

    lead: int
    stage: Stage
    round: int
    step: int
    setting: Setting
    draws: Draws
    weights: Tensors | None = None
    norms: Tensors | None = None
    local: Local | None = None
    colluders: float = 0.0


@dataclass(frozen=True, slots=True)
class Scaled:
    """What happens to rows, told from their tensors' norms alone: each tensor of a row times its factor,
    name → (row axes), plus N(0, deviation²) on every coordinate, a number or (row axes).
    """

    factors: Tensors
    deviation: Tensor | float = 0.0


class Transform(ABC):
    """One step of a defense.  Concrete ones are frozen dataclasses, checked in `__post_init__`."""

    random: ClassVar[bool] = False
    batchwise: ClassVar[bool] = False  # an example's result depends on the others of its batch
    across: ClassVar[bool] = False  # a client's result depends on the others of its round
    unlinks: ClassVar[bool] = False  # after it nobody can tell which coordinates are one client's

    @abstractmethod
    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        """The tensors after it: same names, shapes and dtypes, inputs untouched."""

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor] | None:
        """What a candidate's gradient would look like after it, given what the reading shows.

        Differentiable in `tensors`.  None: it describes nothing, and the attacker stays plain.
        """
        del tensors, observed, context
        return None

    def by_norms(self, norms: Tensors, context: Context) -> Scaled | None:
        """What `apply` does to rows whose tensors have these norms, name → (row axes), where that is all
        it needs to know; training then forms no example's gradient.  None: it needs the tensors.
        """
        del norms, context
        return None

    def noise(self, context: Context) -> tuple[Literal["gaussian", "laplace"], float] | None:
        """The law and variance of what it adds to every coordinate, or None where it adds nothing.

        What a transform with `random` draws beside that is no additive noise.
        """
        del context
        return None


class Stateful(Transform):
    """A transform with memory: its state is explicit, and belongs to the server or to each client."""

    owner: Literal["server", "client"]  # of the class, or of one of its instances

    @abstractmethod
    def initial(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """The state before round 0, of the server or of one client."""

    @abstractmethod
    def update(
        self, tensors: Tensors, state: Tensors, context: Context
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The tensors after it, and the state for next time; a client's state has the clients' axis first."""

    def update_by_norms(
        self, norms: Tensors, state: Tensors, context: Context
    ) -> tuple[Scaled, dict[str, Tensor]] | None:
        """As `by_norms`, and the state for next time."""
        del norms, state, context
        return None

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        raise TypeError("a transform with state is applied by `update`")


class Defense(ABC):
    """A choice of transforms and numbers.  Concrete ones are frozen dataclasses.

    `stages` lists where it may act (for `bench list`); the contracts check that it acts there
    and nowhere else.
    """

    reference: ClassVar[str]
    stages: ClassVar[tuple[Stage, ...]]

    @abstractmethod
    def transforms(self, setting: Setting) -> Mapping[Stage, Sequence[Transform]]:
        """The transforms of each stage, in order."""

    def mechanism(self, setting: Setting) -> Mechanism | Reports | None:
        """What its noise is to an accountant; None: no noise that is calibrated to a bound, and no ε."""
        del setting
        return None
