"""A user's description of a client's local training."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from operator import index

from bench.attacks.objective.local import momentum_gain
from bench.errors import BenchError
from bench.trip import AdamRule, StepRule


@dataclass(frozen=True, slots=True, kw_only=True)
class SGD:
    """A client's local training: SGD on the mean cross entropy of a batch. The client takes `steps` local steps, or
    passes `epochs` times over `examples` examples, each time in a new order. An epoch ends with a smaller batch if
    `batch` does not divide `examples` (PyTorch's `DataLoader` without `drop_last`). Raises `BenchError` for
    inconsistent numbers."""

    lr: float
    """η, the learning rate."""
    batch: int = 1
    """Examples per local step."""
    steps: int | None = None
    """Number of local steps; None: 1, or given by `epochs`."""
    epochs: int | None = None
    """Number of passes over the client's examples; None: given by `steps`."""
    examples: int | None = None
    """Number of the client's examples; None: no example repeats."""
    momentum: float = 0.0
    """Momentum as in `torch.optim.SGD`; the buffers are empty at the start."""
    weight_decay: float = 0.0
    """Weight decay as in `torch.optim.SGD`."""
    nesterov: bool = False
    """True for Nesterov's momentum, as in `torch.optim.SGD`."""
    schedule: tuple[float, ...] = ()
    """(step,): each step's learning rate, divided by `lr`; empty: a constant rate."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """Parameter's name → factor of its learning rate (parameter groups); a missing name has 1."""
    decays: Mapping[str, float] = field(default_factory=dict)
    """Parameter's name → weight decay (parameter groups); a missing name has `weight_decay`."""
    proximal: float = 0.0
    """μ, the weight of FedProx's term μ/2 ‖w - w_0‖² in the loss."""
    clip: float | None = None
    """Largest L2 length of a step's mean gradient, as in `torch.nn.utils.clip_grad_norm_`; None: no clipping."""
    kept: bool = False
    """True for a loop without `zero_grad()`: each step uses the sum of all gradients so far."""

    def __post_init__(self) -> None:
        for name in ("batch", "steps", "epochs", "examples"):
            value = getattr(self, name)
            if value is None:
                continue
            try:
                whole = index(value)
            except TypeError:
                whole = 0
            if whole < 1 or isinstance(value, bool):
                raise BenchError(f"SGD: {name} is {value!r}; give a whole number from 1")
            object.__setattr__(self, name, whole)
        for name in ("lr", "momentum", "weight_decay"):
            if not isinstance(getattr(self, name), int | float):
                raise BenchError(f"SGD: {name} is {getattr(self, name)!r}; give a number")
        if not (isfinite(self.lr) and self.lr > 0):
            raise BenchError(f"SGD: lr is {self.lr!r}; give the client's learning rate, above 0")
        if not 0 <= self.momentum < 1:
            raise BenchError(f"SGD: momentum is {self.momentum!r}; it lies in 0 to below 1")
        if not (isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise BenchError(f"SGD: weight_decay is {self.weight_decay!r}; it is 0 or above")
        if self.steps is not None and self.epochs is not None:
            raise BenchError("SGD: steps and epochs are both given; give one of them")
        if self.epochs is not None and self.examples is None:
            raise BenchError("SGD: epochs need `examples`, how many the client has")
        if self.nesterov and not self.momentum:
            raise BenchError("SGD: nesterov needs a momentum above 0")
        if self.schedule and (
            len(self.schedule) != self.count or not min(self.schedule) >= 0 or not any(self.schedule)
        ):
            raise BenchError(f"SGD: schedule has a factor of lr for each of {self.count} steps, got {self.schedule}")
        if self.clip is not None and not self.clip > 0:
            raise BenchError(f"SGD: clip is {self.clip!r}; it is above 0, or None")
        if not (isfinite(self.proximal) and self.proximal >= 0):
            raise BenchError(f"SGD: proximal is {self.proximal!r}; it is 0 or above")
        for name, value in self.factors.items():
            if not (isfinite(value) and value > 0):
                raise BenchError(f"SGD: the factor of {name!r} is {value!r}; it is above 0; freeze what is not trained")

    @property
    def count(self) -> int:
        """The number of local steps."""
        if self.epochs is None:
            return self.steps or 1
        return self.epochs * -(-self.client_examples // self.step_batch)

    @property
    def step_batch(self) -> int:
        """The number of examples in a full batch: `batch`, or the number of the client's examples if smaller."""
        return self.batch if self.examples is None else min(self.batch, self.examples)

    @property
    def client_examples(self) -> int:
        """The number of the client's distinct examples; the local steps may use fewer examples."""
        return self.examples or self.batch * (self.steps or 1)

    @property
    def ragged(self) -> bool:
        """True if each epoch ends with a smaller batch, because `batch` does not divide the examples."""
        return self.client_examples % self.step_batch > 0

    @property
    def unit(self) -> float:
        """Scale of the client's weight change: mean weight change per local step, divided by the mean gradient over the
        local steps. Without momentum, this is the learning rate η."""
        return self.lr * momentum_gain(self.momentum, self.count, self.rule)

    @property
    def rule(self) -> StepRule | None:
        """Nesterov's momentum, schedule, FedProx and further options of this training as a `StepRule`, by which attacks
        simulate the local steps; None without such options."""
        rule = StepRule(**{each.name: getattr(self, each.name) for each in fields(StepRule)})
        return None if rule == StepRule() else rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam(SGD):
    """A client's local training by Adam, or by AdamW with `decoupled`, as `torch.optim.Adam` and `AdamW`. The moments
    are zero at the start of the round. Raises `BenchError` for inconsistent numbers."""

    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the means of gradients and of squared gradients."""
    eps: float = 1e-8
    """Term ε added to the denominator, as in `torch.optim.Adam`."""
    decoupled: bool = False
    """True for AdamW."""

    def __post_init__(self) -> None:
        SGD.__post_init__(self)
        if self.momentum:
            raise BenchError("Adam: it has betas in place of momentum; leave momentum out")
        if not all(0 <= beta < 1 for beta in self.betas) or not self.eps > 0:
            raise BenchError(f"Adam: betas lie in 0 to below 1 and eps is above 0, got {self.betas} and {self.eps}")

    @property
    def adam(self) -> AdamRule:
        """Adam's options (betas, eps, decoupled weight decay) as an `AdamRule`, by which attacks simulate the local
        steps."""
        first, second = self.betas
        return AdamRule(betas=(first, second), eps=self.eps, decoupled=self.decoupled)
