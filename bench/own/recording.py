"""Recording of a training loop, by hooks that change nothing: each local step's batch, targets, loss and optimizer."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from bench.errors import BenchError
from bench.own.copies import plain_copy, unwrapped
from bench.own.criterion import LOSSES, Criterion, Loss, Unknown, criterion
from bench.sanitize import sanitize

_RANDOM = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "rrelu")
_DRAWS = ("bernoulli", "rand", "rand_like", "randn", "randn_like")
FURTHER_TERMS = "a loss with further terms"
_HELD_OUT = 2048  # examples that are kept of passes without gradients


@dataclass(slots=True, kw_only=True)
class Batch:
    """Inputs, outputs and loss of a forward pass in the recorded training loop, kept until the local step that uses its
    gradient."""

    inputs: Tensor
    """(example, *shape): copy of the inputs, on the CPU."""
    logits: Tensor
    """(example, class), (example, 1) or (example,): the model's output, in the user's graph."""
    criterion: Criterion | Unknown | None = None
    """The loss function with the labels; None: no loss was seen."""
    loss: Tensor | None = None
    """The loss, in the user's graph; None: no loss was seen."""


@dataclass(slots=True, kw_only=True)
class HeldOut:
    """Examples of a forward pass without gradients, such as a validation, in a recorded training; later the attacker's
    public data."""

    inputs: Tensor
    """(example, *shape): copy of the inputs, on the CPU."""
    targets: Tensor | None = None
    """(example,): classes that a loss function got; None: no loss was seen."""


OPTIONS = ("momentum", "betas", "weight_decay")  # of an optimizer, which a schedule may change


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A local step of a recorded training: the examples, the learning rates and the gradient's length at a call of
    `optimizer.step()`. The steps are replayed later to check the recording."""

    inputs: Tensor
    """(example, *shape): inputs of all forward passes since the previous step, without ignored examples."""
    labels: Tensor | None
    """(example,): class numbers of these inputs; None: a pass without a known loss."""
    passes: int
    """Number of forward passes."""
    rates: tuple[float, ...]
    """Learning rate of each parameter group."""
    options: tuple[tuple[str, ...], ...] = ()
    """Values of the optimizer's options `OPTIONS` for each parameter group, as text."""
    kept: bool = False
    """True if gradients of earlier steps were not set to zero."""
    length: float = 0.0
    """Euclidean length of the gradient after the backward pass."""
    shortened: float = 1.0
    """Length of the gradient that the step used, divided by the length of the gradient after the backward pass: 1 for
    an unchanged gradient, less after clipping. 0: the two gradients have different directions."""


@dataclass(slots=True, kw_only=True)
class Recorded:
    """All data that hooks recorded in a client's training: the weights before and after, every local step, and facts
    that no attack simulates. `bench.own.recorded.Recording` makes a reading of the data."""

    module: nn.Module | None = None
    """The trained model, without wrappers; None: no training was seen."""
    before: dict[str, Tensor] = field(default_factory=dict)
    """Parameters and buffers before the first step, name → (*shape)."""
    after: dict[str, Tensor] = field(default_factory=dict)
    """Parameters and buffers after the last step, name → (*shape)."""
    steps: list[Step] = field(default_factory=list)
    """Local steps in order."""
    first_gradient: dict[str, Tensor] = field(default_factory=dict)
    """Gradients that the first step used, name → (*shape)."""
    first_computed: dict[str, Tensor] = field(default_factory=dict)
    """Gradients after the first step's backward pass, before clipping, name → (*shape)."""
    optimizer: Optimizer | None = None
    """The optimizer of the steps."""
    private: Any = None
    """Opacus' optimizer, which clips and adds noise, around `optimizer`; None: a training without Opacus."""
    classes: int = 0
    """Number of classes: the number of logits, or 2 for a single logit."""
    one_logit: bool = False
    """True for a model with a single logit."""
    criterion: Criterion | None = None
    """The first loss; all steps have the same loss. None: no known loss was seen."""
    autocast: torch.dtype | None = None
    """Type of the forward passes under `torch.autocast`; None: full precision."""
    trained: frozenset[str] = frozenset()
    """Names of the parameters that the first step changed."""
    training: dict[str, bool] = field(default_factory=dict)
    """Layer's name → training mode at the first pass."""
    held_out: list[HeldOut] = field(default_factory=list)
    """Passes without gradients, such as a validation."""
    seen: dict[str, bool] = field(default_factory=dict)
    """Unusual facts about the training, in the order of appearance: fact → True if no attack simulates the fact, even
    if a replay gives the update."""

    @property
    def loss(self) -> Loss | None:
        """Loss of the training, as the argument `loss` of `api.reading`; None: the mean cross entropy."""
        return None if self.criterion is None else self.criterion.loss

    def saw(self, fact: str, *, never: bool = False) -> None:
        """Note an unusual `fact` about the training, which may explain a failed replay of the recorded steps. `never`
        True: no attack simulates the fact."""
        self.seen[sanitize(fact)] = never


class _Mode(TorchFunctionMode):
    """Passes every torch function on, unchanged, and shows loss functions, backward passes and random layers."""

    def __init__(self, recorder: "_Recorder") -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        self._recorder.calling(func)
        result = func(*args, **given)
        self._recorder.called(func, args, given, result)
        return result


class _Recorder:
    """Turns the calls of hooks into a `Recorded`."""

    def __init__(self, model: nn.Module | None, optimizer: Optimizer | None) -> None:
        self.model, self.optimizer, self.depth = model, optimizer, 0
        self.pending: list[Batch] = []
        self.state = torch.empty(0)
        self.summed: dict[str, Tensor] = {}
        self.lengths: Tensor | None = None
        self.inside = False
        self.kept = False
        self.recorded = Recorded(private=optimizer if hasattr(optimizer, "noise_multiplier") else None)
        if model is not None:
            self._begin(unwrapped(model))

    def _begin(self, module: nn.Module) -> None:
        self.recorded.module = module
        self.recorded.before = _state(module)
        self.recorded.training = training_modes(module)

    def entered(self, module: nn.Module, arguments: Any) -> None:
        if not self._outermost(module):
            return
        self.depth += 1
        record = self.recorded
        if self.depth > 1 or not torch.is_grad_enabled():
            return
        if record.module is None or not (record.steps or self.pending):
            self._begin(unwrapped(module))
        if not self.inside:
            self._compare_weights()
        if not record.steps:
            record.training = training_modes(unwrapped(module))
        self.state = torch.get_rng_state()
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                record.autocast = torch.get_autocast_dtype(device)

    def left(self, module: nn.Module, arguments: Any, options: Mapping[str, Any], output: Any) -> None:
        if not self._outermost(module):
            return
        self.depth -= 1
        if self.depth:
            return
        record = self.recorded
        inputs = arguments[0] if arguments else None
        drawn = torch.is_grad_enabled() and len(self.state) and not torch.equal(self.state, torch.get_rng_state())
        if drawn and not any(each.startswith(("a stochastic", "random draws")) for each in record.seen):
            record.saw("random draws in the model, such as dropout inside a layer", never=True)
        if not isinstance(inputs, Tensor) or len(arguments) > 1 or options:
            record.saw("a model whose input is not a single tensor by position: wrap it in a module with one input")
        elif not torch.is_grad_enabled():
            if sum(len(each.inputs) for each in record.held_out) < _HELD_OUT:
                record.held_out.append(HeldOut(inputs=inputs.detach().cpu().clone()))
        elif not isinstance(output, Tensor):
            record.saw(f"a model whose output is a {type(output).__name__}: wrap it to return the logits alone")
        elif output.dim() != 2 and output.numel() != len(inputs):
            record.saw(f"a model whose output has shape {tuple(output.shape)}, not (example, class)")
        else:
            self.pending.append(Batch(inputs=inputs.detach().cpu().clone(), logits=output))

    def _compare_weights(self) -> None:
        """Note weights that changed since the last step or pass."""
        assert self.recorded.module is not None
        now = _lengths(self.recorded.module)
        if self.lengths is not None and not torch.equal(now, self.lengths):
            self.recorded.saw("weights changed outside optimizer.step(): a second optimizer, a correction, an average")
        self.lengths = now

    def _outermost(self, module: nn.Module) -> bool:
        """Whether `module` is the recorded model; without a model, whether it may be: a module with parameters."""
        if self.model is not None:
            return module is self.model
        record = self.recorded.module
        if record is not None and self.depth == 0:
            own = unwrapped(module)
            return own is record or (type(own) is type(record) and not torch.is_grad_enabled())  # evaluates a copy
        return next(module.parameters(), None) is not None

    def calling(self, func: Callable[..., Any]) -> None:
        if getattr(func, "__name__", "") != "backward" or not self.pending or self.summed:
            return
        optimizer = self.recorded.optimizer or self.optimizer
        held = [] if optimizer is None else [value for group in optimizer.param_groups for value in group["params"]]
        if any(value.grad is not None and bool(value.grad.any()) for value in held):
            self.kept = True
            self.recorded.saw("gradients of earlier steps were kept: no zero_grad() before backward()")

    def called(self, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any], result: Any) -> None:
        name = getattr(func, "__name__", "")
        if self.depth and torch.is_grad_enabled():
            self._inside_model(name, args, given)
        elif func in LOSSES and torch.is_grad_enabled() and self.pending:
            self._loss(func, args, given, result)
        elif func in LOSSES and not torch.is_grad_enabled() and self.recorded.held_out:
            last, targets = self.recorded.held_out[-1], given.get("target", args[1] if len(args) > 1 else None)
            if isinstance(targets, Tensor) and targets.numel() == len(last.inputs) and not (targets % 1).any():
                last.targets = targets.detach().cpu().reshape(-1).long()
        elif name == "backward" and self.pending:
            if self.recorded.module is not None:
                self.summed = _gradients(self.recorded.module)
            losses = [batch.loss for batch in self.pending if batch.loss is not None]
            if losses and not any(args[0] is loss for loss in losses) and not _is_share(args[0], losses[-1]):
                self.recorded.saw(FURTHER_TERMS)

    def _inside_model(self, name: str, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        if name in _RANDOM and given.get("training", name != "rrelu") and given.get("p", 0.5) != 0:
            self.recorded.saw(f"a stochastic layer: {name}", never=True)
        elif name in _DRAWS:
            self.recorded.saw(f"random draws in the model: {name}", never=True)

    def _loss(self, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any], result: Any) -> None:
        batch = self.pending[-1]
        if batch.loss is None and isinstance(result, Tensor):
            batch.loss, batch.criterion = result, criterion(func, args, given, batch.logits)

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.inside = True
        if self.pending:
            self._compare_weights()
        used = any(float(each.get("step", 1)) > 0 for each in optimizer.state.values())
        if used and not self.recorded.steps:
            self.recorded.saw("an optimizer with a state from before, such as momentum")
        if not _closure(args, kwargs):
            self.stepped(optimizer)

    def after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.inside = False
        if _closure(args, kwargs):  # the step itself computes the gradient
            self.stepped(optimizer)
        if self.recorded.module is not None and self.lengths is not None:
            self.lengths = _lengths(self.recorded.module)

    def stepped(self, optimizer: Optimizer) -> None:
        batches = [batch for batch in self.pending if batch.loss is not None] or self.pending
        record, self.pending = self.recorded, []
        if record.module is None or not batches:
            return
        own = {id(value): name for name, value in record.module.named_parameters()}
        held = {own.get(id(value)) for group in optimizer.param_groups for value in group["params"]} - {None}
        if not held:
            return
        if record.optimizer is not None and record.optimizer is not optimizer:
            record.saw("several optimizers")
        used = _gradients(record.module)
        if record.private is None and any(not torch.equal(used[name], each) for name, each in self.summed.items()):
            record.saw("gradients changed between backward() and step(): clipping, noise or a scaler")
        length, shortened = _compared(self.summed, used)
        trained = frozenset(name for name in used if name in held)
        if record.steps and trained != record.trained:
            record.saw("other parameters were trained in later steps: frozen, or thawed")
        if record.steps and len(batches) != record.steps[0].passes:
            record.saw("gradients accumulated over different numbers of passes")
        if not record.steps:
            record.optimizer = optimizer
            record.first_gradient, record.trained = used, trained
            record.first_computed = self.summed or used
        self.summed = {}
        found = list(self._criteria(batches))
        if len({len(batch.inputs) for batch in batches}) > 1:
            record.saw("gradients accumulated over batches of different size")
        counted = torch.cat([each.counted for each in found]) if len(found) == len(batches) else None
        inputs = torch.cat([batch.inputs for batch in batches])
        record.steps.append(
            Step(
                inputs=inputs if counted is None else inputs[counted],
                labels=None if counted is None else torch.cat([each.labels for each in found])[counted],
                passes=len(batches),
                rates=tuple(float(group["lr"]) for group in optimizer.param_groups),
                options=tuple(tuple(str(group.get(name)) for name in OPTIONS) for group in optimizer.param_groups),
                kept=self.kept,
                length=length,
                shortened=shortened,
            )
        )
        self.kept = False

    def _criteria(self, batches: list[Batch]) -> Iterator[Criterion]:
        """Yield the known losses of a step's passes, and note the others."""
        record = self.recorded
        for batch in batches:
            if batch.criterion is None:
                record.saw("a loss that is no function of torch.nn.functional: take api.reading with loss=", never=True)
            elif isinstance(batch.criterion, Unknown):
                record.saw(batch.criterion.reason, never=True)
            else:
                if record.criterion is None:
                    record.criterion, record.classes = batch.criterion, batch.criterion.classes
                    record.one_logit = batch.logits.numel() == len(batch.logits)
                if record.criterion.key != batch.criterion.key:
                    record.saw("a loss with other options in later steps", never=True)
                yield batch.criterion

    def end(self) -> None:
        if self.recorded.module is not None:
            if self.recorded.steps:
                self._compare_weights()
            self.recorded.after = _state(self.recorded.module)


@contextmanager
def recorder(model: nn.Module | None = None, optimizer: Optimizer | None = None) -> Iterator[Recorded]:
    """Record a client's training inside a `with` statement, as raw data (`Recorded`) for an attack on its update;
    `bench.own.recorded.recording` gives users a checked reading. The training is bitwise the same as without the
    recording.

    - `model`: the trained module; None takes the first module with parameters that runs with gradients.
    - `optimizer`: its optimizer; None takes every optimizer of the module's parameters."""
    made = _Recorder(model, optimizer)
    inner: Any = getattr(optimizer, "original_optimizer", optimizer)
    entered, left = (torch.compiler.disable(hook) for hook in (made.entered, made.left))  # a compiled hook keeps facts
    with ExitStack() as stack:
        for handle in (
            (
                register_module_forward_pre_hook(entered),
                register_module_forward_hook(left, with_kwargs=True),
                register_optimizer_step_pre_hook(made.before_step),
                register_optimizer_step_post_hook(made.after_step),
            )
            if model is None or optimizer is None
            else (
                model.register_forward_pre_hook(entered),
                model.register_forward_hook(left, with_kwargs=True),
                inner.register_step_pre_hook(made.before_step),
                inner.register_step_post_hook(made.after_step),
            )
        ):
            stack.callback(handle.remove)
        stack.enter_context(_Mode(made))
        yield made.recorded
    made.end()


def trained_copy(recorded: Recorded) -> nn.Module:
    """Return the recorded model as it was at the start of the training: a copy on the CPU with the same weights, each
    layer in its recorded mode (training or eval). Parameters that the first step did not change are frozen. Raises
    `BenchError` if no training was recorded."""
    if recorded.module is None or not recorded.steps:
        if recorded.seen:
            raise BenchError(f"no local step can be attacked; seen: {'; '.join(recorded.seen)}")
        raise BenchError("no local step was recorded: run the training inside the with statement, optimizer.step() too")
    module = plain_copy(recorded.module)
    module.load_state_dict(recorded.before)
    for name, layer in module.named_modules(remove_duplicate=False):
        layer.training = recorded.training.get(name, layer.training)
    for name, value in module.named_parameters():
        value.requires_grad_(name in recorded.trained)
    return module


def training_modes(module: nn.Module) -> dict[str, bool]:
    """Return path → whether the layer is in training mode; a layer at several places has several paths."""
    return {name: layer.training for name, layer in module.named_modules(remove_duplicate=False)}


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}


def _is_share(whole: Any, loss: Tensor) -> bool:
    """Whether `whole` is the loss times a number, as with accumulated gradients: its graph has a single branch."""
    node = getattr(whole, "grad_fn", None)
    while node is not None and node is not loss.grad_fn:
        branches = [each for each, _ in node.next_functions if each is not None]
        if len(branches) != 1 or type(node).__name__ not in ("MulBackward0", "DivBackward0"):
            return False
        node = branches[0]
    return node is not None


def _gradients(module: nn.Module) -> dict[str, Tensor]:
    """Copy the gradients of a module's parameters, on the CPU: name → (*shape), without parameters that have none."""
    found = {name: value.grad for name, value in module.named_parameters()}
    return {name: value.detach().cpu().clone() for name, value in found.items() if value is not None}


def _compared(computed: Mapping[str, Tensor], used: Mapping[str, Tensor]) -> tuple[float, float]:
    """Return the length of the gradient `computed`, name → (*shape), and the factor from `computed` to `used`: 0 if
    their directions differ."""
    if not computed or all(torch.equal(value, used[name]) for name, value in computed.items()):
        return sqrt(sum(float(value.double().square().sum()) for value in computed.values())), 1.0
    one, other = (torch.cat([of[name].double().flatten() for name in computed]) for of in (computed, used))
    factor = float(one @ other / one.square().sum().clamp_min(1e-300))
    return float(one.norm()), factor if float((other - factor * one).norm()) <= 1e-5 * float(other.norm()) else 0.0


def _lengths(module: nn.Module) -> Tensor:
    """Return the Euclidean length of each parameter, (parameter,)."""
    return torch.stack([value.detach().double().norm().cpu() for value in module.parameters()])


def _closure(args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether `optimizer.step` got a closure, which computes the gradient."""
    return kwargs.get("closure") is not None or (len(args) > 1 and args[1] is not None)
