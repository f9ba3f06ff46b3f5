"""Contracts for a defense beyond the attacked round: in later rounds, and with the draws used in training."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from bench.contracts.base import ContractSkipped, require
from bench.contracts.descriptions import arriving_at, of_one
from bench.contracts.trials import CLIENTS, DRAWS, SIGMAS, Trial, context_of, first_trial, lead_of
from bench.defenses.accounting.mechanism import Mechanism
from bench.defenses.base import Context, Defense, Setting, State, Transform
from bench.federated.draws import StreamDraws
from bench.points import Stage
from bench.rows import flattened
from bench.trip import Tensors

_ROUNDS = 30
_HALF = 0.5  # least squared change in a later round, relative to the first round


def rounds(defense: Defense) -> None:
    """Check that the defense does not weaken in later rounds, because attacks on a single round stand for all rounds.
    Each transform (a function on tensors) must change its tensors in every round by at least half its change in round
    0. Raises `ContractBroken` otherwise.

    The change is the squared norm of output minus input, for equal tensors and draws. It is measured twice: from the
    transform's initial state, and from the state after the previous rounds. A smaller change is allowed if the defense
    states smaller noise for the round."""
    words, trial = first_trial(defense)
    try:
        trial = trial.of_rounds(defense, _ROUNDS)
    except ValueError:  # only another choice of its parameters was accepted
        raise ContractSkipped("it refuses the setting") from None
    for stage, transform, given, state in arriving_at(trial):
        what = f"{words}, {stage}: in round {{}} {type(transform).__name__}"
        _keeps(what, defense, trial, stage, transform, given, state, moving=False)
        if state:
            _keeps(what, defense, trial, stage, transform, given, state, moving=True)


def _keeps(
    what: str,
    defense: Defense,
    trial: Trial,
    stage: Stage,
    transform: Transform,
    given: Tensors,
    state: State,
    *,
    moving: bool,
) -> None:
    """Require that `transform` changes the gradients `given` in every later round by at least half its change in round
    0. True for `moving` starts each round from the state after the previous round, False from the initial `state`.
    `defense`, `trial` and `stage` give the context. `what`, with `{}` for the round, begins the error message."""
    start = context_of(trial, stage)
    after, now_state = transform.update(given, state, start)
    first, said = _change(after, given), _variance(transform, start, state)
    for round_ in range(1, _ROUNDS):
        context = replace(start, round=round_)
        stated = _stated(defense, trial.stages.setting, round_)
        if moving and said:
            stated = min(stated, _variance(transform, context, now_state) / said)
        after, next_state = transform.update(given, now_state if moving else state, context)
        now, now_state = _change(after, given), next_state
        require(
            now >= _HALF * stated * first,
            f"{what.format(round_)} changes its input by {now:.3g}, in round 0 by {first:.3g} (squared), and no "
            "smaller noise is stated",
        )


def _variance(transform: Transform, context: Context, state: State) -> float:
    """Return the noise variance that the transform states, as a mean over coordinates; 0 without a statement."""
    said = transform.noise(context, of_one(transform, state))
    if said is None:
        return 0.0
    if isinstance(said.variance, Mapping):
        return float(flattened(said.variance, 0).mean())
    return said.variance


def _stated(defense: Defense, setting: Setting, round_: int) -> float:
    """Return σ_t²/σ_0², at most 1, for the mechanism's noise multipliers in round t = `round_` and in round 0."""
    mechanism = defense.mechanism(setting)
    if not isinstance(mechanism, Mechanism) or not mechanism.sigmas[0]:
        return 1.0
    at = round_ * (setting.steps if mechanism.by_step else 1)
    return min(1.0, (mechanism.sigmas[min(at, len(mechanism.sigmas) - 1)] / mechanism.sigmas[0]) ** 2)


def _change(after: Tensors, before: Tensors) -> float:
    return float((flattened(after, 0) - flattened(before, 0)).square().sum())


def training_draws(defense: Defense) -> None:
    """Check that a defense's outputs have the same distribution in a training as in an attack. (A training takes random
    numbers from a stream for each client, an attack from a generator for each draw.) Without randomness, outputs must
    be equal; otherwise their mean and mean square must agree to five standard errors. Raises `ContractBroken`
    otherwise."""
    words, trial = first_trial(defense)
    for stage, transform, given, state in arriving_at(trial):
        if not lead_of(stage):
            continue  # the server's draws are keyed in trainings too
        keyed, streamed = (_outputs(trial, stage, transform, given, state, kind) for kind in ("keyed", "streamed"))
        what = f"{words}, {stage}: {type(transform).__name__}"
        if not transform.random:
            require(bool((keyed[0] == streamed[0]).all()), f"{what} gives another output with a training's draws")
            continue
        for power, name in ((1, "mean"), (2, "mean square")):
            one, other = keyed.pow(power).mean(1), streamed.pow(power).mean(1)  # of each draw
            error = float((one.var() + other.var()) / DRAWS) ** 0.5 + 1e-12
            apart = abs(float(one.mean() - other.mean()))
            require(
                apart <= SIGMAS * error,
                f"{what}'s {name} is another with a training's draws ({apart:.3g} ± {error:.1g})",
            )


def _outputs(trial: Trial, stage: Stage, transform: Transform, given: Tensors, state: State, kind: str) -> Tensor:
    shown = []
    for draw in range(DRAWS if transform.random else 1):
        context = context_of(trial, stage, draw=draw)
        if kind == "streamed":
            context = replace(context, draws=StreamDraws.of(3, draw, 0, CLIENTS, torch.device("cpu")))
        shown.append(flattened(transform.update(given, state, context)[0], 0))
    return torch.stack(shown)
