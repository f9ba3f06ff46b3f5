"""How strongly each input value moves the gradient, read off public examples: the solver's units of length."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from bench.gradients import group_gradients, one_hot
from bench.rng import Key
from bench.trip import Reading

PUBLIC = 16  # public examples asked
_DRAWS = 64  # random directions over all of them
_LEAST = 1e-3  # of the mean curvature: values that hardly matter are not stretched further
_ROOM = 1 << 22  # coordinates of gradients held at once


def stretch(reading: Reading, like: Tensor, key: Key) -> Tensor:
    """One over the root of the usual curvature of Σ (∇L(x, y) - g)² in each input value, (value,).

    A strided convolution looks at some pixels through more windows than at others, so that curvatures
    differ tenfold by place alone; in these units they are alike (a diagonal preconditioner).  The
    diagonal of JᵀJ, J = ∂∇L/∂x, is the mean of (Jᵀz)² over random signs z (Hutchinson's estimator; Bekas,
    Kokiopoulou & Saad 2007), here over public examples at the reading's weights; 64 draws make it good to
    18 %, its root to 9 %.  Their mean is 1; all ones where there are no public examples, or nothing moves.
    """
    count = min(PUBLIC, len(reading.public_inputs))
    ones = like.new_ones(reading.public_mean.numel())
    if not count:
        return ones
    coordinates = sum(value[0].numel() for value in reading.weights.values())
    some = max(1, _ROOM // coordinates)
    found = [
        moved
        for first in range(0, count, some)
        for moved in _moved(reading, like, key, range(first, min(count, first + some)), -(-_DRAWS // count))
    ]
    total = torch.stack(found).mean(0)
    mean = total.mean()
    if not torch.isfinite(mean) or mean == 0:
        return ones
    return (total / mean).clamp_min(_LEAST).rsqrt()


def _moved(reading: Reading, like: Tensor, key: Key, examples: range, draws: int) -> Iterator[Tensor]:
    """(Jᵀz)², (value,), of each of some public examples and each draw; every example's signs are its own,
    whichever it stands beside."""
    weights = {name: value[0] for name, value in reading.weights.items()}
    labels = torch.tensor(examples, device=like.device) % reading.classes
    targets = one_hot(labels, reading.classes, like.dtype)[:, None]
    signs = [key.generator("curvature", number) for number in examples]
    for _ in range(draws):
        inputs = reading.public_inputs[examples.start : examples.stop].to(like)[:, None].requires_grad_()
        gradients = group_gradients(reading.model, weights, inputs, targets, differentiable=True)
        along = []
        for value in gradients.values():
            drawn = np.stack([own.integers(0, 2, value.shape[1:], dtype=np.int8) for own in signs])
            along.append((value * (2 * torch.from_numpy(drawn) - 1).to(like)).sum())
        (moved,) = torch.autograd.grad(torch.stack(along).sum(), inputs)
        yield from (moved * moved).flatten(1)
