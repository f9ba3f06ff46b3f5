"""A model's last layer by its graph: the layer with the parameter nearest to the logits."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.training import cross_entropy, loss_of
from bench.trip import Reading, Server
from bench.uses import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A model's last layer: the names of its parameters, from whose gradients attacks infer labels."""

    path: str
    """Path of the layer in the model; "" is the model itself."""
    nearest: str
    """Name of the parameter nearest to the logits in the model's graph. Only parameters with two axes or more count."""
    linear: bool
    """True if the layer is linear with an output per class, and `nearest` is its weight."""
    logits: bool
    """True if the layer's outputs are the model's logits. The gradient of the cross entropy at these outputs is then p
    - y (probabilities minus one-hot labels)."""

    def name(self, parameter: str) -> str:
        """Return the full name of a parameter of the layer, such as "fc.weight" for `parameter` "weight"."""
        return f"{self.path}.{parameter}" if self.path else parameter

    def signal(self, values: Mapping[str, Tensor]) -> str:
        """Return the name of the gradient tensor from which labels are inferred: the last layer's bias if `values` has
        its gradient, otherwise the weight nearest to the logits. `values`: name → gradient."""
        return self.name("bias") if self.name("bias") in values else self.nearest


def head(known: Reading | Server) -> Head | None:
    """Return the last layer of a model, by the model's graph; None if no weight with two axes or more affects the
    logits. `known`: source of model and weights, a reading or a server's knowledge before the round."""
    weights = known.weights if isinstance(known, Server) else {name: value[0] for name, value in known.weights.items()}
    leaves = {name: value.detach().clone().requires_grad_() for name, value in weights.items()}
    public = known.public_inputs
    inputs = public[:2] if len(public) else public.new_zeros((1, *known.shape))
    outputs: dict[str, Tensor] = {}
    layers = {path: layer for path, layer in known.model.named_modules() if isinstance(layer, nn.Linear)}
    handles = [
        layer.register_forward_hook(lambda _, __, out, path=path: outputs.update({path: out.detach()}))
        for path, layer in layers.items()
    ]
    try:
        with torch.enable_grad():
            logits = functional_call(known.model, leaves, (inputs.to(next(iter(leaves.values()))).clone(),))
    finally:
        for handle in handles:
            handle.remove()
    name = nearest(logits, {name: value for name, value in leaves.items() if value.dim() > 1})
    if name is None:
        return None
    path = name.partition(".parametrizations.")[0] if ".parametrizations." in name else name.rpartition(".")[0]
    last = Head(path=path, nearest=name, linear=False, logits=False)
    if name != last.name("weight") or path not in layers or layers[path].out_features != known.classes:
        return last
    return replace(last, linear=True, logits=path in outputs and torch.equal(outputs[path], logits))


def usual(reading: Reading) -> bool:
    """Return whether the usual rules for label inference hold for the batch `reading`: they assume that clients train
    by SGD on the mean cross entropy."""
    return reading.adam is None and reading.rule is None and loss_of(reading.model) is cross_entropy


def last_layer(reading: Reading) -> str | None:
    """Return the path of the last layer of the reading's model, such as "fc3", if the layer is linear with an output
    per class, otherwise None."""
    last = head(reading)
    return last.path if last is not None and last.linear else None
