"""The order of a client's examples over its local steps: declared by the user, or sought."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from bench.attacks.objective.repeats import distinct_examples
from bench.errors import BenchError
from bench.own.likeness import likeness
from bench.own.replay import positions, replayed
from bench.rows import flattened
from bench.trip import Reading

_STARTS = 8  # random orders at the start of a search
_ROUNDS, _SWAPS = 12, 32  # rounds of a search, and exchanges in each


def declared(order: Sequence[int] | Tensor, reading: Reading) -> Tensor:
    """Check the user's `order` of examples for the training that `reading` declares (steps, batch, epochs), and return
    it as a tensor (use,): numbers of the examples in the order of local steps. Raises `BenchError` unless each epoch
    has each example once."""
    distinct, uses = distinct_examples(reading), reading.examples
    at = torch.as_tensor(order).reshape(-1).long()
    epochs = [len(epoch.unique()) == len(epoch) for epoch in at.split(distinct)]
    if len(at) == uses and all(epochs) and 0 <= int(at.min()) <= int(at.max()) < distinct:
        return at
    raise BenchError(
        f"order: give {uses} numbers of examples, 0 to {distinct - 1}, in the order of the steps, each once an epoch"
    )


def matters(reading: Reading) -> bool:
    """Return whether a check of a user's reading (observed update) needs the order of the examples: True if a single
    client takes several local steps on more than one example, so that another order may give another update."""
    return reading.steps > 1 and reading.senders == 1 and reading.examples > 1


def sought(reading: Reading, observed: dict[str, Tensor], inputs: Tensor, labels: Tensor, enough: float) -> Tensor:
    """Search for the order of the examples in the local steps that best explains the update `observed`, name →
    (reading, *shape). Return numbers of examples in this order, (reading, use).

    - `reading`: the user's reading, which declares the training (model, weights, batch, steps, rate).
    - `inputs` (reading, example, *shape), `labels` (reading, example): true examples.
    - `enough`: cosine between the update and its replay (the update computed again) at which the search ends; it also
      ends after a fixed number of replays."""
    return torch.stack(
        [
            _of_row(
                reading.of([row]),
                {name: value[row : row + 1] for name, value in observed.items()},
                inputs[row : row + 1],
                labels[row : row + 1],
                enough,
            )
            for row in range(len(reading))
        ]
    )


def spread(reading: Reading, inputs: Tensor, labels: Tensor) -> tuple[float, float]:
    """Measure the effect of the examples' order on the update, to tell if a wrong order can explain a failed check.
    Return the smallest cosine between updates under several random orders, and the largest factor between their
    lengths; (1, 1) means no effect. The updates are simulated by the training that `reading` declares, on the true
    examples `inputs` (reading, example, *shape) and `labels` (reading, example)."""
    replays = [replayed(reading, inputs, labels, positions(reading, draw, 0)) for draw in range(_STARTS)]
    pairs = [likeness(one, other) for one, other in pairwise(replays)]
    factors = torch.stack([pair.scale for pair in pairs])
    return min(pair.least[0] for pair in pairs), float(torch.maximum(factors, 1 / factors.clamp_min(1e-300)).max())


def _of_row(reading: Reading, observed: dict[str, Tensor], inputs: Tensor, labels: Tensor, enough: float) -> Tensor:
    whole = flattened(observed, 1).double()

    def differences(orders: Tensor) -> Tensor:
        """Return the update minus its replay (the update computed again) for each order in `orders` (order, use),
        flattened: (order, coordinate)."""
        count = len(orders)
        rows = reading.of([0] * count)
        update = replayed(rows, inputs.expand(count, *inputs.shape[1:]), labels.expand(count, -1), orders)
        return whole - flattened(update, 1).double()

    def left_of(rest: Tensor) -> float:
        return float(rest.square().sum() / whole.square().sum())

    draws = torch.Generator().manual_seed(0)
    starts = torch.stack([positions(reading), *(positions(reading, n, 0) for n in range(1, _STARTS))])
    found = []
    for start in starts[differences(starts).square().sum(1).argsort()]:
        order, rest = _descent(reading, differences, start, draws, 1 - enough**2, left_of)
        found.append((left_of(rest), order))
        if found[-1][0] <= 1 - enough**2:
            break
    return min(found, key=lambda pair: pair[0])[1]


def _descent(
    reading: Reading,
    differences: Callable[[Tensor], Tensor],
    order: Tensor,
    draws: torch.Generator,
    enough: float,
    left_of: Callable[[Tensor], float],
) -> tuple[Tensor, Tensor]:
    """Exchange examples of `order` (use,) while the difference to the update falls; return the order and its difference
    (coordinate,). The descent ends at a rest of `enough`."""
    rest = differences(order[None])[0]
    for _ in range(_ROUNDS):
        swaps = [swap for _ in range(_SWAPS) if (swap := _swap(reading, draws)) is not None]
        if left_of(rest) <= enough or not swaps:
            break
        singles = torch.stack([_exchanged(order, [swap]) for swap in swaps])
        each = differences(singles)
        sets = [_exchanged(order, some) for some in _together(swaps, rest, each - rest)]
        orders = torch.stack([order, *singles, *sets])
        rests = torch.cat([rest[None], each, *([differences(torch.stack(sets))] if sets else [])])
        best = int(rests.square().sum(1).argmin())
        order, rest = orders[best], rests[best]
    return order, rest


def _together(swaps: list[tuple[int, int]], left: Tensor, changes: Tensor) -> Iterator[list[tuple[int, int]]]:
    """Yield sets of exchanges of different examples whose summed `changes` (swap, coordinate) reduce the difference
    `left` (coordinate,): each set has an exchange more."""
    taken: list[int] = []
    while True:
        used = {place for number in taken for place in swaps[number]}
        gains = left.square().sum() - (left + changes).square().sum(1)
        for number, swap in enumerate(swaps):
            if not used.isdisjoint(swap):
                gains[number] = -torch.inf
        best = int(gains.argmax())
        if gains[best] <= 0:
            return
        taken.append(best)
        left = left + changes[best]
        if len(taken) > 1:
            yield [swaps[number] for number in taken]


def _swap(reading: Reading, draws: torch.Generator) -> tuple[int, int] | None:
    """Draw two uses in different steps of an epoch; None if the first has no such other."""
    step = torch.repeat_interleave(torch.arange(reading.steps), torch.tensor(reading.batches))
    epoch = torch.arange(len(step)) // distinct_examples(reading)
    first = int(torch.randint(len(step), (1,), generator=draws))
    others = torch.nonzero((epoch == epoch[first]) & (step != step[first]))[:, 0]
    return (first, int(others[torch.randint(len(others), (1,), generator=draws)])) if len(others) else None


def _exchanged(order: Tensor, swaps: list[tuple[int, int]]) -> Tensor:
    result = order.clone()
    for first, second in swaps:
        result[[first, second]] = result[[second, first]]
    return result
