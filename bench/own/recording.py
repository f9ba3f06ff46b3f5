"""Recording of a training loop, by hooks that change nothing: each local step's batch, targets, loss and optimizer."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from bench.errors import BenchError
from bench.own.copies import plain_copy, unwrapped
from bench.sanitize import sanitize

_LOSSES = (
    F.cross_entropy,
    F.nll_loss,
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
    F.kl_div,
    F.multi_margin_loss,
    F.multilabel_margin_loss,
    F.soft_margin_loss,
)
_PLAIN = {"weight": None, "reduction": "mean", "label_smoothing": 0.0, "ignore_index": -100}  # of a cross entropy
_RANDOM = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "rrelu")
_DRAWS = ("bernoulli", "rand", "rand_like", "randn", "randn_like")
_HELD_OUT = 2048  # examples that are kept of passes without gradients


@dataclass(slots=True, kw_only=True)
class Batch:
    """A forward pass of a recorded training, with gradients, and its loss."""

    inputs: Tensor
    """(example, *shape): copy of the inputs, on the CPU."""
    logits: Tensor
    """(example, class): the model's output, in the user's graph."""
    targets: Tensor | None = None
    """(example,): copy of the targets; None: no loss was seen."""
    loss: Tensor | None = None
    """The loss, in the user's graph; None: no loss was seen."""


@dataclass(slots=True, kw_only=True)
class HeldOut:
    """A forward pass of a recorded training without gradients, such as a validation."""

    inputs: Tensor
    """(example, *shape): copy of the inputs, on the CPU."""
    targets: Tensor | None = None
    """(example,): classes that a loss function got; None: no loss was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A local step of a recorded training: the batch and the rates that `optimizer.step()` used."""

    inputs: Tensor
    """(example, *shape): inputs of all forward passes since the previous step."""
    targets: Tensor | None
    """(example,): targets of these inputs; None: a pass without a known loss."""
    passes: int
    """Number of forward passes."""
    rates: tuple[float, ...]
    """Learning rate of each parameter group."""


@dataclass(slots=True, kw_only=True)
class Recorded:
    """A recorded training: weights before and after, and all local steps."""

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
    optimizer: Optimizer | None = None
    """The optimizer of the steps."""
    private: Any = None
    """Opacus' optimizer, which clips and adds noise, around `optimizer`; None: a training without Opacus."""
    classes: int = 0
    """Number of logits."""
    training: dict[str, bool] = field(default_factory=dict)
    """Layer's name → training mode at the first pass."""
    held_out: list[HeldOut] = field(default_factory=list)
    """Passes without gradients, such as a validation."""
    seen: dict[str, bool] = field(default_factory=dict)
    """Unusual facts about the training, in the order of appearance: fact → True if no attack simulates the fact, even
    if a replay gives the update."""

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
        result = func(*args, **given)
        self._recorder.called(func, args, given, result)
        return result


class _Recorder:
    """Turns the calls of hooks into a `Recorded`."""

    def __init__(self, model: nn.Module | None, optimizer: Optimizer | None) -> None:
        self.model, self.optimizer, self.depth = model, optimizer, 0
        self.pending: list[Batch] = []
        self.recorded = Recorded(private=optimizer if hasattr(optimizer, "noise_multiplier") else None)
        if model is not None:
            self._begin(unwrapped(model))

    def _begin(self, module: nn.Module) -> None:
        self.recorded.module = module
        self.recorded.before = _state(module)
        self.recorded.training = {name: layer.training for name, layer in module.named_modules()}

    def entered(self, module: nn.Module, arguments: Any) -> None:
        if not self._outermost(module):
            return
        self.depth += 1
        record = self.recorded
        if self.depth > 1 or not torch.is_grad_enabled():
            return
        if record.module is None:
            self._begin(unwrapped(module))
        if not record.steps:
            record.training = {name: layer.training for name, layer in unwrapped(module).named_modules()}
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            record.saw("autocast: gradients of 16-bit numbers", never=True)

    def left(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if not self._outermost(module):
            return
        self.depth -= 1
        if self.depth:
            return
        record = self.recorded
        inputs = arguments[0] if arguments else None
        if not isinstance(inputs, Tensor) or len(arguments) > 1:
            record.saw("a model whose input is not a single tensor")
        elif not torch.is_grad_enabled():
            if sum(len(each.inputs) for each in record.held_out) < _HELD_OUT:
                record.held_out.append(HeldOut(inputs=inputs.detach().cpu().clone()))
        elif not isinstance(output, Tensor) or output.dim() != 2:
            record.saw("a model whose output is not (example, class)")
        else:
            self.pending.append(Batch(inputs=inputs.detach().cpu().clone(), logits=output))

    def _outermost(self, module: nn.Module) -> bool:
        """Whether `module` is the recorded model; without a model, whether it may be: a module with parameters."""
        if self.model is not None:
            return module is self.model
        record = self.recorded.module
        if record is not None and self.depth == 0:
            own = unwrapped(module)
            return own is record or (type(own) is type(record) and not torch.is_grad_enabled())  # evaluates a copy
        return next(module.parameters(), None) is not None

    def called(self, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any], result: Any) -> None:
        name = getattr(func, "__name__", "")
        if self.depth and torch.is_grad_enabled():
            self._inside_model(name, args, given)
        elif func in _LOSSES and torch.is_grad_enabled() and self.pending:
            self._loss(func, name, args, given, result)
        elif func in _LOSSES and not torch.is_grad_enabled() and self.recorded.held_out:
            last, targets = self.recorded.held_out[-1], given.get("target", args[1] if len(args) > 1 else None)
            if isinstance(targets, Tensor) and targets.shape == (len(last.inputs),) and not targets.is_floating_point():
                last.targets = targets.detach().cpu().clone()
        elif name == "backward" and self.pending:
            losses = [batch.loss for batch in self.pending if batch.loss is not None]
            if losses and not any(args[0] is loss for loss in losses) and not _is_share(args[0], losses[-1]):
                self.recorded.saw("a loss with further terms")

    def _inside_model(self, name: str, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        if name in _RANDOM and given.get("training", name != "rrelu") and given.get("p", 0.5) != 0:
            self.recorded.saw(f"a stochastic layer: {name}", never=True)
        elif name in _DRAWS:
            self.recorded.saw(f"random draws in the model: {name}", never=True)
        elif name == "batch_norm" and given.get("training", args[5] if len(args) > 5 else False):
            self.recorded.saw("BatchNorm in training mode: its gradients mix the examples of a batch", never=True)

    def _loss(
        self, func: Callable[..., Any], name: str, args: tuple[Any, ...], given: dict[str, Any], result: Any
    ) -> None:
        named = dict(zip(("input", "target"), args, strict=False)) | given
        batch, of, targets = self.pending[-1], named.get("input"), named.get("target")
        if batch.loss is not None or not isinstance(of, Tensor) or not isinstance(targets, Tensor):
            return
        log = func is F.nll_loss and of.shape == batch.logits.shape
        if func is not F.cross_entropy and not log:
            self.recorded.saw(f"the loss {name}")
        elif of is not batch.logits and not (log and _is_log_softmax(of, batch.logits)):
            self.recorded.saw("a loss on another tensor than the model's output")
        elif targets.is_floating_point():
            self.recorded.saw("soft targets")
        for option, plain in _PLAIN.items():
            if named.get(option, plain) != plain if option != "weight" else named.get(option) is not None:
                self.recorded.saw(f"the loss option {option}")
        batch.loss, batch.targets = result, targets.detach().cpu().clone()

    def stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        batches = [batch for batch in self.pending if batch.loss is not None] or self.pending
        record, self.pending = self.recorded, []
        if record.module is None or not batches:
            return
        own = {id(value) for value in record.module.parameters()}
        if not any(id(value) in own for group in optimizer.param_groups for value in group["params"]):
            return
        if record.optimizer is not None and record.optimizer is not optimizer:
            record.saw("several optimizers")
        if not record.steps:
            record.optimizer, record.classes = optimizer, batches[0].logits.shape[1]
            record.first_gradient = {
                name: value.grad.detach().cpu().clone()
                for name, value in record.module.named_parameters()
                if value.grad is not None
            }
            if optimizer.state:
                record.saw("an optimizer with a state from before, such as momentum")
        targets = [batch.targets for batch in batches if batch.targets is not None]
        if len(targets) < len(batches):
            record.saw("a loss that is no function of torch.nn.functional")
        record.steps.append(
            Step(
                inputs=torch.cat([batch.inputs for batch in batches]),
                targets=torch.cat(targets) if len(targets) == len(batches) else None,
                passes=len(batches),
                rates=tuple(float(group["lr"]) for group in optimizer.param_groups),
            )
        )

    def end(self) -> None:
        if self.recorded.module is not None:
            self.recorded.after = _state(self.recorded.module)


@contextmanager
def recorder(model: nn.Module | None = None, optimizer: Optimizer | None = None) -> Iterator[Recorded]:
    """Record a client's training inside a `with` statement, for attacks on its update; the training is bitwise the same
    as without the recording.

    - `model`: the trained module; None takes the first module with parameters that runs with gradients.
    - `optimizer`: its optimizer; None takes every optimizer of the module's parameters."""
    made = _Recorder(model, optimizer)
    with ExitStack() as stack:
        for handle in (
            (
                register_module_forward_pre_hook(made.entered),
                register_module_forward_hook(made.left),
                register_optimizer_step_pre_hook(made.stepped),
            )
            if model is None or optimizer is None
            else (
                model.register_forward_pre_hook(made.entered),
                model.register_forward_hook(made.left),
                getattr(optimizer, "original_optimizer", optimizer).register_step_pre_hook(made.stepped),
            )
        ):
            stack.callback(handle.remove)
        stack.enter_context(_Mode(made))
        yield made.recorded
    made.end()


def trained_copy(recorded: Recorded) -> nn.Module:
    """Return a copy of the recorded model on the CPU, at the weights before the training and in the training modes of
    its layers. Raises `BenchError` if no training was recorded."""
    if recorded.module is None or not recorded.steps:
        raise BenchError("no local step was recorded: run the training inside the with statement, optimizer.step() too")
    module = plain_copy(recorded.module)
    module.load_state_dict(recorded.before)
    for name, layer in module.named_modules():
        layer.training = recorded.training.get(name, layer.training)
    return module


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


def _is_log_softmax(value: Tensor, logits: Tensor) -> bool:
    with torch.no_grad():
        return torch.equal(value, F.log_softmax(logits, dim=1))
