"""Pruning a representation: one layer's gradient loses the features that reveal most of an example."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from bench.defenses import ranges
from bench.defenses.base import Context, Local, Shown, State, Tensors, Transform

CHUNK = 8  # examples at once


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRepresentation(Transform):
    """Zero the columns of a linear layer's weight gradient, one example's, for the `share` of its input features
    r_i with the least ‖∂r_i/∂x‖/|r_i| (Sun et al. 2021, Soteria, §4; x the example).

    `layer` is the module's name; empty: the model's last linear layer.  A feature that is 0 has no gradient
    and goes last.
    """

    reads: ClassVar[Shown] = "zeros"

    share: float
    layer: str = ""

    def __post_init__(self) -> None:
        ranges.share("share of the features", self.share)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        if context.local is None:
            raise ValueError("a representation belongs to an example: prune it at stage example")
        local = context.local
        name = f"{linear(local.model, self.layer)}.weight"
        sensitivity = feature_sensitivity(local, self.layer)
        count = round(self.share * sensitivity.shape[-1])
        order = sensitivity.argsort(dim=-1, stable=True)[..., :count]
        kept = torch.ones_like(sensitivity, dtype=torch.bool).scatter(-1, order, False)
        return {**tensors, name: torch.where(kept[..., None, :], tensors[name], 0.0)}

    @property
    def keeps(self) -> tuple[Shown, ...]:
        return ("zeros",)

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """Each candidate without its own columns, which a few Jacobians of the features tell."""
        return self.apply(tensors, context), state

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """The candidate without the columns that are zero in the reading: those were pruned."""
        name = self._defended(tensors, context.lead)
        shown = (observed[name] != 0).any(-2, keepdim=True)
        return {**tensors, name: torch.where(shown, tensors[name], 0.0)}

    def _defended(self, tensors: Tensors, lead: int) -> str:
        """The weight's name: the layer's, or that of the last weight that is a matrix."""
        if self.layer:
            return f"{self.layer}.weight"
        return [
            name for name, value in tensors.items() if name.endswith("weight") and value.dim() == lead + 2
        ][-1]


def linear(model: nn.Module, layer: str) -> str:
    """The name of the linear layer of that name, or of the last there is; raises ValueError for none."""
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if layer and layer not in layers:
        raise ValueError(f"no linear layer {layer!r}; there are {', '.join(layers) or 'none'}")
    if not layers:
        raise ValueError("the model has no linear layer whose input could be pruned")
    return layer or layers[-1]


def feature_sensitivity(local: Local, layer: str) -> Tensor:
    """‖∂r_i/∂x‖/|r_i| of every input feature of a linear layer, (client, example, feature); ∞ where r_i = 0."""
    features = _features(local.model, linear(local.model, layer))
    if all(
        value.stride(0) == 0 for value in local.weights.values()
    ):  # one set of weights: examples side by side
        flat = local.inputs.flatten(0, 1)
        sensitivity = _in_chunks(features, _of_client(local, 0), flat)
        return sensitivity.reshape(*local.inputs.shape[:2], -1)
    return torch.stack(
        [_in_chunks(features, _of_client(local, n), local.inputs[n]) for n in range(len(local.inputs))]
    )


def _of_client(local: Local, client: int) -> dict[str, Tensor]:
    return {name: value[client].detach() for name, value in local.weights.items()}


def _in_chunks(of_example: Callable[..., Tensor], weights: Tensors, inputs: Tensor) -> Tensor:
    return torch.cat([_sensitivity(of_example, weights, part) for part in inputs.split(CHUNK)])


def _sensitivity(of_example: Callable[..., Tensor], weights: Tensors, inputs: Tensor) -> Tensor:
    features: Tensor = vmap(of_example, in_dims=(None, 0))(weights, inputs).detach()
    jacobian: Tensor = vmap(jacrev(of_example, argnums=1), in_dims=(None, 0))(weights, inputs).detach()
    norm = torch.linalg.vector_norm(jacobian.flatten(2), dim=-1)
    size = features.abs()
    return torch.where(size > 0, norm / size.clamp_min(torch.finfo(size.dtype).tiny), torch.inf)


def _features(model: nn.Module, layer: str) -> Callable[..., Tensor]:
    """(weights, x) → the layer's input, (feature,); on a copy, as threads share the model."""
    module = copy.deepcopy(model)
    inputs: list[Tensor] = []
    module.get_submodule(layer).register_forward_pre_hook(lambda _, args: inputs.append(args[0]))

    def of_example(weights: Tensors, x: Tensor) -> Tensor:
        inputs.clear()
        functional_call(module, dict(weights), (x[None],))
        return inputs.pop()[0]

    return of_example
