"""The gradient of few active examples (examples with a gradient below the last layer) as a reading, for a search."""

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from bench.attacks.labels.head import Head
from bench.trip import Reading, Tensors

_SIZE = 100.0  # norm of the class's row in the search: noise on the features, which have no gain, counts little
_CLOSED = -1e9  # bias below all logits: a probability of 0


class _Beside(nn.Module):
    """A logit 0 beside the logit of a class."""

    def forward(self, logit: Tensor) -> Tensor:
        return torch.cat([logit, torch.zeros_like(logit)], 1)


def fished(reading: Reading, gradient: Tensors, last: Head, chosen: int, count: int) -> Reading:
    """Prepare the gradient from an attack by fishing for an ordinary search such as `map`. In fishing, only few
    *active* examples have a gradient below the last layer. Return a reading in which the batch consists of these
    examples only, with a model of two classes: the class `chosen`, and all others together. In this model the active
    examples have label 0 with probability 0, so the scaled `gradient` is their mean gradient.

    - `reading`: the attacked batch; settings and public data are taken from it.
    - `gradient`: gradient of the batch, to which only active examples contribute, name → (reading, *shape).
    - `last`: the model's last layer, of which only the weights of the class `chosen` are used.
    - `count`: number of active examples."""
    model = copy.deepcopy(reading.model)
    like = reading.weights[last.name("weight")]
    row = like[:1, chosen : chosen + 1]
    scale = _SIZE / row.norm()
    narrow = nn.Sequential(nn.Linear(row.shape[2], 1), _Beside()).to(like.device, like.dtype)
    if last.path:
        model.set_submodule(last.path, narrow)
    else:
        model = narrow
    prefix = f"{last.path}.0." if last.path else "0."
    below = {name: value for name, value in gradient.items() if name not in (last.name("weight"), last.name("bias"))}
    bias = gradient[last.name("bias")][:, chosen]
    active = -bias.sign() * count / reading.examples  # δ = -1 for each active example of the class, 1 for others
    values = {name: scale * value / _rows(active, value) for name, value in below.items()}
    for name in ("weight", "bias"):
        value = gradient[last.name(name)][:, chosen : chosen + 1]
        values[f"{prefix}{name}"] = value / _rows(active, value)
    kept = {name: reading.weights[name][:1] for name in below}
    return replace(
        reading,
        model=model.eval(),
        values={name: value[:, None] for name, value in values.items()},
        weights=kept | {f"{prefix}weight": scale * row, f"{prefix}bias": torch.full_like(row[..., 0], _CLOSED)},
        rounds=reading.rounds[:1],
        repeated_readings=1,
        classes=2,
        batch=count,
        senders=1,
        unit=1.0,
        labels=torch.zeros(len(reading), count, dtype=torch.long),
        public_labels=torch.full_like(reading.public_labels, -1),
    )


def _rows(factors: Tensor, like: Tensor) -> Tensor:
    return factors.reshape(-1, *[1] * (like.dim() - 1))
