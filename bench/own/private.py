"""A recorded training with Opacus: the first step against its described clip and noise; ε of the engine and ours."""

from dataclasses import dataclass
from math import ceil, isfinite, sqrt
from typing import Any

import torch
from torch import Tensor

from bench.defenses.accounting import pld
from bench.defenses.accounting.composition import gaussian
from bench.defenses.accounting.report import DELTA
from bench.gradients import group_gradients, one_hot
from bench.own.copies import plain_copy
from bench.own.losses import declared
from bench.own.recording import Recorded, trained_copy
from bench.rows import rows
from bench.training import declare

_NEAR = 0.05  # allowed relative difference of the noise's deviation, next to four standard errors
_CLIPPED = 1e-6  # Opacus adds this number to a norm


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateStep:
    """The first step of a recorded training with Opacus, for an attack: gradient, defense, and whether the described
    clip and noise explain the gradient."""

    gradients: dict[str, Tensor]
    """Clipped mean gradient with noise, scaled to a mean over the drawn examples, name → (*shape)."""
    defense: dict[str, Any]
    """Clip and noise, as the argument `defense` of `api.reading`."""
    explained: bool
    """True if clip and described noise explain the step."""
    line: str
    """Comparison of the step with the described clip and noise, as a line of text."""


def private_step(recorded: Recorded) -> PrivateStep:
    """Check Opacus' clip and noise in the first step of a training, recorded by hooks (`recorded`). The part of the
    sent gradient beyond the mean clipped gradient must have the size of the described noise. Return the sent gradient,
    Opacus' parameters as a defense, and the result of the check."""
    optimizer, step = recorded.private, recorded.steps[0]
    assert optimizer is not None and step.labels is not None
    clip, sigma = float(optimizer.max_grad_norm), float(optimizer.noise_multiplier)
    expected, drawn = int(optimizer.expected_batch_size), len(step.inputs)
    model = plain_copy(trained_copy(recorded))
    declare(model, loss=declared(recorded.loss, recorded.classes), batch_statistics=False)
    weights = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    targets = one_hot(step.labels, recorded.classes, step.inputs.dtype)
    each = group_gradients(model, weights, step.inputs[:, None], targets[:, None])
    norms = torch.stack([rows(value, 1).square().sum(1) for value in each.values()]).sum(0).sqrt()
    factors = (clip / (norms + _CLIPPED)).clamp_max(1.0)
    clipped = {name: torch.einsum("e,e...->...", factors, value) / expected for name, value in each.items()}
    gap = torch.cat([(recorded.first_gradient[name] - value).double().flatten() for name, value in clipped.items()])
    size = torch.cat([value.double().flatten() for value in clipped.values()])
    deviation, measured = sigma * clip / expected, float(gap.norm()) / sqrt(len(gap))
    if deviation:
        explained = abs(measured / deviation - 1) <= _NEAR + 4 / sqrt(2 * len(gap))
        noise = f"noise of deviation {measured:.3g}, described {deviation:.3g}"
    else:
        explained = float(gap.norm()) <= 1e-5 * float(size.norm())
        noise = f"no noise, relative error {float(gap.norm() / size.norm().clamp_min(1e-300)):.2g}"
    return PrivateStep(
        gradients={name: value * (expected / drawn) for name, value in recorded.first_gradient.items()},
        defense={"name": "fed-cdp", "clip": clip, "sigma": sigma, "noise": "code", "clipping": "flat"},
        explained=explained,
        line=f"Opacus, first step: {drawn} examples drawn, {expected} expected, clip {clip:g}, {noise}",
    )


def spent(recorded: Recorded, engine: Any, *, poisson: bool, delta: float = DELTA) -> str:
    """Compare the ε that Opacus' privacy `engine` reports with the ε that is valid for the recorded sampling, both at δ
    = `delta`; return a sentence about their difference. `recorded` is the training. `poisson` True means that each step
    draws every example independently, as the engine assumes."""
    history = [(float(sigma), float(rate), int(steps)) for sigma, rate, steps in engine.accountant.history]
    if not history:
        return "Opacus: the engine has counted no step."
    stated = float(engine.accountant.get_epsilon(delta))
    steps, (sigma, rate, _) = sum(count for _, _, count in history), history[0]
    if poisson and len({(each[0], each[1]) for each in history}) == 1:
        valid, how = pld.epsilon({sigma: steps}, delta, q=rate), "Poisson sampling, one example added or removed"
    else:
        uses = max(1, ceil(sum(q * count for _, q, count in history)))
        least = min(sigma for sigma, _, _ in history)
        valid = gaussian(least / sqrt(uses), delta)
        how = f"batches of fixed size: an example's gradient counts {uses} times, without gain by sampling"
    ours = f"{valid:.3g}" if isfinite(valid) else "none"
    parts = abs(valid - stated) > 0.05 * max(valid, stated)
    why = "" if poisson or not parts else "; the engine assumes Poisson sampling, which this loader does not do"
    return f"ε at δ = {delta:g} after {steps} steps: {stated:.3g} by Opacus, {ours} valid ({how}){why}."
