"""Whether an attacker can know that it is right: the δ of each example, read off the reading and simulated.

A reconstruction of a fully connected first layer says what δ = ∂loss/∂z each example had, by linear algebra alone:
the layers above were not asked.  The model says what δ that example would have.  Where both agree the example is right,
as a mixture of examples would have the same mixture of δ only by chance.  For ReLU this holds the pattern of zeros
that SPEAR tests (Dimitrov et al. 2024, §4.3, λ), and needs no ReLU.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.attacks.first_layer.layer import FirstLayer
from bench.trip import Reading

PUBLIC = 256  # public examples that say how much δ varies
_FAINT = 1e-6  # of the largest variance of δ: directions below it are rounding
# Of the variance in a direction, on average over all.  Measured over 2 900 examples of cancer, Adult, digits, MNIST and
# CIFAR-10 (B = 2 to 64, sigmoid and ReLU): no failure was above it.  By the variance of all directions together
# 12 wrong rows of cancer were.
SURE = 0.9


class _Output(nn.Module):
    """Stands for the first layer: its output is given."""

    value: Tensor

    def forward(self, x: Tensor) -> Tensor:
        del x
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Upper:
    """The model above its first layer, in float64 on the CPU: `weight` (neuron, input) and `bias` (neuron,) of that
    layer for inputs x, and of the layers above `rest`, name → (*shape)."""

    model: nn.Module
    output: _Output
    shape: tuple[int, ...]
    weight: Tensor
    bias: Tensor
    rest: dict[str, Tensor]

    @classmethod
    def of(cls, reading: Reading, layer: FirstLayer, *, observed: bool = True) -> "Upper":
        """Under the first observation's weights.  Hooks that a caller registered on the model stay where `observed`."""
        weights = {name: value[0].detach().double().cpu() for name, value in reading.weights.items()}
        model = copy.deepcopy(reading.model).double().cpu()
        if not observed:
            for module in model.modules():
                module._forward_pre_hooks.clear()
        output, path = _Output(), layer.prefix.removesuffix(".")
        if path:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, output)
        else:
            model = output
        weight = weights.pop(f"{layer.prefix}weight")
        bias = weights.pop(f"{layer.prefix}bias") + weight @ layer.offset
        return cls(
            model=model, output=output, shape=reading.shape, weight=weight * layer.factor, bias=bias, rest=weights
        )

    def logits(self, z: Tensor, rest: dict[str, Tensor]) -> Tensor:
        """The model's outputs (example, class) where its first layer gives z (example, neuron)."""
        self.output.value = z
        outputs: Tensor = functional_call(self.model, rest, (z.new_zeros(len(z), *self.shape),))
        return outputs

    def deltas(self, inputs: Tensor) -> Tensor:
        """∂loss/∂z of each input (example, input) under each label: (example, class, neuron)."""
        with torch.enable_grad():
            z = (inputs @ self.weight.T + self.bias).requires_grad_()
            loss = -self.logits(z, self.rest).log_softmax(-1)
            each = [torch.autograd.grad(column.sum(), z, retain_graph=True)[0] for column in loss.T]
        return torch.stack(each, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How well δ as read and as simulated agree, (example,): `explained` is 1 where they are equal, and about
    -1 for another example of that label; `labels` explain each δ best."""

    explained: Tensor
    labels: Tensor

    @property
    def certain(self) -> int:
        """How many of the examples the attacker knows to be right."""
        return int((self.explained >= SURE).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """What confirms an example: the layers above the first, and the principal `directions` (neuron, direction) of δ
    among public examples of a label, divided by their deviations; all δ of length one."""

    upper: Upper
    directions: Tensor

    @classmethod
    def of(cls, reading: Reading, layer: FirstLayer) -> "Witness":
        public = reading.public_inputs[:PUBLIC].flatten(1).double().cpu()
        usual = _unit(Upper.of(reading, layer, observed=False).deltas(public))
        around = (usual - usual.mean(0)).flatten(0, 1)
        variance, axes = torch.linalg.eigh(around.T @ around / len(around))
        shown = variance > _FAINT * variance.max()
        return cls(upper=Upper.of(reading, layer), directions=axes[:, shown] / variance[shown].sqrt())

    def agreement(self, inputs: Tensor, deltas: Tensor) -> Agreement:
        """Of each example: `inputs` (example, input), and `deltas` (example, neuron) as read, of any scale: 1 less the
        mean square of the gap over the directions."""
        gaps = self.upper.deltas(inputs)
        gaps = _unit(gaps) - _unit(deltas)[:, None]
        labels = gaps.square().sum(-1).nan_to_num(torch.inf).argmin(1)
        gap = gaps[torch.arange(len(gaps)), labels] @ self.directions
        return Agreement(explained=(1 - gap.square().mean(-1)).nan_to_num(-torch.inf), labels=labels)


def _unit(x: Tensor) -> Tensor:
    length: Tensor = x.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    return x / length
