"""Contract of a defense that states an ε: no gradient, however large, moves what is seen by more than it counts."""

from collections.abc import Iterator
from math import sqrt

import torch

from bench.contracts.base import ContractSkipped, require
from bench.contracts.situations import Tensors
from bench.contracts.trials import CLIENTS, Trial, first_trial, variants
from bench.defenses.accounting.mechanism import Mechanism
from bench.defenses.base import Defense, Draws
from bench.defenses.transforms.rows import norms
from bench.federated.draws import ZeroDraws
from bench.federated.pipeline import sent_unit
from bench.federated.stages import DrawKey
from bench.points import STAGES, UPDATE_STAGES, Stage

_DRAWS = 128
_SLACK = 1.1  # deviations are measured, each to 6 %
_LARGE = 1e6
_BENT = 2.0  # mean square of a standardised difference that says so; 1 by chance, of hundreds of coordinates
_Shown = dict[Stage, dict[str, torch.Tensor]]


def sensitivity(defense: Defense) -> None:
    """One row (an example's gradient, a client's update) is replaced by crafted ones: its own 10⁶ times larger, and
    each tensor of it alone.  Against a row of zeros none moves what a stage shows by more noise deviations than the
    mechanism counts there: half of what replacing a row does."""
    words, trial, mechanism = _stated(defense)
    start: Stage = "example" if mechanism.unit == "example" else UPDATE_STAGES[0]
    given = trial.at(start)
    try:
        still = _shown(trial, start, _with_row(given, {}), ZeroDraws())
    except RuntimeError:
        raise ContractSkipped("it draws other than normals, and cannot be run without its noise") from None
    mean, deviations = _drawn(trial, start, given)
    without = _shown(trial, start, given, ZeroDraws())
    linear = _linear(words, mechanism, mean, without, deviations)
    root = sqrt(len(trial.weights)) if mechanism.per_tensor else 1.0
    for craft, row in _crafted(given):
        moved = _shown(trial, start, _with_row(given, row), ZeroDraws())
        for stage in linear:
            limit = root / (2 * mechanism.rows[stage] * mechanism.sigmas[0])
            found = _length(moved[stage], still[stage], deviations[stage])
            require(
                found <= _SLACK * limit,
                f"{words}, {stage}: {craft} moves what is seen by {found:.3g} deviations of the noise, and its ε "
                f"counts {limit:.3g}",
            )


def _linear(
    words: str, mechanism: Mechanism, mean: _Shown, without: _Shown, deviations: _Shown
) -> list[Stage]:
    """The stages at which the noise is only added, or averaged.

    What comes after is post-processing, such as a clipping of what is noisy: no ε there may count more than before.
    """
    stages: list[Stage] = []
    bent = False
    for stage in (stage for stage in STAGES if mechanism.rows.get(stage)):
        if _bent(mean[stage], without[stage], deviations[stage]) or bent:
            bent = True
            before = max((mechanism.rows[each] for each in stages), default=None)
            more = before is not None and mechanism.rows[stage] > before * (1 + 1e-9)
            require(
                not more, f"{words}, {stage}: its ε counts more noise than before a step that is not linear"
            )
            continue
        stages.append(stage)
    return stages


def _length(moved: Tensors, still: Tensors, deviations: Tensors) -> float:
    """How far apart, in deviations of the noise."""
    parts = [((moved[name] - still[name]) / deviations[name]).flatten().nan_to_num(0.0) for name in moved]
    return float(torch.cat(parts).norm())


def _stated(defense: Defense) -> tuple[str, Trial, Mechanism]:
    """The first choice of its parameters that takes the setting, and the mechanism that it states."""
    for variant in variants(defense):
        try:
            words, trial = first_trial(variant)
            mechanism = variant.mechanism(trial.stages.setting)
        except ValueError:
            continue
        if isinstance(mechanism, Mechanism) and not mechanism.unproved and mechanism.sigmas[0]:
            return words, trial, mechanism
        break
    raise ContractSkipped("it states no ε of a Gaussian mechanism")


def _bent(mean: Tensors, without: Tensors, deviations: Tensors) -> bool:
    """Whether the mean over draws is not what is shown without noise."""
    parts = [((mean[name] - without[name]) / deviations[name]).flatten().nan_to_num(0.0) for name in mean]
    return float(torch.cat(parts).square().mean() * _DRAWS) > _BENT


def _crafted(given: Tensors) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Rows in place of the first one, name → (*shape); names that are left out are zero."""
    own = {name: _first(value, given) for name, value in given.items()}
    for sign, words in ((1, "a gradient 10⁶ times larger"), (-1, "one of the other sign")):
        yield words, {name: sign * _LARGE * value for name, value in own.items()}
    for name, value in own.items():
        yield f"{name} alone, 10⁶ times larger", {name: _LARGE * value}


def _first(value: torch.Tensor, given: Tensors) -> torch.Tensor:
    return value[0, 0] if _is_examples(given) else value[0]


def _is_examples(given: Tensors) -> bool:
    """Whether rows are (client, example): the bias of the last layer then has three axes."""
    return min(value.ndim for value in given.values()) > 2


def _with_row(given: Tensors, row: Tensors) -> dict[str, torch.Tensor]:
    changed = {}
    for name, value in given.items():
        changed[name] = value.clone()
        _first(changed[name], given).copy_(row.get(name, torch.zeros_like(_first(value, given))))
    return changed


def _shown(trial: Trial, start: Stage, given: Tensors, draws: Draws | None, draw: int = 0) -> _Shown:
    """What each stage from `start` on shows of the first client, name → (*shape): the round behind that stage."""
    stages, current, shown = trial.stages, dict(given), _Shown()
    key = DrawKey(seed=3, draw=draw, round=0)
    for stage in STAGES[STAGES.index(start) :]:
        left = None
        if stage == "step":
            left = norms(current, 2)
            current = {name: value.mean(1) for name, value in current.items()}
        elif stage == UPDATE_STAGES[0] and start != stage:
            current = {name: sent_unit(trial.federated) * value for name, value in current.items()}
        elif stage == "aggregate":
            current = {name: value.mean(0) for name, value in current.items()}
        examples = next(iter(current.values())).shape[1] if stage == "example" else 0
        current, stages = stages.apply(
            stage, current, key, () if stage == "aggregate" else CLIENTS, draws, norms=left, weights=trial.weights,
            local=trial.local(CLIENTS, examples) if stage == "example" else None,
        )  # fmt: skip
        rows = {name: value[0, 0] if stage == "example" else value[0] for name, value in current.items()}
        shown[stage] = dict(current) if stage == "aggregate" else rows
    return shown


def _drawn(trial: Trial, start: Stage, given: Tensors) -> tuple[_Shown, _Shown]:
    """The mean of what each stage shows over draws, and each coordinate's deviation."""
    sums: _Shown = {}
    squares: _Shown = {}
    for draw in range(_DRAWS):
        for stage, tensors in _shown(trial, start, given, None, draw).items():
            for name, value in tensors.items():
                sums.setdefault(stage, {})[name] = sums.get(stage, {}).get(name, 0) + value
                squares.setdefault(stage, {})[name] = squares.get(stage, {}).get(name, 0) + value.square()
    mean = {
        stage: {name: total / _DRAWS for name, total in tensors.items()} for stage, tensors in sums.items()
    }
    return mean, {
        stage: {
            name: ((squares[stage][name] - total.square() / _DRAWS) / (_DRAWS - 1)).clamp_min(0).sqrt()
            for name, total in tensors.items()
        }
        for stage, tensors in sums.items()
    }
