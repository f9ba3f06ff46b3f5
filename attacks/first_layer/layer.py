"""Detect a fully connected first layer, and compute the row space of its gradient.

The gradient [dW | db] of weight and bias is Σ_n δ_n (x_n, 1)ᵀ over examples x_n, with δ_n = ∂loss/∂z at the layer's
output z. Its rank is 1 for a single example (Phong et al. 2018, §3). For a batch, the examples span its row space
(Kariyappa et al. 2023, §4; Dimitrov et al. 2024, §3)."""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.trip import Reading, Server

_ROUNDING = 3e-8  # of the largest singular value: rounding of float32 sums beyond the true rank


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLayer:
    """A fully connected first layer, with the normalisation before it: the layer's input is factor · x + offset for an
    example x."""

    prefix: str
    """Prefix of the layer's parameter names, such as "fc1."."""
    factor: Tensor
    """Factor on each input value (input,); 1 without normalisation."""
    offset: Tensor
    """Offset added to each scaled input value (input,); 0 without normalisation."""

    def apply(self, x: Tensor) -> Tensor:
        """Normalise examples `x` (..., input): return factor · x + offset, the layer's inputs."""
        return self.factor * x + self.offset

    def undo(self, z: Tensor) -> Tensor:
        """Convert layer inputs `z` (..., input) back to examples: (z - offset) / factor."""
        return (z - self.offset) / self.factor


def first_weights(known: Reading | Server) -> dict[str, Tensor]:
    """Return the model's weights, name → (*shape). `known` is a reading, whose first observation (report) counts, or
    the server's knowledge before the round."""
    if isinstance(known, Server):
        return dict(known.weights)
    return {name: value[0] for name, value in known.weights.items()}


def first_layer(known: Reading | Server) -> FirstLayer | None:
    """Return the fully connected first layer of a model, the first with parameters in the forward pass. Return None
    unless this layer is linear with bias and used once, on the flattened input. A factor and an offset may normalise
    each input value before the layer.

    - `known`: source of model and weights: a reading (the weights of its first report count), or a server's knowledge
      before the round."""
    weights = first_weights(known)
    like = next(iter(weights.values()))
    size = prod(known.shape)
    # two points fix factor and offset of each coordinate, an asymmetric ramp tests them
    ramp = torch.linspace(0, 1, size, dtype=like.dtype, device=like.device).square()
    probes = torch.stack([torch.zeros_like(ramp), torch.ones_like(ramp), ramp])
    calls: list[tuple[str, nn.Module, Any]] = []

    def keep(path: str) -> object:
        def hook(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
            first = arguments[0] if arguments else None  # a parametrization is called without
            calls.append((path, layer, first.detach().clone() if isinstance(first, Tensor) else None))

        return hook

    handles = [
        layer.register_forward_pre_hook(keep(path))
        for path, layer in known.model.named_modules()
        if next(layer.parameters(recurse=False), None) is not None and not layer._modules
    ]
    try:
        with torch.no_grad():
            functional_call(known.model, weights, (probes.reshape(3, *known.shape),))
    finally:
        for handle in handles:
            handle.remove()
    path, layer, inputs = calls[0] if calls else ("", known.model, probes)
    plain = type(layer) is nn.Linear and layer.bias is not None and layer.in_features == size
    sent = all((f"{path}.{name}" if path else name) in weights for name in ("weight", "bias"))
    if not plain or not sent or inputs.shape != probes.shape or sum(called is layer for _, called, _ in calls) > 1:
        return None
    offset, factor = inputs[0], inputs[1] - inputs[0]
    if not factor.all() or not torch.allclose(inputs[2], factor * ramp + offset, rtol=1e-5, atol=1e-5):
        return None
    return FirstLayer(prefix=f"{path}." if path else "", factor=factor.double().cpu(), offset=offset.double().cpu())


def refusal(reading: Reading) -> str | None:
    """Return the reason, in a few words, why the examples behind the batch `reading` cannot be computed from the first
    layer's gradient, or None if they can."""
    if reading.linked != "vector":
        return "it divides weights by biases, and this reading's coordinates are not linked"
    if first_layer(reading) is None:
        return "its first layer is no fully connected layer with bias"
    return None


def table(layer: FirstLayer, observed: list[dict[str, Tensor]], row: int) -> Tensor:
    """Collect a reading's gradients at the first layer in a single matrix [dW | db], from whose row space attacks
    compute the examples: (observation · neuron, value + 1), biases last.

    - `layer`: the first layer.
    - `observed`: the observations (repeated reports on the same examples), each name → (reading, *shape).
    - `row`: the reading's position in the batch.

    The gradient is Σ_n δ_n (h_n, 1)ᵀ over examples n, with the layer's input h_n and δ_n = ∂loss/∂z at the layer's
    output z."""
    weight, bias = (
        torch.cat([gradient[f"{layer.prefix}{name}"][row] for gradient in observed]).double().cpu()
        for name in ("weight", "bias")
    )
    return torch.cat([weight, bias[:, None]], 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSpace:
    """Row space of the first layer's gradient [dW | db], as a singular value decomposition in float64. The examples lie
    in this space: for a suitable matrix `mixing` (example, rank), each row of mixing @ [right | bias] is an example,
    followed by 1."""

    left: Tensor
    """Left singular vectors (neuron, rank)."""
    singular: Tensor
    """Singular values (rank,), the largest first."""
    right: Tensor
    """Right singular vectors at the input columns (rank, input)."""
    bias: Tensor
    """Right singular vectors at the bias column (rank,)."""

    @property
    def rank(self) -> int:
        """Dimension of the row space: the number of linearly independent examples behind the gradient, at most."""
        return len(self.singular)

    def scaled(self, mixing: Tensor) -> Tensor:
        """Give candidate examples their true scale. An example is known up to a factor, but its bias entry must be 1:
        each row of `mixing` (example, rank) is divided by its entry of mixing @ `bias`. Return the scaled matrix; the
        examples are its product with `right`."""
        return mixing / (mixing @ self.bias)[:, None]

    def deltas(self, mixing: Tensor) -> Tensor:
        """Compute δ = ∂loss/∂z at the first layer's output z for each example, from the gradient and a guess of the
        examples: (example, neuron). A test of the guess compares this δ with a simulation. `mixing` (rank, rank)
        combines the rows of the row space into the guessed examples."""
        deltas: Tensor = torch.linalg.solve(mixing.T, (self.left * self.singular).T)
        return deltas


def row_space(layer: FirstLayer, gradient: Tensor, examples: int) -> RowSpace:
    """Compute the row space of a first layer's gradient, in which the examples lie: the first step of attacks on fully
    connected layers. Singular values that are only rounding are left out, so repeated examples lower the rank.

    - `layer`: the first layer; its normalisation of inputs is undone in the result.
    - `gradient` (neuron, value + 1): [dW | db], as from `table`.
    - `examples`: number of examples behind the gradient, the largest possible rank."""
    bias = gradient[:, -1]
    inputs = (gradient[:, :-1] - bias[:, None] * layer.offset) / layer.factor
    left, singular, right = torch.linalg.svd(torch.cat([inputs, bias[:, None]], 1), full_matrices=False)
    rank = max(1, min(examples, int((singular > _ROUNDING * singular[0]).sum())))
    sign = torch.where(right[:, -1:] < 0, -1.0, 1.0)  # a singular pair's sign is free: make the bias positive
    left, right = left * sign.T, right * sign
    return RowSpace(left=left[:, :rank], singular=singular[:rank], right=right[:rank, :-1], bias=right[:rank, -1])
