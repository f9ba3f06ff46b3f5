"""Contradictions between a reading and its declared training, which show without the true examples."""

from collections.abc import Iterator

import torch
from torch import Tensor

from bench.attacks.labels.head import head, usual
from bench.attacks.search.preconditioner import public_batches
from bench.gradients import group_gradients, one_hot
from bench.rows import rows
from bench.trip import Reading

_FAR = 30.0  # factor to a public example's gradient length, beyond which a remark follows
_PUBLIC = 16


def doubts(reading: Reading, observed: dict[str, Tensor]) -> Iterator[str]:
    """Yield a line for each contradiction between a user's reading (observed update) and its declared training, such as
    a gradient of the last bias that does not sum to 0. No true examples are needed. `observed` is the update, name →
    (reading, *shape), in gradient units."""
    last = head(reading)
    exact = last is not None and last.logits and usual(reading)
    bias = observed.get(last.name("bias")) if last is not None and exact else None
    undefended = reading.description is None
    if bias is not None and undefended:
        off = (bias.sum(1).abs() / bias.abs().sum(1).clamp_min(1e-300)).max()
        if off > 0.01:
            yield (
                f"the gradient of the last bias sums to {float(off):.2g} of its length, that of cross entropy to 0: "
                "another loss, weight decay, or a defense that was not declared"
            )
        elif int((bias < 0).sum(1).min()) > reading.examples >= int((bias > 0).sum(1).max()):
            yield "the last bias has the signs of a negative gradient: give before= and after=, in this order"
    weight = observed.get(last.name("weight")) if last is not None and exact else None
    if weight is not None and undefended and reading.steps == 1:
        values = torch.linalg.svdvals(weight.double())
        rank = int((values > 1e-5 * values[:, :1]).sum(1).max())
        if rank > reading.examples:
            yield (
                f"the last layer's gradient has rank {rank}, that of {reading.examples} examples at most "
                f"{reading.examples}: more examples than were declared, or noise"
            )
    if (reading.public_labels >= 0).all() and len(reading.public_inputs) and undefended:
        weights = {name: value[0] for name, value in reading.weights.items()}
        at = public_batches(reading, range(min(_PUBLIC, len(reading.public_inputs))))
        inputs = reading.public_inputs[at].to(next(iter(weights.values())))
        targets = one_hot(reading.public_labels[at], reading.classes, inputs.dtype)
        public = group_gradients(reading.model, weights, inputs, targets)
        norms = [
            torch.stack([rows(value, 1).square().sum(1) for value in each.values()]).sum(0).sqrt()
            for each in (observed, public)
        ]
        ratio = float((norms[0] / norms[1].median().clamp_min(1e-300)).median())
        if not 1 / _FAR <= ratio <= _FAR:
            yield (
                f"it is {ratio:.2g} times as long as a public example's gradient: a rate or 1/B left in or out, or "
                "an example that the model is sure of"
            )
