"""Readings of a model with a gradient linear in the example: attacks have a closed form."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from bench import api
from bench.federated.describe import Composition
from bench.trip import Noise, Reading

VALUES, CLASSES = 6, 3


def linear_reading(variance: float, victims: int = 4) -> tuple[Reading, Tensor]:
    """At zero weights p = 1/C whatever the input, so that ∂L/∂W = (p - y) xᵀ is linear in x."""
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Linear(VALUES, CLASSES, bias=False))
    nn.init.zeros_(model[0].weight)  # type: ignore[arg-type]
    public = 0.5 + 0.2 * torch.randn(400, VALUES, generator=generator) @ torch.randn(
        VALUES, VALUES, generator=generator
    )
    x, labels = public[:victims], torch.arange(victims) % CLASSES
    each = [api.gradient(model, x[n : n + 1], labels[n : n + 1]) for n in range(victims)]
    gradients = {
        name: torch.stack([g[name] for g in each])
        + variance**0.5 * torch.randn(victims, *each[0][name].shape, generator=generator)
        for name in each[0]
    }
    made = api.reading(gradients, model=model, shape=(VALUES,), classes=CLASSES, public=public[victims:])
    return replace(
        made,
        labels=labels[:, None],
        description=Composition(parts=(), contexts={}, noise=Noise(law="gaussian", variance=variance)),
    ), x
