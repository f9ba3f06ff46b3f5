"""Contract for the few values that a random transform may give each coordinate (`Transform.outcomes`)."""

import torch

from bench.contracts.base import ContractSkipped, require
from bench.contracts.descriptions import arriving_at
from bench.contracts.trials import DRAWS, SIGMAS, context_of, first_trial
from bench.defenses.base import Defense

_EXACT = 1e-9  # relative distance of an output from a stated value, float64


def outcomes(defense: Defense) -> None:
    """Check `Transform.outcomes`, by which a transform (a defense's function on tensors) states the few values that a
    coordinate of its output may take, such as the levels of a quantiser, with their probabilities. Every output must be
    a stated value, and the last value must occur as often as stated, to five standard errors. Raises `ContractBroken`
    otherwise."""
    words, trial = first_trial(defense)
    stated = 0
    for stage, transform, given, state in arriving_at(trial):
        said = transform.outcomes(given, context_of(trial, stage))
        if said is None:
            continue
        stated += 1
        drawn = [transform.update(given, state, context_of(trial, stage, draw=draw))[0] for draw in range(DRAWS)]
        for key in given:
            what = f"{words}, {stage}: {type(transform).__name__}.outcomes, {key}"
            values, chances = said.values[key], said.chances[key]
            sums = float((chances.sum(0) - 1).abs().max())
            require(sums <= _EXACT, f"{what}: probabilities add up to 1 ± {sums:.1e}")
            seen = torch.stack([each[key] for each in drawn])
            apart = (seen[:, None] - values).abs()
            possible = apart.where(chances > 0, torch.inf).amin(1)
            off = float(possible.max() / values.abs().max().clamp_min(torch.finfo(values.dtype).tiny))
            require(off <= _EXACT, f"{what}: an output is off every possible value by {off:.1e} of the largest")
            distinct = (values[:-1] - values[-1]).abs().amin(0) > 0
            chance = chances[-1][distinct]
            last = (apart[:, -1] == apart.amin(1))[:, distinct].double().sum()
            expected, error = DRAWS * chance.sum(), (DRAWS * (chance * (1 - chance)).sum()).sqrt()
            require(
                float((last - expected).abs()) <= SIGMAS * float(error) + 1,
                f"{what}: the last value comes {float(last):.0f} times, by its probability {float(expected):.0f} ± "
                f"{SIGMAS * float(error):.0f}",
            )
    if not stated:
        raise ContractSkipped("its outputs are not a choice of few values")
