"""Opacus: each example's gradient inside the client, and what DP-SGD lets out."""

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from bench import api

digits = load_digits()
images, classes = torch.tensor(digits.images[:, None] / 16).float(), torch.tensor(digits.target)
known = {"public": images[1000:], "public_labels": classes[1000:]}  # what anyone may know
private = TensorDataset(images[:1000], classes[:1000])
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 10))
model, optimizer, loader = PrivacyEngine().make_private(
    module=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    noise_multiplier=0.1,
    max_grad_norm=1.0,
    data_loader=DataLoader(private, batch_size=4),
)

x, y = next(iter(loader))
cross_entropy(model(x), y).backward()
step = api.from_opacus(model, optimizer)  # between backward() and step()
optimizer.step()
sent = {name.removeprefix("_module."): p.grad for name, p in model.named_parameters()}

# inside the client: one example's gradient each, before clipping
inside = api.reading(step.gradients, model=step.model, shape=(1, 8, 8), classes=10, **known)
print(api.check(inside, x, y).line)
print("leaked:", api.score(api.attack(inside, "map", evaluations=300), x, y, **known).summary.asr.value)

# what the step uses: clipped, summed, with noise; the attacker knows how
outside = api.reading(
    sent,
    model=step.model,
    batch=step.batch,
    unit=step.unit,  # drawn over expected
    defense=step.defense,
    shape=(1, 8, 8),
    classes=10,
    **known,
)
print(api.check(outside, x, y).line)
print("leaked:", api.score(api.attack(outside, "map", evaluations=300), x, y, **known).summary.asr.value)
