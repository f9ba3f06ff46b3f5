"""What an Opacus training shows of itself: the plain model, each example's gradient, and the defense that it runs."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from bench.errors import BenchError
from bench.own.copies import plain_copy, unwrapped


@dataclass(frozen=True, slots=True, kw_only=True)
class OpacusStep:
    """One step of an Opacus training, between `loss.backward()` and `optimizer.step()`.

    `model`: a copy without Opacus' hooks, at the weights of the step.  `gradients` name → (example, *shape), each
    example's, before clipping.  `defense`: what `optimizer.step()` does to them, as `api.reading` takes it, on batches
    of `batch` examples.
    """

    model: nn.Module
    gradients: dict[str, Tensor]
    defense: dict[str, Any]
    batch: int


def from_opacus(model: nn.Module, optimizer: Any) -> OpacusStep:
    """The step that `model` and `optimizer`, as `PrivacyEngine.make_private` returned them, are in.

    Raises `BenchError` where the model has no gradients of examples, or the optimizer clips in a way that no
    description here has (one bound for each layer, or a bound that adapts).
    """
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
        batch=int(optimizer.expected_batch_size),
        defense={
            "name": "fed-cdp",
            "clip": float(optimizer.max_grad_norm),
            "sigma": float(optimizer.noise_multiplier),
            "noise": "code",
            "clipping": "flat",
        },
    )
