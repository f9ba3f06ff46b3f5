"""What a client would have sent under other circumstances than were declared, and how alike two readings are."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from bench.attacks.parts.distance import Distance
from bench.attacks.parts.objective import Mismatch
from bench.gradients import one_hot
from bench.trip import Reading

Tensors = Mapping[str, Tensor]
_BISECTIONS = 7


@dataclass(frozen=True, slots=True)
class Likeness:
    """Of each reading: `cosine` and `scale` (reading,), and the greatest squared `residual`."""

    cosine: Tensor
    scale: Tensor
    residual: float

    @property
    def least(self) -> tuple[float, float]:
        """Cosine and scale of the reading that is least alike: by its cosine, among equal ones by its scale."""
        off = (1 - self.cosine).clamp_min(1e-4) + 1e-6 * self.scale.clamp_min(1e-300).log().abs()
        worst = int(off.argmax())
        return float(self.cosine[worst]), float(self.scale[worst])

    @property
    def most_opposite(self) -> float:
        """The cosine of the reading that is least opposite."""
        return float(self.cosine.max())


def likeness(sent: Tensors, replay: Tensors) -> Likeness:
    """Of what was sent and its replay, both name → (reading, *shape)."""
    a, b = (torch.cat([each[name].double().flatten(1) for name in sent], 1) for each in (sent, replay))
    norms = a.norm(dim=1), b.norm(dim=1)
    cosine = (a * b).sum(1) / (norms[0] * norms[1]).clamp_min(1e-300)
    finite = torch.nan_to_num(cosine)
    return Likeness(finite, norms[0] / norms[1].clamp_min(1e-300), float((a - b).square().sum(1).max()))


def replayed(reading: Reading, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """What the reading would show of distinct examples (reading, example, *shape), in gradient units."""
    times = -(-reading.examples // inputs.shape[1])
    inputs = torch.cat([inputs] * times, 1)[:, : reading.examples]
    labels = torch.cat([labels] * times, 1)[:, : reading.examples]
    mismatch = Mismatch(
        reading=reading, distance=Distance(kind="l2"), unrolled=reading.steps > 1 and reading.senders == 1
    )
    observed = {name: value[:, 0] / (reading.unit * reading.steps) for name, value in reading.values.items()}
    shown = mismatch.simulated(observed, inputs, one_hot(labels, reading.classes, inputs.dtype))
    return {name: value.detach() for name, value in shown.items()}


def moved_by(
    reading: Reading, raw: Tensors, rate: float, inputs: Tensor, labels: Tensor
) -> dict[str, Tensor]:
    """The replay at the weights from before a step of `rate` on what was sent, `raw` name → (reading, *shape)."""
    rows = []
    for row in range(len(reading)):
        weights = {name: value + rate * raw[name][row] for name, value in reading.weights.items()}
        rows.append(replayed(replace(reading, weights=weights), inputs, labels))
    return {name: torch.stack([each[name][row] for row, each in enumerate(rows)]) for name in raw}


def best_rate(
    sent: Tensors, by_rate: Callable[[float], dict[str, Tensor]], declared: float
) -> tuple[float, float]:
    """The learning rate at which the replay is most like what was sent, and the least cosine there: over powers of ten
    and the declared one, then by bisection around the best."""

    def reached(rate: float) -> float:
        return likeness(sent, by_rate(rate)).least[0]

    cosines = {rate: reached(rate) for rate in (*(10.0**n for n in range(-4, 2)), declared)}
    best, factor = max(cosines, key=cosines.__getitem__), 10**0.5
    for _ in range(_BISECTIONS):
        for rate in (best / factor, best * factor):
            cosines[rate] = reached(rate)
        best, factor = max(cosines, key=cosines.__getitem__), factor**0.5
    return best, cosines[best]


def trained_in_training_mode(reading: Reading, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Gradients (reading, *shape) with BatchNorm by the statistics of the batch; dropout stays off."""
    model = copy.deepcopy(reading.model)
    for layer in model.modules():
        layer.training = "BatchNorm" in type(layer).__name__
    weights = {name: value[0].detach().clone().requires_grad_() for name, value in reading.weights.items()}
    rows = []
    for x, y in zip(inputs, labels, strict=True):
        try:
            loss = F.cross_entropy(functional_call(model, weights, (x,)), y)
        except ValueError:  # one value a channel: there are no statistics
            return {
                name: torch.zeros_like(value).expand(len(inputs), *value.shape)
                for name, value in weights.items()
            }
        rows.append(
            torch.autograd.grad(loss, list(weights.values()), allow_unused=True, materialize_grads=True)
        )
    return {name: torch.stack([row[n] for row in rows]) for n, name in enumerate(weights)}
