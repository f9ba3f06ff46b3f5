"""Inputs of a model that does not see their scale: a normalisation behind a first layer without bias takes it out.

The gradient is then the same for α·x, whatever α: what an attacker finds may be too dark or too bright by any factor,
and the prior has to say which.
"""

import torch
from torch import Tensor

from bench.gradients import group_gradients, one_hot
from bench.trip import Reading

_PROBES = 4  # public pictures that are tried at half their values
_SAME = 1e-2  # of each tensor's squared norm: the first layer's gradient halves where the scale is seen
_BRIGHT = 0.99  # this quantile of a picture is brought to that of public ones


def blind_to_scale(reading: Reading) -> bool:
    """Whether the gradients of public pictures and of the same at half their values are equal."""
    if reading.kind != "image" or not len(reading.public_inputs):
        return False
    weights = {name: value[0] for name, value in reading.weights.items()}
    like = next(iter(weights.values()))
    inputs = reading.public_inputs[:_PROBES, None].to(like)
    labels = torch.arange(len(inputs))[:, None] % reading.classes
    targets = one_hot(labels, reading.classes, like.dtype).to(like.device)
    whole, half = (group_gradients(reading.model, weights, scale * inputs, targets) for scale in (1.0, 0.5))
    gaps = torch.stack([(whole[name] - half[name]).square().sum() for name in whole])
    return bool((gaps <= _SAME * torch.stack([value.square().sum() for value in whole.values()])).all())


def usual_brightness(inputs: Tensor, reading: Reading) -> Tensor:
    """Pictures (…, *shape), each times the factor that makes its bright values those of a median public picture."""
    dims = len(reading.shape)
    bright = inputs.flatten(-dims).quantile(_BRIGHT, dim=-1)
    usual = reading.public_inputs.flatten(1).quantile(_BRIGHT, dim=1).median().to(bright)
    factor = torch.where(bright > 0, usual / bright.clamp_min(torch.finfo(bright.dtype).tiny), 1.0)
    return inputs * factor.reshape(*factor.shape, *(1,) * dims)
