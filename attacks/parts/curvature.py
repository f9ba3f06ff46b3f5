"""How strongly each input value moves the gradient, read off public examples: the solver's units of length."""

import torch
from torch import Tensor

from bench.gradients import group_gradients, one_hot
from bench.rng import Key
from bench.trip import Reading

PUBLIC = 16  # public examples asked
_DRAWS = 4  # random directions for each
_LEAST = 1e-3  # of the mean curvature: values that hardly matter are not stretched further


def stretch(reading: Reading, like: Tensor, key: Key) -> Tensor:
    """One over the root of the usual curvature of Σ (∇L(x, y) - g)² in each input value, (value,).

    A strided convolution looks at some pixels through more windows than at others, so that curvatures
    differ tenfold by place alone; in these units they are alike (a diagonal preconditioner).  The
    diagonal of JᵀJ, J = ∂∇L/∂x, is the mean of (Jᵀz)² over random signs z (Hutchinson's estimator; Bekas,
    Kokiopoulou & Saad 2007), here over public examples at the reading's weights.  Their mean is 1; all
    ones where there are no public examples, or nothing moves.
    """
    count = min(PUBLIC, len(reading.public_inputs))
    ones = like.new_ones(reading.public_mean.numel())
    if not count:
        return ones
    signs = key.generator("curvature")
    weights = {name: value[0] for name, value in reading.weights.items()}
    labels = torch.arange(count, device=like.device) % reading.classes
    targets = one_hot(labels, reading.classes, like.dtype)[:, None]
    total = torch.zeros_like(ones)
    for _ in range(_DRAWS):
        inputs = reading.public_inputs[:count].to(like)[:, None].requires_grad_()
        gradients = group_gradients(reading.model, weights, inputs, targets, differentiable=True)
        along = [
            (value * torch.from_numpy(2.0 * signs.integers(0, 2, value.shape) - 1).to(like)).sum()
            for value in gradients.values()
        ]
        (moved,) = torch.autograd.grad(torch.stack(along).sum(), inputs)
        total += (moved * moved).flatten(1).mean(0)
    mean = total.mean()
    if not torch.isfinite(mean) or mean == 0:
        return ones
    return (total / mean).clamp_min(_LEAST).rsqrt()
