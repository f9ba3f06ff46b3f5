"""Certificates for reconstructions: compare δ computed from the gradient with δ simulated by the model.

δ is ∂loss/∂z at the output z of a fully connected first layer. Given reconstructed examples, linear algebra finds each
example's δ from the gradient, without the layers above. The model simulates δ for the reconstructed example. If both
agree, the example is confirmed: for a mixture of examples, they would agree only by chance. With ReLU, equal δ includes
equal zeros, the test of SPEAR (Dimitrov et al. 2024, §4.3), but the certificate needs no ReLU."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.attacks.first_layer.layer import FirstLayer
from bench.trip import Reading

PUBLIC = 256  # public examples for the variation of δ
_FAINT = 1e-6  # of the largest variance of δ: lower directions are rounding
# Explained share per direction, averaged over directions.  Measured on 2 900 examples (cancer, Adult, digits, MNIST,
# CIFAR-10; B = 2 to 64; sigmoid and ReLU): no failure above.  The share over all directions together passes 12 wrong
# rows of cancer.
SURE = 0.9


class _Output(nn.Module):
    value: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Upper:
    """The layers above a model's first layer, as a simulator: for a guessed example it computes δ = ∂loss/∂z at the
    first layer's output z. An attack compares this δ with the observed gradient to confirm the guess. All values are in
    float64 on the CPU."""

    model: nn.Module
    """The reading's model, with the first layer replaced by `output`."""
    output: _Output
    """Module in place of the first layer: it returns the outputs z given to the method `logits`, for any input."""
    shape: tuple[int, ...]
    """Shape of an input."""
    weight: Tensor
    """First layer's weight (neuron, input) for unnormalised inputs: the model's input normalisation is included."""
    bias: Tensor
    """First layer's bias (neuron,) for unnormalised inputs: the model's input normalisation is included."""
    rest: dict[str, Tensor]
    """Weights of the layers above the first, name → (*shape)."""

    @classmethod
    def of(cls, reading: Reading, layer: FirstLayer, *, observed: bool = True) -> "Upper":
        """Copy the layers above the model's first layer, with the weights of the reading's first observation (report).

        - `reading`: the attacked readings, with model and weights.
        - `layer`: the first layer.
        - `observed`: False removes forward pre-hooks from the copy, so that hooks do not count its forward passes."""
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
        """Return the model's logits (example, class), given the outputs of its first layer.

        - `z` (example, neuron): first layer's outputs.
        - `rest`: weights of the layers above, name → (*shape)."""
        self.output.value = z
        outputs: Tensor = functional_call(self.model, rest, (z.new_zeros(len(z), *self.shape),))
        return outputs

    def deltas(self, inputs: Tensor) -> Tensor:
        """Return δ = ∂loss/∂z at the first layer's output z, simulated by the model for `inputs` (example, value),
        under each possible label: (example, class, neuron)."""
        with torch.enable_grad():
            z = (inputs @ self.weight.T + self.bias).requires_grad_()
            loss = -self.logits(z, self.rest).log_softmax(-1)
            each = [torch.autograd.grad(column.sum(), z, retain_graph=True)[0] for column in loss.T]
        return torch.stack(each, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Evidence for each reconstructed example: agreement between δ (∂loss/∂z at the first layer's output z) from the
    gradient and δ that the model gives for the reconstruction. High agreement confirms the reconstruction, without
    knowledge of the truth."""

    explained: Tensor
    """Agreement (example,) under the best label: 1 for equal δ, about -1 for a different example with the same label.
    """
    labels: Tensor
    """Label whose simulated δ has the highest agreement (example,)."""

    @property
    def certain(self) -> int:
        """Number of reconstructed examples that are confirmed: their agreement `explained` is at least 0.9."""
        return int((self.explained >= SURE).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """Test that confirms reconstructed examples without knowledge of the truth. The model simulates δ (∂loss/∂z at the
    first layer's output z) for the reconstruction; the test compares this δ with δ from the observed gradient.
    Differences count in units of the standard deviation among public examples."""

    upper: Upper
    """Layers above the first layer; they simulate δ."""
    directions: Tensor
    """Principal directions (neuron, direction) of public examples' δ, each divided by its standard deviation. Each δ is
    first scaled to length 1, and centred over examples per label."""

    @classmethod
    def of(cls, reading: Reading, layer: FirstLayer) -> "Witness":
        """Prepare the test for the model in `reading`, whose first layer is `layer`: measure how much δ (∂loss/∂z at
        the layer's output z) varies among the reading's public examples."""
        public = reading.public_inputs[:PUBLIC].flatten(1).double().cpu()
        usual = _unit(Upper.of(reading, layer, observed=False).deltas(public))
        around = (usual - usual.mean(0)).flatten(0, 1)
        variance, axes = torch.linalg.eigh(around.T @ around / len(around))
        shown = variance > _FAINT * variance.max()
        return cls(upper=Upper.of(reading, layer), directions=axes[:, shown] / variance[shown].sqrt())

    def agreement(self, inputs: Tensor, deltas: Tensor) -> Agreement:
        """Test reconstructed examples: compare δ (∂loss/∂z at the first layer's output z) from the gradient with δ that
        the model gives for each reconstruction. The label is unknown: the model gives a δ for each label, and the label
        with the least difference counts. Return for each example this label, and 1 minus the mean squared difference
        along the principal directions in the field `directions`: 1 for equal δ, about -1 for a different example.

        - `inputs` (example, value): the reconstructed examples.
        - `deltas` (example, neuron): δ from the gradient, known up to a factor per example; both δ are scaled to length
          1."""
        gaps = self.upper.deltas(inputs)
        gaps = _unit(gaps) - _unit(deltas)[:, None]
        labels = gaps.square().sum(-1).nan_to_num(torch.inf).argmin(1)
        gap = gaps[torch.arange(len(gaps)), labels] @ self.directions
        return Agreement(explained=(1 - gap.square().mean(-1)).nan_to_num(-torch.inf), labels=labels)


def _unit(x: Tensor) -> Tensor:
    length: Tensor = x.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    return x / length
