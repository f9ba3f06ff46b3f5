"""Models blind to the scale of inputs: normalisation after a first layer without bias removes the scale.

The gradient is then equal for α·x at any α: a reconstruction may be too dark or too bright, and the prior must fix α.
"""

import torch
from torch import Tensor
from torch.func import functional_call

from bench.trip import Reading

_PROBES = 4  # public images tested at half their values
_SAME = 1e-2  # of the squared spread between the outputs for these images
_BRIGHT = 0.99  # quantile of an image matched to public images


@torch.no_grad()
def blind_to_scale(reading: Reading) -> bool:
    """Return whether the model of `reading` ignores the brightness of images, for example after a normalisation: its
    outputs stay equal if the values of public images are halved. The gradient then cannot show the brightness, and
    `usual_brightness` sets it."""
    if not reading.kind.spatial or len(reading.public_inputs) < 2:
        return False
    weights = {name: value[0] for name, value in reading.weights.items()}
    inputs = reading.public_inputs[:_PROBES].to(next(iter(weights.values())))
    whole, half = (functional_call(reading.model, weights, (scale * inputs,)) for scale in (1.0, 0.5))
    apart = (whole - whole.mean(0)).square().sum()
    return bool(apart > 0 and (whole - half).square().sum() <= _SAME * apart)


def usual_brightness(inputs: Tensor, reading: Reading) -> Tensor:
    """Scale each reconstructed image to the usual brightness, for a model whose gradient shows no brightness: the
    image's 99 % quantile becomes the median of this quantile over public images. Return the scaled images (…, *shape).

    - `inputs` (…, *shape): the images.
    - `reading`: the attacked readings, with the public images."""
    dims = len(reading.shape)
    bright = inputs.flatten(-dims).quantile(_BRIGHT, dim=-1)
    usual = reading.public_inputs.flatten(1).quantile(_BRIGHT, dim=1).median().to(bright)
    factor = torch.where(bright > 0, usual / bright.clamp_min(torch.finfo(bright.dtype).tiny), 1.0)
    return inputs * factor.reshape(*factor.shape, *(1,) * dims)
