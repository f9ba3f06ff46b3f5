"""The plain model, the per-example gradients and the defense, taken from a training with Opacus."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from bench.errors import BenchError
from bench.own.copies import plain_copy, unwrapped


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OpacusStep:
    """A step of a training with Opacus, as `from_opacus` reads it between `loss.backward()` and `optimizer.step()`. Its
    fields are the arguments for `api.reading` (model, gradients, defense), to attack one's own private training."""

    model: nn.Module
    """Copy of the model without Opacus's hooks, at the step's weights."""
    gradients: dict[str, Tensor]
    """Gradient of each example before clipping, parameter name → (example, *shape)."""
    defense: dict[str, Any]
    """Clipping and noise of `optimizer.step()`, as the argument `defense` for `api.reading`."""
    batch: int
    """Number of drawn examples in this step."""
    expected: int
    """Expected number of examples in a step; Opacus divides the sum over the drawn examples by this number."""

    @property
    def unit(self) -> float:
        """Argument `unit` for `api.reading` of the clipped gradient that Opacus sends. Opacus divides the sum over the
        drawn examples by the expected batch size; the bench divides by the number of drawn examples. The factor is
        batch/expected."""
        return self.batch / self.expected

    def __repr__(self) -> str:
        drawn = f"{self.batch} examples drawn, {self.expected} expected"
        return f"OpacusStep({len(self.gradients)} parameters, {drawn}, {self.defense['name']})"


def from_opacus(model: nn.Module, optimizer: Any) -> OpacusStep:
    """Read a step of a training with Opacus, to attack the training: per-example gradients, plain model, clip and
    noise. Call after `loss.backward()`, before `optimizer.step()`. `model` and `optimizer` come from
    `PrivacyEngine.make_private`. Raises `BenchError` if per-example gradients are missing, and for per-layer or
    adaptive clipping, which the bench cannot describe."""
    inner = unwrapped(model)
    gradients: dict[str, Tensor] = {}
    for name, parameter in inner.named_parameters():
        if parameter.requires_grad:
            sample = getattr(parameter, "grad_sample", None)
            if not isinstance(sample, Tensor):
                raise BenchError(
                    f"{name!r} has no grad_sample; call from_opacus after loss.backward() and before optimizer.step(), "
                    "with hooks as gradient samples and without virtual batches"
                )
            gradients[name] = sample.detach().clone()
    if any(getattr(parameter, "summed_grad", None) is not None for parameter in inner.parameters()):
        raise BenchError(
            "the optimizer has used these gradients; call from_opacus before optimizer.step(), without virtual batches"
        )
    for field in ("max_grad_norm", "noise_multiplier", "expected_batch_size"):
        if not hasattr(optimizer, field):
            raise BenchError(f"the optimizer has no {field}; give the one that make_private returned")
    if type(optimizer).__name__ not in ("DPOptimizer", "DistributedDPOptimizer"):
        raise BenchError(
            f"{type(optimizer).__name__} clips otherwise than with one flat bound; give the defense by name or plug-in"
        )
    if getattr(optimizer, "loss_reduction", "mean") != "mean":
        raise BenchError("the loss is summed over the batch; give Opacus loss_reduction='mean'")
    return OpacusStep(
        model=plain_copy(model),
        gradients=gradients,
        batch=len(next(iter(gradients.values()))),
        expected=int(optimizer.expected_batch_size),
        defense={
            "name": "fed-cdp",
            "clip": float(optimizer.max_grad_norm),
            "sigma": float(optimizer.noise_multiplier),
            "noise": "code",
            "clipping": "flat",
        },
    )
