"""One step of Opacus, with and without a canary, for `bench audit`."""

import warnings
from functools import cache

import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

SIGMA, CLIP = 1.0, 1.0
inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
labels = torch.arange(8)
canary = torch.zeros(1, 64)
canary[0, 0] = 50.0  # its gradient is far above the clip, and has a direction of its own


@cache
def training(world: int):
    """The data set, with the canary in world 1, and Opacus' training on it."""
    x = torch.cat([inputs, canary]) if world else inputs
    y = torch.cat([labels, torch.tensor([9])]) if world else labels
    model = nn.Linear(64, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns that its generator is for experiments
        private = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
            data_loader=DataLoader(TensorDataset(x, y), batch_size=len(x)),
            noise_multiplier=SIGMA,
            max_grad_norm=CLIP,
            poisson_sampling=False,
        )
    return x, y, *private


def step(world: int, seed: int) -> Tensor:
    """The sum of clipped gradients with its noise: what leaves, times the public batch size."""
    x, y, model, optimizer, _ = training(world)
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.zero_()
    optimizer.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cross_entropy(model(x), y).backward()
    optimizer.step()
    return -len(x) * torch.cat([p.data.flatten() for p in model.parameters()])


def canarys(released) -> float:
    """The likelihood ratio, up to a constant: the projection on the canary's gradient at zero weights."""
    pull = torch.full((10,), 0.1)
    pull[9] -= 1
    gradient = torch.cat([(pull[:, None] * canary).flatten(), pull])
    return float(torch.from_numpy(released).float() @ (gradient / gradient.norm()))
