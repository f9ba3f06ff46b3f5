"""Public examples granted to an attacker: the public split, random examples with its mean and covariance, or generic
examples. The attacker always gets examples, so an attack computes its statistics in the same way for every grant."""

import torch
from torch import Tensor

from bench.cell import PublicKnowledge
from bench.datasets.base import Data
from bench.errors import NotApplicable
from bench.rng import generator

_DRAWS = 512  # examples drawn from a distribution
_DEVIATION = 0.25  # an unknown pixel's standard deviation around grey
_COMMON = 0.9  # share of this variance that all channels have in common


def known_public(data: Data, known: PublicKnowledge) -> tuple[Tensor, Tensor]:
    """Return the public examples that the attacker may use: inputs (example, *shape) and labels (example,), with -1 for
    unknown labels. `known` is the granted knowledge:

    - `distribution`: the data set's public split.
    - `statistics`: Gaussian draws with the public split's mean and covariance.
    - `none`: images drawn from the 1/f law for natural images (Field 1987, amplitudes inverse to frequency), or uniform
      table rows.

    Raises `NotApplicable` for `statistics` or `none` with inputs that are no quantities, such as token ids."""
    inputs = torch.from_numpy(data.public.floats())
    if known == "distribution":
        return inputs, torch.from_numpy(data.public.labels)
    if not data.kind.differentiable:
        raise NotApplicable(f'{data.kind.article} has no mean and no covariance; grant public = "distribution"')
    # the same draws for all cells: the attacker's knowledge does not depend on the victims
    random = generator(0, "public data", known)
    if known == "statistics":
        weights = torch.from_numpy(random.standard_normal((_DRAWS, len(inputs)))).to(inputs)
        mean = inputs.mean(0)
        centred = (inputs - mean).flatten(1)
        drawn = (weights @ centred / len(inputs) ** 0.5).reshape(_DRAWS, *data.shape) + mean
    elif data.kind.spatial:
        noise = torch.from_numpy(random.standard_normal((_DRAWS, 1 + data.shape[0], *(2 * n for n in data.shape[1:]))))
        waves = _one_over_f(noise)
        drawn = 0.5 + _DEVIATION * (_COMMON**0.5 * waves[:, :1] + (1 - _COMMON) ** 0.5 * waves[:, 1:])
        drawn = drawn.to(inputs)
    else:
        drawn = torch.from_numpy(data.kind.values.draw(random, (_DRAWS, *data.shape))).to(inputs)
    return drawn, torch.full((_DRAWS,), -1, dtype=torch.long)


def _one_over_f(noise: Tensor) -> Tensor:
    """Turn white noise (..., 2·height, 2·width) into images (..., height, width) with amplitudes 1/f and variance 1.
    The image is a quarter of a larger image, whose opposite edges match."""
    height, width = noise.shape[-2:]
    down, across = torch.fft.fftfreq(height).to(noise)[:, None], torch.fft.fftfreq(width).to(noise)
    frequency = (down**2 + across**2).sqrt().clamp_min(1 / max(height, width))
    filtered: Tensor = torch.fft.ifft2(torch.fft.fft2(noise) / frequency).real[..., : height // 2, : width // 2]
    return filtered / filtered.std()
