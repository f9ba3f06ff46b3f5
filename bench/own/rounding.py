"""Differences between an update and its replay that 16-bit numbers explain: in the forward pass, or in transport."""

import torch
from torch import Tensor

from bench.own.likeness import likeness
from bench.own.replay import trained
from bench.trip import Reading

_TYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
_LEAST = 0.95  # least cosine of an update under 16-bit rounding
_LARGER = 4.0  # allowed squared distance to the replay, relative to that of a replay in 16 bits
_UNITS = 4.0  # allowed distance to the replay, in roundings of the weights before and after


def rounded(
    reading: Reading, observed: dict[str, Tensor], replay: dict[str, Tensor], inputs: Tensor, labels: Tensor
) -> str | None:
    """Explain a small difference between an update and its replay (the update computed again) by 16-bit numbers, in the
    forward pass or in transport. Return the explanation as text; None if rounding does not explain the difference.

    - `reading`: the user's reading, which declares the training (model, weights, batch, steps, rate).
    - `observed`, `replay`: the update, and the update computed again on the true examples, name → (reading, *shape).
    - `inputs` (reading, example, *shape), `labels` (reading, example): true examples.

    A forward pass in 16 bits explains the difference under two conditions: its update is at least as near to the
    observed update as the replay in full precision, and the difference is not much larger than the effect of the
    rounding."""
    if reading.description is not None or reading.senders > 1 or likeness(observed, replay).least[0] < _LEAST:
        return None
    if name := _in_transport(reading, observed, replay):
        return f"the weights were rounded to {name} in transport"
    for kind, name in _TYPES.items():
        coarse = trained(reading, inputs, labels, autocast=kind)
        far, own = likeness(observed, replay).residual, likeness(coarse, replay).residual
        if bool((far <= _LARGER * own).all() and (likeness(observed, coarse).residual <= far).all()):
            return f"the training was in {name}"
    return None


def _in_transport(reading: Reading, observed: dict[str, Tensor], replay: dict[str, Tensor]) -> str | None:
    """Return the type of the weights after the round if these are 16-bit numbers, and if their difference from weights
    before the round is off the replay by no more than this rounding."""
    if reading.unit == 1:
        return None
    scale = reading.unit * reading.steps
    for kind, name in _TYPES.items():
        pairs = {key: (reading.weights[key], reading.weights[key] - scale * value) for key, value in observed.items()}
        exact = all(_of_type(after, kind) for _, after in pairs.values())
        last = _UNITS * torch.finfo(kind).eps
        if exact and all(
            bool((scale * (observed[key] - replay[key])).norm() <= last * (before.norm() + after.norm()))
            for key, (before, after) in pairs.items()
        ):
            return name
    return None


def _of_type(value: Tensor, kind: torch.dtype) -> bool:
    return bool(((value.to(kind).to(value) - value).abs() <= 1e-6 * value.abs()).all())
