"""Labels read off the last layer's gradient, without optimisation.

One example (Zhao et al. 2020): cross entropy's gradient at the last bias is p - y, negative at the
true class alone; at the weights it is (p - y) hᵀ, whose sum over the true class's row is the largest
in size (of three classes or more), alone negative where h ≥ 0.  Batches: counts from the bias,
(Σp - counts)/B, with p estimated on public examples; or from the weights (Wainakh et al. 2021, LLG).
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.trip import Reading

Tensors = Mapping[str, Tensor]


def labels_by_rule(reading: Reading, gradients: Tensors) -> Tensor:
    """The labels behind each reading by the rules above, (reading, example), in ascending order within a reading.

    `gradients` name → (reading, *shape), in gradient units: as many readings as they have.  -1 everywhere where the
    last linear layer has not `classes` outputs, or there is none.
    """
    path = last_layer(reading.model, reading.classes)
    if path is None:
        return torch.full((len(next(iter(gradients.values()))), reading.examples), -1)
    prefix = f"{path}." if path else ""
    weight = gradients[f"{prefix}weight"].flatten(2)
    bias = gradients.get(f"{prefix}bias")
    if reading.examples == 1:
        signal = bias if bias is not None else weight.sum(2)
        if bias is None and reading.classes > 2:  # 1 - p of a class is Σ p of the others: whatever the sign of Σh
            signal = -signal.abs()
        return signal.argmin(1, keepdim=True).cpu()
    if bias is not None:
        counts = _counts_from_bias(reading, bias)
    else:
        counts = _counts_from_weights(reading, weight.sum(2))
    return listed(counts)


def listed(counts: Tensor) -> Tensor:
    """How often each class is there, (reading, class) of equal sums, as labels (reading, example), ascending."""
    return torch.stack([torch.repeat_interleave(row) for row in counts])


def last_layer(model: nn.Module, classes: int) -> str | None:
    """The path of the last linear layer ("" for the model itself), or None if its outputs are not the classes."""
    linear = [(path, layer) for path, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        return None
    path, layer = linear[-1]
    return path if layer.out_features == classes else None


def _counts_from_bias(reading: Reading, bias: Tensor) -> Tensor:
    weights = {name: value[0] for name, value in reading.weights.items()}
    with torch.no_grad():
        logits = functional_call(reading.model, weights, (reading.public_inputs[:256].to(bias),))
    expected = logits.softmax(-1).mean(0)
    estimate = reading.examples * (expected - bias)
    return torch.stack([whole_counts(row, reading.examples) for row in estimate.cpu()])


def whole_counts(estimate: Tensor, total: int) -> Tensor:
    """Non-negative whole numbers of that sum: each next unit goes where the estimate is farthest above."""
    counts = torch.zeros(len(estimate), dtype=torch.long)
    for _ in range(total):
        counts[(estimate - counts).argmax()] += 1
    return counts


def _counts_from_weights(reading: Reading, sums: Tensor) -> Tensor:
    """LLG: each class whose row of the weights has a negative sum once; then repeatedly the class of the lowest
    sum.  Each count takes the mean impact of one example off its sum."""
    counts = torch.zeros((len(sums), reading.classes), dtype=torch.long)
    for row, values in enumerate(sums.cpu().clone()):
        # Wainakh et al. 2021, §4.1: m = Σ negative sums · (1 + 1/classes) / B
        impact = values[values < 0].sum() * (1 + 1 / reading.classes) / reading.examples
        present = torch.nonzero(values < 0)[:, 0][: reading.examples]
        counts[row, present] += 1
        values[present] -= impact
        for _ in range(reading.examples - len(present)):
            lowest = int(values.argmin())
            counts[row, lowest] += 1
            values[lowest] -= impact
    return counts
