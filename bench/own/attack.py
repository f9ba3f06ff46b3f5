"""Attack of a user's reading by a registered attack."""

import copy
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch

from bench.answer.readings import to_device
from bench.attacks.base import Attack
from bench.device import repeatable
from bench.errors import BenchError, NotApplicable
from bench.own.repeats import Claim, claim
from bench.registry import entries as registry
from bench.rng import Key
from bench.sanitize import first_line
from bench.sweep.session import chosen_device
from bench.trip import Budget, Reading

BY_ADAM = "Adam hides the size of a gradient, so the search has little slope: a low figure is no protection"


def attack(
    reading: Reading,
    attack: str | Attack = "cpl",
    *,
    evaluations: int = 500,
    chunk: int = 32,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "cpu",
    params: Mapping[str, Any] | None = None,
    seconds: float | None = None,
) -> Claim:
    """Attack a user's gradients or updates by a registered attack; return the reconstructions (guessed examples), in
    the order of the readings, with the reading itself. `reading` holds the observed updates on the first axis of its
    tensors.

    - `attack`: name of a registered attack, or an instance.
    - `evaluations`: evaluations of the attack's objective per reading, restarts included.
    - `chunk`: number of readings attacked at once.
    - `seed`: seed of the attack's random numbers.
    - `device`: torch device; "auto" takes a GPU if there is one.
    - `params`: parameters of an attack given by name.
    - `seconds`: time after which a search over sets of candidates (`gallery`) ends with its best set; None: no limit.

    An attack with a parameter `local` simulates several local steps one by one (`local="unrolled"`), unless `params`
    sets it. An example used in several epochs is returned once. Raises `BenchError` for an unknown attack or an
    unsupported reading."""
    if evaluations < 1 or chunk < 1:
        raise BenchError(f"evaluations and chunk must be at least 1, got {evaluations} and {chunk}")
    chosen = _chosen(attack, params or {}, several_steps=reading.stepwise) if isinstance(attack, str) else attack
    if device not in ("auto", "cpu", "cuda"):
        raise BenchError(f"device {device!r}: it is auto, cpu or cuda")
    if reading.adam is not None:
        warnings.warn(BY_ADAM, stacklevel=2)
    place = torch.device(chosen_device(device))
    held = replace(reading, model=copy.deepcopy(reading.model))  # it may be moved to the device
    try:
        if reading.kind.name not in chosen.takes:
            raise NotApplicable(f"it takes {' and '.join(chosen.takes)}, this is {reading.kind.article}")
        if reason := chosen.refuses(held):
            raise NotApplicable(reason)
        budget = Budget(evaluations=evaluations, chunk=chunk, seconds=seconds)
        with repeatable(place):
            return claim(chosen.reconstruct(to_device(held, place), budget, Key(seed=seed)), reading)
    except NotApplicable as reason:
        name = attack if isinstance(attack, str) else type(attack).__name__
        raise BenchError(f"attack {name} cannot take this reading: {reason}") from None
    except (RuntimeError, KeyError) as error:  # e.g. a layer without a second derivative
        name = attack if isinstance(attack, str) else type(attack).__name__
        said = f"{type(error).__name__}: {first_line(error)}"
        raise BenchError(f"attack {name} cannot run this model or reading: {said}; try gallery or another") from error


def _chosen(name: str, params: Mapping[str, Any], *, several_steps: bool) -> Attack:
    made: Attack = registry.instance("attacks", name, params)
    if several_steps and "local" not in params and hasattr(made, "local"):
        made = registry.instance("attacks", name, {**params, "local": "unrolled"})
    return made
