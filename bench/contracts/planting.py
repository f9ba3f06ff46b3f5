"""Worst-case rows (tensors of a client or an example) for a contract's federated round, and the effect of a row at each
stage."""

from collections.abc import Iterator

import torch
from torch import Tensor

from bench.contracts.trials import Trial
from bench.defenses.base import Draws
from bench.defenses.transforms.rows import norms
from bench.federated.stages import DrawKey
from bench.points import STAGES, UPDATE_STAGES, Stage
from bench.trip import Tensors

LARGE = 1e6
_SIZES = (1.0, 3.0, 10.0, 30.0, 100.0, 1e3, 1e4, LARGE)  # a bound may fail for medium sizes only


def crafted(given: Tensors) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield worst-case gradients, with which a contract or an audit searches for the largest change that a client or an
    example can make: (description in words, row). A row, name → (*shape), holds the gradient tensors of a client or an
    example. The rows are multiples of the first row of `given` (the tensors of all clients), and single tensors of this
    row times 10⁶; missing tensors count as zero."""
    own = {name: first(value, given) for name, value in given.items()}
    for size in _SIZES:
        yield f"a gradient {size:g} times larger", {name: size * value for name, value in own.items()}
    yield "one of the other sign", {name: -LARGE * value for name, value in own.items()}
    for name, value in own.items():
        yield f"{name} alone, 10⁶ times larger", {name: LARGE * value}


def first(value: Tensor, given: Tensors) -> Tensor:
    """Return the part of the tensor `value` that belongs to the first client, (*shape), or in gradients of single
    examples to the first client's first example. A test replaces this part by a worst-case gradient (`crafted`).
    `given` are all tensors of the round at this stage; their numbers of axes tell whether there is an example axis."""
    return value[0, 0] if min(each.ndim for each in given.values()) > 2 else value[0]


def with_row(given: Tensors, row: Tensors) -> dict[str, Tensor]:
    """Plant a worst-case gradient in a round: return a copy of the tensors `given` with `row` (name → (*shape)) in
    place of the first row (client or example). Tensors missing in `row` become zero there."""
    changed = {}
    for name, value in given.items():
        changed[name] = value.clone()
        first(changed[name], given).copy_(row.get(name, torch.zeros_like(first(value, given))))
    return changed


def shown_from(
    trial: Trial, start: Stage, given: Tensors, *, draw: int = 0, draws: Draws | None = None
) -> dict[Stage, dict[str, Tensor]]:
    """Run the federated round `trial` from the stage (place in the round) `start` on, with the tensors `given` as that
    stage's input, to see what an attacker observes for worst-case tensors. Return the tensors after each stage: stage →
    name → (client, example, *shape), (client, *shape) or (*shape).

    - `draw`: number of the defense's random draws; another number gives other draws.
    - `draws`: source of random numbers in place of `draw`; None: `draw` is used."""
    chain, current, shown = trial.stages, dict(given), dict[Stage, dict[str, Tensor]]()
    key = DrawKey(seed=3, draw=draw, round=0)
    for stage in STAGES[STAGES.index(start) :]:
        left, each = None, None
        if stage == "step":
            left, each = norms(current, 2), current
            current = {name: value.mean(1) for name, value in current.items()}
        elif stage == UPDATE_STAGES[0] and start != stage:
            current = {name: trial.federated.unit * value for name, value in current.items()}
        elif stage == "aggregate":
            current = {name: value.mean(0) for name, value in current.items()}
        current, chain = chain.apply(
            stage,
            current,
            key,
            () if stage == "aggregate" else trial.clients,
            draws,
            norms=left,
            weights=trial.weights,
            examples=each,
            local=trial.local(stage, tensors=current),
        )
        shown[stage] = dict(current)
    return shown
