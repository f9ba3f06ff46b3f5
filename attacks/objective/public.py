"""Public examples of a label, and their gradients."""

import torch
from torch import Tensor

from bench.gradients import group_gradients, one_hot
from bench.trip import Reading

MOST = 24  # examples


def public_of(reading: Reading, label: int, least: int = 1, most: int = MOST) -> tuple[Tensor, Tensor]:
    """Return at most `most` public examples of a class, as likely stand-ins for a victim with this label: inputs
    (example, *shape), and class numbers (example,), all equal to `label`. If fewer than `least` public examples have
    this class, inputs of any class are returned, with the same class numbers. `reading`: the attacked readings, with
    the public examples."""
    same = reading.public_inputs[reading.public_labels == label]
    inputs = (same if len(same) >= least else reading.public_inputs)[:most]
    return inputs, torch.full((len(inputs),), label)


def gradients_of(reading: Reading, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return the gradient of each given example at the model's weights: name → (example, *shape).

    - `reading`: the attacked readings; model and weights of the first observation (report) count.
    - `inputs` (example, *shape), `labels` (example,): the examples with their class numbers."""
    like = next(iter(reading.values.values()))
    weights = {name: value[0] for name, value in reading.weights.items()}
    targets = one_hot(labels[:, None], reading.classes, like.dtype).to(like.device)
    return group_gradients(reading.model, weights, inputs[:, None].to(like), targets, differentiable=False)
