"""What an attacker knows of public data: examples of the same kind, their first two moments, or nothing.

Draws of the law that is known stand in for examples, so that every attack reads its statistics off examples.
"""

import torch
from torch import Tensor

from bench.cell import PublicKnowledge
from bench.datasets.base import Data
from bench.rng import generator

_DRAWS = 512  # examples drawn from a law
_DEVIATION = 0.25  # of a pixel that nothing is known of, around grey
_COMMON = 0.9  # of that variance, the same in all channels


def known_public(data: Data, known: PublicKnowledge) -> tuple[Tensor, Tensor]:
    """Inputs (example, *shape) and labels (example,), -1 where unknown, in the attacker's hands.

    `distribution`: the public split.  `statistics`: Gaussian draws with its mean and covariance.  `none`: images of
    the 1/f law of natural images (Field 1987), amplitudes one over the spatial frequency; tables uniform in [0, 1].
    """
    inputs = torch.from_numpy(data.public.floats())
    if known == "distribution":
        return inputs, torch.from_numpy(data.public.labels)
    # one sequence for all cells: an attacker's knowledge is no draw of the victims
    random = generator(0, "public data", known)
    if known == "statistics":
        weights = torch.from_numpy(random.standard_normal((_DRAWS, len(inputs)))).to(inputs)
        mean = inputs.mean(0)
        centred = (inputs - mean).flatten(1)
        drawn = (weights @ centred / len(inputs) ** 0.5).reshape(_DRAWS, *data.shape) + mean
    elif data.kind == "image":
        noise = torch.from_numpy(random.standard_normal((_DRAWS, 1 + data.shape[0], *(2 * n for n in data.shape[1:]))))
        waves = _one_over_f(noise)
        drawn = 0.5 + _DEVIATION * (_COMMON**0.5 * waves[:, :1] + (1 - _COMMON) ** 0.5 * waves[:, 1:])
        drawn = drawn.to(inputs)
    else:
        drawn = torch.from_numpy(random.random((_DRAWS, *data.shape))).to(inputs)
    return drawn, torch.full((_DRAWS,), -1, dtype=torch.long)


def _one_over_f(noise: Tensor) -> Tensor:
    """White noise (..., 2·height, 2·width) → unit variance and amplitudes 1/f, (..., height, width).

    Half of a periodic image is kept, as that joins its edges.
    """
    height, width = noise.shape[-2:]
    down, across = torch.fft.fftfreq(height).to(noise)[:, None], torch.fft.fftfreq(width).to(noise)
    frequency = (down**2 + across**2).sqrt().clamp_min(1 / max(height, width))
    filtered: Tensor = torch.fft.ifft2(torch.fft.fft2(noise) / frequency).real[..., : height // 2, : width // 2]
    return filtered / filtered.std()
