"""Inputs of a model that does not see their scale: a normalisation behind a first layer without bias takes it out.

The gradient is then the same for α·x, whatever α: what an attacker finds may be too dark or too bright by any factor,
and the prior has to say which.
"""

import torch
from torch import Tensor
from torch.func import functional_call

from bench.trip import Reading

_PROBES = 4  # public pictures that are tried at half their values
_SAME = 1e-2  # of how far the outputs for these pictures are from each other, as a squared norm
_BRIGHT = 0.99  # this quantile of a picture is brought to that of public ones


@torch.no_grad()
def blind_to_scale(reading: Reading) -> bool:
    """Whether the model says the same of public pictures and of these at half their values."""
    if reading.kind != "image" or len(reading.public_inputs) < 2:
        return False
    weights = {name: value[0] for name, value in reading.weights.items()}
    inputs = reading.public_inputs[:_PROBES].to(next(iter(weights.values())))
    whole, half = (functional_call(reading.model, weights, (scale * inputs,)) for scale in (1.0, 0.5))
    apart = (whole - whole.mean(0)).square().sum()
    return bool(apart > 0 and (whole - half).square().sum() <= _SAME * apart)


def usual_brightness(inputs: Tensor, reading: Reading) -> Tensor:
    """Pictures (…, *shape), each times the factor that makes its bright values those of a median public picture."""
    dims = len(reading.shape)
    bright = inputs.flatten(-dims).quantile(_BRIGHT, dim=-1)
    usual = reading.public_inputs.flatten(1).quantile(_BRIGHT, dim=1).median().to(bright)
    factor = torch.where(bright > 0, usual / bright.clamp_min(torch.finfo(bright.dtype).tiny), 1.0)
    return inputs * factor.reshape(*factor.shape, *(1,) * dims)
