"""Contract for a defense with a stated ε: no gradient moves a reading by more than the counted sensitivity."""

from math import sqrt

import torch

from bench.contracts.base import ContractSkipped, require
from bench.contracts.law import dependence
from bench.contracts.planting import LARGE, crafted, shown_from, with_row
from bench.contracts.trials import CLOSE, Trial, first_trial, variants
from bench.defenses.accounting.mechanism import Mechanism
from bench.defenses.base import Defense, Draws
from bench.points import STAGES, UPDATE_STAGES, Stage
from bench.rows import flattened
from bench.trip import Tensors

_DRAWS = 128
_ROUNDS = (2, 100)  # T: a mechanism must hold in both settings
_SLACK = 1.1  # deviations are estimated, each to 6 %
_DEPENDENT = 2.0  # largest `dependence`; independent coordinates give 1
_BENT = 2.0  # mean squared standardised difference of a non-linear stage; 1 by chance
_Shown = dict[Stage, dict[str, torch.Tensor]]


def sensitivity(defense: Defense) -> None:
    """Check that the sensitivity behind a defense's ε is large enough: no row (an example's gradient or a client's
    update) may move the output of a stage (place in the round) further than the defense's `mechanism` (its stated noise
    and sensitivity) assumes.

    The contract replaces a row by zeros and by worst-case rows: a real row times 1 to 10⁶ and -10⁶, and single tensors
    of the row. The output may then move by at most half the change, in standard deviations of the noise, that the
    mechanism states for a replaced row. (A row replaced by another row moves the output twice: to zero, and from zero.)

    Raises `ContractBroken` for a larger change, for noise with dependent coordinates, and for more stated than measured
    noise. Raises `ContractSkipped` for a defense without an ε of Gaussian noise."""
    for rounds in _ROUNDS:
        words, trial, mechanism = _stated(defense, rounds)
        _keeps(f"{words}, T={rounds}", trial, mechanism)


def _keeps(words: str, trial: Trial, mechanism: Mechanism) -> None:
    start: Stage = "example" if mechanism.unit == "example" else UPDATE_STAGES[0]
    given = trial.at(start)
    still = _shown(trial, start, with_row(given, {}), _Draws(None))
    mean, deviations, draws = _drawn(trial, start, given)
    without = _shown(trial, start, given, _Draws(None))
    linear = _linear(words, mechanism, mean, without, deviations)
    for stage in linear:
        found = _dependence(draws[stage], mean[stage], deviations[stage])
        require(
            found <= _DEPENDENT,
            f"{words}, {stage}: the noise's coordinates depend on one another (two draws agree {found:.3g} times as "
            "independent ones do), so that a part of what is seen has none",
        )
    seen = max((mechanism.rows[stage] for stage in linear), default=0.0)
    require(
        mechanism.released <= 2 * seen * (1 + 1e-6),
        f"{words}: its ε of released models counts {mechanism.released:.3g} σ of noise over the sensitivity, and no "
        f"stage shows a row behind more than {2 * seen:.3g}",
    )
    root = sqrt(len(trial.weights)) if mechanism.per_tensor else 1.0
    for craft, row in crafted(given):
        moved = _shown(trial, start, with_row(given, row), _Draws(None))
        for stage in linear:
            limit = root / (2 * mechanism.rows[stage] * mechanism.sigmas[0])
            found = _length(moved[stage], still[stage], deviations[stage])
            require(
                found <= _SLACK * limit,
                f"{words}, {stage}: {craft} moves what is seen by {found:.3g} deviations of the noise, and its ε "
                f"counts {limit:.3g}",
            )


def _linear(words: str, mechanism: Mechanism, mean: _Shown, without: _Shown, deviations: _Shown) -> list[Stage]:
    """Return the stages at which noise is only added or averaged. Later stages, such as a clip of noisy tensors, are
    post-processing: the mechanism must not state more noise there. `mean` is the mean output over draws, `without` the
    output without noise, and `deviations` the deviation of each coordinate. `words` begin the error message."""
    added: list[Stage] = []
    bent = False
    for stage in (stage for stage in STAGES if mechanism.rows.get(stage)):
        if _bent(mean[stage], without[stage], deviations[stage]) or bent:
            bent = True
            before = max((mechanism.rows[each] for each in added), default=None)
            more = before is not None and mechanism.rows[stage] > before * (1 + 1e-9)
            require(not more, f"{words}, {stage}: its ε counts more noise than before a step that is not linear")
            continue
        added.append(stage)
    return added


def _length(moved: Tensors, still: Tensors, deviations: Tensors) -> float:
    return float(_standardised(moved, still, deviations).norm())


def _stated(defense: Defense, rounds: int) -> tuple[str, Trial, Mechanism]:
    for variant in variants(defense):
        try:
            words, trial = first_trial(variant)
            trial = trial.of_rounds(variant, rounds)
            mechanism = variant.mechanism(trial.stages.setting)
        except ValueError:
            continue
        if isinstance(mechanism, Mechanism) and not mechanism.unproved and mechanism.sigmas[0]:
            return words, trial, mechanism
        break
    raise ContractSkipped("it states no ε of a Gaussian mechanism")


def _bent(mean: Tensors, without: Tensors, deviations: Tensors) -> bool:
    return float(_standardised(mean, without, deviations).square().mean() * _DRAWS) > _BENT


def _standardised(one: Tensors, other: Tensors, deviations: Tensors) -> torch.Tensor:
    """Return `one` - `other` in deviations of the noise, (coordinate,); 0 for values that are equal up to rounding."""
    parts = []
    for name, value in one.items():
        apart, size = value - other[name], torch.maximum(value.abs(), other[name].abs())
        apart = apart.where(apart.abs() > CLOSE * size, 0.0)
        parts.append((apart / deviations[name]).flatten().nan_to_num(0.0, posinf=LARGE, neginf=-LARGE))
    return torch.cat(parts)


class _Draws:
    """Normal draws with a draw number as seed (None: zeros), and equal uniform draws. The uniforms are equal because
    the ε of Gaussian noise treats them as public."""

    def __init__(self, draw: int | None) -> None:
        self._normals = None if draw is None else torch.Generator().manual_seed(draw)
        self._uniforms = torch.Generator().manual_seed(_DRAWS)

    def normal(self, name: str, like: torch.Tensor) -> torch.Tensor:
        if self._normals is None:
            return torch.zeros_like(like)
        return torch.randn(like.shape, generator=self._normals, dtype=like.dtype)

    def uniform(self, name: str, like: torch.Tensor) -> torch.Tensor:
        return torch.rand(like.shape, generator=self._uniforms, dtype=like.dtype)


def _shown(trial: Trial, start: Stage, given: Tensors, draws: Draws) -> _Shown:
    """Return the first client's tensors after each stage, from the stage `start` on: stage → name → (*shape). `given`
    are the tensors that reach `start`."""
    every, shown = shown_from(trial, start, given, draws=draws), _Shown()
    for stage, tensors in every.items():
        row = {"example": (0, 0), "aggregate": ()}.get(stage, (0,))
        shown[stage] = {name: value[row] for name, value in tensors.items()}
    return shown


def _drawn(trial: Trial, start: Stage, given: Tensors) -> tuple[_Shown, _Shown, dict[Stage, torch.Tensor]]:
    """Run the stages from `start` with several draws, and return three values for each stage. The values are the mean
    over draws, each coordinate's deviation, and all values (draw, coordinate). `given` are the tensors that reach
    `start`."""
    shown = [_shown(trial, start, given, _Draws(draw)) for draw in range(_DRAWS)]
    mean, deviations, draws = _Shown(), _Shown(), {}
    for stage, tensors in shown[0].items():
        stacks = {name: torch.stack([each[stage][name] for each in shown]) for name in tensors}
        mean[stage] = {name: value.mean(0) for name, value in stacks.items()}
        deviations[stage] = {name: _deviation(value) for name, value in stacks.items()}
        draws[stage] = flattened(stacks, 1)
    return mean, deviations, draws


def _deviation(stack: torch.Tensor) -> torch.Tensor:
    deviation = stack.std(0)
    return deviation.where(deviation > CLOSE * stack.abs().amax(0), 0.0)


def _dependence(draws: torch.Tensor, mean: Tensors, deviations: Tensors) -> float:
    centre, deviation = (flattened(each, 0) for each in (mean, deviations))
    noised = deviation > 0
    if not bool(noised.any()):
        return 0.0
    return dependence((draws[:, noised] - centre[noised]) / deviation[noised])
