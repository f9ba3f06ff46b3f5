"""Gaussian noise on a user's update that the user did not declare, recognised by the update's replay."""

from typing import Any

import torch
from torch import Tensor

from bench.errors import BenchError
from bench.own.defended import defended
from bench.trip import Reading

_LEAST = 500  # coordinates; fewer tell no distribution
_OF_TENSOR = 30  # coordinates of a tensor whose own variance is compared
_ERRORS = 5.0  # standard errors of each statistic


def undeclared(reading: Reading, observed: dict[str, Tensor], replay: dict[str, Tensor]) -> dict[str, Any] | None:
    """Return the declaration of Gaussian noise, as the argument `defense` of `api.reading`, if the difference between
    an update and its replay (the update computed again) is such noise: independent values with equal variance in every
    tensor. Return None for any other difference, and for a reading whose noise cannot be declared.

    - `reading`: the user's reading without a defense.
    - `observed`, `replay`: the update, and the update computed again on the true examples, name → (reading, *shape)."""
    variance = _variance(observed, replay)
    if variance is None or reading.description is not None:
        return None
    try:
        unit = defended(reading, {"name": "gaussian", "variance": 1.0}).description
    except BenchError:
        return None
    if unit is None or not unit.noise.variance:
        return None
    return {"name": "gaussian", "variance": float(f"{variance / unit.noise.variance:.4g}")}


def _variance(observed: dict[str, Tensor], replay: dict[str, Tensor]) -> float | None:
    rest = {name: (value - replay[name]).double().flatten() for name, value in observed.items()}
    whole = torch.cat([*rest.values()])
    known = torch.cat([replay[name].double().flatten() for name in rest])
    count, variance = len(whole), float(whole.square().mean())
    if count < _LEAST or not 0 < variance < float("inf"):
        return None
    near = _ERRORS / count**0.5
    squared = whole.square() / variance - 1
    unlike = [
        abs(float(whole.mean())) / variance**0.5 > near,
        abs(float((squared + 1).square().mean()) - 3) > near * 24**0.5,
        abs(_correlation(whole, known)) > near,
        abs(_correlation(squared, known.square() - known.square().mean())) > near,
        abs(_correlation(whole[1:], whole[:-1])) > near,
    ]
    for value in rest.values():
        share, size = float(value.square().mean()) / variance, len(value)
        unlike.append(size >= _OF_TENSOR and abs(share - 1) > _ERRORS * (2 / size) ** 0.5)
    return None if any(unlike) else variance


def _correlation(first: Tensor, second: Tensor) -> float:
    return float(first @ second / (first.norm() * second.norm()).clamp_min(1e-300))
