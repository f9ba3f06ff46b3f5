"""Contract for every defense: single precision, used in cells, agrees with double precision."""

from dataclasses import replace

import torch

from bench.contracts.base import ContractSkipped, require
from bench.contracts.descriptions import arriving_at
from bench.contracts.trials import context_of, first_trial
from bench.defenses.base import Context, Defense, Tensors
from bench.rows import flattened

_NEAR = 1e-2  # relative to the output's norm: rounding may move a coordinate across a threshold


def precision(defense: Defense) -> None:
    """Check that each transform (a defense's function on tensors) gives the same output in float32 (used in
    experiments) and in float64 (used in the other contracts), up to rounding. Raises `ContractBroken` otherwise."""
    words, trial = first_trial(defense)
    looked = False
    for stage, transform, given, state in arriving_at(trial):
        looked, context = True, context_of(trial, stage)
        wide = transform.update(given, state, context)[0]
        single = transform.update(_single(given), _single(state), _single_context(context))[0]
        name = type(transform).__name__
        for key in wide:
            require(single[key].dtype == torch.float32, f"{words}, {stage}: {name} changes the dtype of {key}")
        apart = torch.cat([(single[n].double() - value).flatten() for n, value in wide.items()]).norm()
        size = flattened(wide, 0).norm()
        require(
            bool(apart <= _NEAR * size),
            f"{words}, {stage}: {name} on float32 and on float64 differ by {float(apart / size):.2g} of its norm",
        )
    if not looked:
        raise ContractSkipped("it has no transform")


def _single(tensors: Tensors) -> dict[str, torch.Tensor]:
    return {name: value.float() if value.is_floating_point() else value for name, value in tensors.items()}


def _single_context(context: Context) -> Context:
    local = context.local and replace(
        context.local, weights=_single(context.local.weights), inputs=context.local.inputs.float()
    )
    return replace(
        context,
        local=local,
        norms=context.norms and _single(context.norms),
        examples=context.examples and _single(context.examples),
        weights=context.weights and _single(context.weights),
    )
