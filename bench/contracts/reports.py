"""Contract for a defense with an ε per report (a sent coordinate): a report reveals no more than ε about any update."""

from math import exp, inf, log, sqrt

import torch

from bench.contracts.base import ContractSkipped, require
from bench.contracts.trials import CLIENTS, SIGMAS, Trial, first_trial, variants
from bench.defenses.accounting.mechanism import Reports
from bench.defenses.base import Defense
from bench.points import UPDATE_STAGES
from bench.trip import Tensors

_DRAWS = 64
_SLACK = 0.02  # share of ε allowed for chance, above the stated error
_SIZES = (1e6, 1.0, 0.0, -1.0, -1e6)  # sizes of a client's update, in units of its largest coordinate


def reports(defense: Defense) -> None:
    """Check the stated ε of a locally private defense: another update of the client may change the probability of an
    event of a report (a sent coordinate) by at most a factor e^ε. Raises `ContractBroken` otherwise.

    The test compares five updates in pairs; in each update all coordinates have the same value, from large to small.
    The events are a report above, and a report below, the middle of the coordinate's range. Their probabilities are
    measured in 64 draws, over all coordinates whose report varies."""
    words, trial, epsilon = _stated(defense)
    stage = next(stage for stage in UPDATE_STAGES if trial.stages.has(stage))
    own = trial.at(stage)
    shown = {size: _drawn(trial, own, size) for size in _SIZES}
    every = torch.stack([*shown.values()])
    middle = (every.amin((0, 1)) + every.amax((0, 1))) / 2
    reported = every.amin((0, 1)) < every.amax((0, 1))
    require(bool(reported.any()), f"{words}: no coordinate's report changes with the update")
    count = _DRAWS * int(reported.sum())
    chances = {
        "high": {size: float((draws > middle)[:, reported].double().mean()) for size, draws in shown.items()},
        "low": {size: float((draws < middle)[:, reported].double().mean()) for size, draws in shown.items()},
    }
    for kind, of_size in chances.items():
        for one, p in of_size.items():
            for other, q in of_size.items():
                error = sqrt((1 - p) / (count * p) + (1 - q) / (count * q)) if p and q else inf
                gained = log(p / q) if p and q else inf if p > SIGMAS / count else 0.0
                chance = SIGMAS * error if p and q else 0.0
                require(
                    gained <= epsilon * (1 + _SLACK) + chance,
                    f"{words}: an update of {one:g} at each coordinate reports {kind} with chance {p:.3g}, one of "
                    f"{other:g} with {q:.3g}; its ε of {epsilon:g} allows a factor of {exp(epsilon):.3g}",
                )


def _stated(defense: Defense) -> tuple[str, Trial, float]:
    for variant in variants(defense):
        try:
            words, trial = first_trial(variant)
            mechanism = variant.mechanism(trial.stages.setting)
        except ValueError:
            continue
        if isinstance(mechanism, Reports):
            return words, trial, mechanism.epsilon
        break
    raise ContractSkipped("its reports state no ε")


def _drawn(trial: Trial, own: Tensors, size: float) -> torch.Tensor:
    stage = next(stage for stage in UPDATE_STAGES if trial.stages.has(stage))
    largest = max(float(value.abs().max()) for value in own.values())
    mixed = any(item.mixes_clients for item in trial.stages.transforms[stage])
    clients = CLIENTS if mixed else CLIENTS[:1]  # alone as in company, by another contract
    scaled = {name: torch.full_like(value[: len(clients)], size * largest) for name, value in own.items()}
    draws = [trial.apply(stage, scaled, draw=draw, clients=clients) for draw in range(_DRAWS)]
    return torch.stack([torch.cat([value[0].flatten() for value in each.values()]) for each in draws])
