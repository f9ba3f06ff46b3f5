"""Rules that infer labels from the last layer's gradient, without optimisation.

Single example (Zhao et al. 2020): the cross entropy gradient at the last bias is p - y (probabilities minus one-hot
label), negative only at the true class. At the weights it is (p - y) hᵀ with features h; its sum over features is
largest in magnitude at the true class (three classes or more), and negative only there if h ≥ 0. Batches: class counts
from the bias gradient, (Σp - counts)/B for B examples with p estimated on public examples, or from the weights (Wainakh
et al. 2021)."""

import torch
from torch import Tensor
from torch.func import functional_call

from bench.attacks.labels.head import last_layer
from bench.trip import Reading, Tensors


def labels_by_rule(reading: Reading, gradients: Tensors) -> Tensor:
    """Infer the labels behind each reading of a batch from the last layer's gradient: (reading, example), ascending
    within a reading. All labels are -1 if the model's last layer is not linear with an output per class.

    - `reading`: the batch, with model and public examples.
    - `gradients`: the readings as mean gradients over local steps, name → (reading, *shape)."""
    path = last_layer(reading)
    if path is None:
        return torch.full((len(next(iter(gradients.values()))), reading.examples), -1)
    prefix = f"{path}." if path else ""
    weight = gradients[f"{prefix}weight"].flatten(2)
    bias = gradients.get(f"{prefix}bias")
    if reading.examples == 1:
        signal = bias if bias is not None else weight.sum(2)
        if bias is None and reading.classes > 2:  # 1 - p is the others' Σ p, for either sign of Σh
            signal = -signal.abs()
        return signal.argmin(1, keepdim=True).cpu()
    if bias is not None:
        counts = _counts_from_bias(reading, bias)
    else:
        counts = _counts_from_weights(reading, weight.sum(2))
    return listed(counts)


def listed(counts: Tensor) -> Tensor:
    """Turn class counts into lists of labels, ascending: (reading, example). `counts` (reading, class) are the numbers
    of examples of each class behind a reading (observed update), with equal sums."""
    return torch.stack([torch.repeat_interleave(row) for row in counts])


def _counts_from_bias(reading: Reading, bias: Tensor) -> Tensor:
    weights = {name: value[0] for name, value in reading.weights.items()}
    with torch.no_grad():
        logits = functional_call(reading.model, weights, (reading.public_inputs[:256].to(bias),))
    expected = logits.softmax(-1).mean(0)
    estimate = reading.examples * (expected - bias)
    return torch.stack([whole_counts(row, reading.examples) for row in estimate.cpu()])


def whole_counts(estimate: Tensor, total: int) -> Tensor:
    """Round estimated class counts to whole numbers with the right sum, by the method of largest remainders: (class,).

    - `estimate` (class,): estimated number of examples of each class behind a reading (observed update).
    - `total`: known number of examples, the sum of the result."""
    counts = torch.zeros(len(estimate), dtype=torch.long)
    for _ in range(total):
        counts[(estimate - counts).argmax()] += 1
    return counts


def _counts_from_weights(reading: Reading, sums: Tensor) -> Tensor:
    """Count labels from row sums of the last layer's weight gradient, `sums` (reading, class). The rule is LLG (Wainakh
    et al. 2021). Each class with a negative sum counts once. Then the class with the lowest sum counts, repeatedly.
    Each count subtracts an example's mean impact from its class's sum."""
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
