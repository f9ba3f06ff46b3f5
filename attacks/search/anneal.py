"""Stages for a defense with hard decisions: gradual transitions in place of decisions, ever narrower.

A decision (kept or not, sign) has no useful derivative. A gradual version has a derivative, and its reading differs
from the hard reading. The mean square of this gap is measured on public examples. A large gap acts as noise: its
variance weighs the tensors, and sets the weight of the prior. A small gap (pruning of small coordinates) is left out.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from bench.attacks.objective.mismatch import Mismatch, observations
from bench.attacks.search.space import Space
from bench.attacks.search.staged import Stage
from bench.gradients import one_hot
from bench.rng import Key
from bench.trip import Reading

_WIDTHS = (3.0, 1.0, 0.4, 0.16, 0.06, 0.025, 0.01, 0.004)  # of transitions, by stage, after a large gap
_NARROW_WIDTHS = (0.5, 0.3, 0.18, 0.1, 0.05, 0.02)  # the same after a small gap
_NARROW_WEIGHT = 2e-6  # of -log p after a small gap, as a share of a zero gradient's loss
_TRIAL = 0.5  # width at which a gap is small or large
# Gaps as shares of a reading's energy.  Mean of 8 clients, MNIST, at `_TRIAL`: random pruning 1e-7, pruning of 70 %
# .017, signs .43, top-k .53.
_NO_GAP, _SMALL_GAP = 1e-3, 0.2
_EVALUATIONS = 40  # least evaluations for a stage; a smaller budget has fewer stages
_SETS = 8  # sets of public examples which measure a gap


def annealed(
    reading: Reading, mismatch: Mismatch, first: Space, later: Space, evaluations: int, key: Key
) -> tuple[Stage, ...] | None:
    """Return the stages (successive minimisations) of a search against a defense with hard decisions, such as signs.
    Early stages soften the decisions; the last stage keeps them hard. Return None if the hard decisions change almost
    nothing in the readings of public examples.

    - `reading`: the attacked readings, with model and public examples.
    - `mismatch`: distance between simulated and actual readings.
    - `first`, `later`: search spaces. If softening changes the readings much, the first stage searches in `first` and
      all other stages in `later`; otherwise all stages search in `first`.
    - `evaluations`: limit for all stages together.
    - `key`: draws the public examples."""
    share = _energy(_gap(reading, mismatch, _TRIAL, key), reading) / _energy(_squares(reading), reading)
    if share < _NO_GAP:
        return None
    if share < _SMALL_GAP:
        stage = Stage(model=reading.model, space=first, weight=_NARROW_WEIGHT)
        chosen = _chosen(_NARROW_WIDTHS, evaluations)
        gradual = [replace(stage, width=width, until=n / (len(chosen) + 1)) for n, width in enumerate(chosen, 1)]
        return (*gradual, replace(stage, weight=None))
    chosen = _chosen(_WIDTHS, evaluations)
    stages = []
    for n, width in enumerate(chosen, 1):
        gap = _gap(reading, mismatch, width, key)
        stages.append(
            Stage(
                model=reading.model,
                space=first if n == 1 else later,
                width=width,
                variances=gap,
                variance=_energy(gap, reading) / sum(value[0, 0].numel() for value in reading.values.values()),
                until=n / (len(chosen) + 1),
            )
        )
    return (*stages, replace(stages[-1], width=0.0, until=1.0))


def _chosen(widths: tuple[float, ...], evaluations: int) -> list[float]:
    count = min(len(widths), max(1, evaluations // _EVALUATIONS))
    return [widths[round((n + 0.5) * len(widths) / count - 0.5)] for n in range(count)]


def _squares(reading: Reading) -> dict[str, Tensor]:
    return {name: value.square().mean() for name, value in observations(reading)[0].items()}


def _energy(squares: Mapping[str, Tensor], reading: Reading) -> float:
    """Return the sum over all coordinates of their mean squares; `squares` has a mean per tensor, name → ()."""
    return sum(float(squares[name]) * value[0, 0].numel() for name, value in reading.values.items())


def _gap(reading: Reading, mismatch: Mismatch, width: float, key: Key) -> dict[str, Tensor]:
    """Return the gap of each tensor, name → (): the mean squared difference between hard and gradual readings. The
    readings are of public examples, and `width` is the width of the gradual transitions. The variance of described
    noise is added."""
    assert reading.description is not None
    like = next(iter(reading.values.values()))
    random = key.generator("gap")
    chosen = torch.from_numpy(random.integers(len(reading.public_inputs), size=(_SETS, reading.examples)))
    labels = reading.public_labels[chosen]
    if bool((labels < 0).any()):
        labels = torch.from_numpy(random.integers(reading.classes, size=labels.shape))
    inputs, targets = (
        reading.public_inputs[chosen].to(like),
        one_hot(labels, reading.classes, like.dtype).to(like.device),
    )
    rows = torch.arange(_SETS, device=like.device) % len(reading)
    observed = {name: value[rows] for name, value in observations(reading)[0].items()}
    gradual = replace(mismatch, reading=replace(reading, description=reading.description.softened(width)))
    hard, soft = (each.simulated(observed, inputs, targets) for each in (mismatch, gradual))
    noise = reading.description.noise
    return {
        name: (soft[name] - value).square().mean()
        + (noise.variances[name].mean() if noise.variances else noise.variance)
        for name, value in hard.items()
    }
