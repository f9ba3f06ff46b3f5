"""A plain loop: the gradient of one step, and the update of three."""

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from bench import api

digits = load_digits()
images, classes = torch.tensor(digits.images[:, None] / 16).float(), torch.tensor(digits.target)
known = {"public": images[1000:], "public_labels": classes[1000:]}  # what anyone may know
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 10))

# one step: its gradient, with the weights from before optimizer.step()
x, y = images[:1], classes[:1]
cross_entropy(model(x), y).backward()
gradients = {name: p.grad for name, p in model.named_parameters()}
reading = api.reading(gradients, model=model, shape=(1, 8, 8), classes=10, **known)
print(api.check(reading, x, y).line)
reconstruction = api.attack(reading, "map", evaluations=300)
print("leaked:", api.score(reconstruction, x, y, **known).summary.asr.value)
api.save_pictures("leak.png", x, reconstruction)

# three local steps: the weights before and after them
x, y, before = images[:3], classes[:3], copy.deepcopy(model.state_dict())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(3):
    optimizer.zero_grad()
    cross_entropy(model(x[step : step + 1]), y[step : step + 1]).backward()
    optimizer.step()
local = api.SGD(lr=0.1, momentum=0.9, batch=1, steps=3)
reading = api.reading(
    before=before, after=model.state_dict(), local=local, model=model, shape=(1, 8, 8), classes=10, **known
)
print(api.check(reading, x, y).line)
reconstruction = api.attack(reading, "map", evaluations=900)
print("leaked:", api.score(reconstruction, x, y, **known).summary.asr.value)
