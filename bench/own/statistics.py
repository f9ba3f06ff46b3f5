"""BatchNorm's running statistics in a client's message, and their comparison with the true batches."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bench.attacks.objective.distance import Distance
from bench.attacks.objective.mismatch import Mismatch, observations
from bench.attacks.objective.statistics import layers, statistics_gap, watched
from bench.errors import BenchError
from bench.gradients import one_hot
from bench.own.coerce import Values, tensor
from bench.own.weights import named_state
from bench.record.checkpoints import refuse_diverged
from bench.trip import Reading

Weights = Mapping[str, Values] | Sequence[Values]
_SAME = 1e-3  # squared deviations: rounding of running statistics to 16 bits stays below


def sent_statistics(
    module: nn.Module, given: Weights | None, after: Weights | None, count: int
) -> dict[str, Tensor] | None:
    """Return the BatchNorm statistics that attackers learn from a client's message, as buffer's name → (reading,
    channel), for `count` readings (observed updates). These are the running statistics after the client's steps. None
    if no statistics moved.

    - `module`: the model, with the statistics before the round.
    - `given`: statistics from the user; None takes those in `after`.
    - `after`: the client's weights and buffers after the round, or None.

    Raises `BenchError` if `given` does not fit the module."""
    before = {
        f"{path}.{name}": value
        for path, layer in layers(module)
        for name, value in (("running_mean", layer.running_mean), ("running_var", layer.running_var))
    }
    if given is None:
        state = {} if after is None else named_state(after, module, "after")
        found = {name: state[name][None] for name in before if name in state}
        known = len(found) == len(before) and _moved(found, before)
    else:
        named = dict(given) if isinstance(given, Mapping) else named_state(given, module, "statistics")
        if missing := [name for name in before if name not in named]:
            raise BenchError(f"statistics: no {missing[0]!r}; give the client's state_dict() after its steps")
        found = {name: _rows(tensor(named[name], name), like, count, name) for name, like in before.items()}
        refuse_diverged(found, where="statistics")
        known = True
        if not before:
            raise BenchError("statistics: the model has no BatchNorm with running statistics; leave statistics out")
        if not _moved(found, before):
            raise BenchError(
                "statistics: they are the model's own; give a copy of the model from before the client's forward pass"
            )
    return {name: value.to(before[name]) for name, value in found.items()} if known else None


def statistics_fault(reading: Reading, inputs: Tensor, labels: Tensor, at: Tensor) -> str | None:
    """Compare the batch statistics of the true examples with the statistics that the client sent
    (`reading.statistics`). Return a line of text if they differ, otherwise None.

    - `reading`: the user's reading, which declares the training and holds the sent statistics.
    - `inputs` (reading, example, *shape), `labels` (reading, example): true examples.
    - `at` (use,) or (reading, use): numbers of the examples in the order of local steps."""
    if reading.statistics is None:
        return None
    rows = torch.arange(len(inputs))[:, None]
    targets = one_hot(labels[rows, at], reading.classes, inputs.dtype)
    mismatch = Mismatch(reading=reading, distance=Distance(kind="l2"), unrolled=reading.stepwise)
    with watched(reading.model) as calls:
        mismatch.simulated(observations(reading)[0], inputs[rows, at], targets)
    gap = statistics_gap(reading, calls, simulated_steps=reading.steps if mismatch.unrolled else 1).detach()
    if float(gap.max()) <= _SAME:
        return None
    which = f" (reading {int(gap.argmax())})" if len(gap) > 1 else ""
    return (
        f"the running statistics are of other batches (off by {float(gap.max()) ** 0.5:.2g} deviations{which}); give "
        "those after the same steps, and a model with those before"
    )


def _moved(found: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> bool:
    return any(not torch.equal(value.to(before[name]), before[name].expand_as(value)) for name, value in found.items())


def _rows(value: Tensor, like: Tensor, count: int, name: str) -> Tensor:
    if tuple(value.shape) not in (tuple(like.shape), (count, *like.shape)):
        raise BenchError(
            f"statistics: {name!r} has shape {tuple(value.shape)}, expected {tuple(like.shape)}, or a row per reading"
        )
    return value.expand(count, *like.shape)
