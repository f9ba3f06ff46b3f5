"""Sensitivity of a layer's input features r to an example x, ‖∂r_i/∂x‖/|r_i|: exact, or screened for a search."""

import copy
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vmap

from bench.defenses.base import Local, Tensors

_OfExample = Callable[[Tensors, Tensor], Tensor]  # weights and x → r, (feature,)
_Sensitivity = Callable[[_OfExample, Tensors, Tensor], Tensor]  # weights and examples → (example, feature)

_CHUNK = 8  # examples in a single call
_DIRECTIONS = 64  # random directions in an estimate, which leave a relative error of 1/√128, 9 %
_NEAR = {True: 40, False: 128}  # exact rows around the cut: with estimates corrected by a known Jacobian, and without
_GREY = 0.5  # value of the grey picture, whose Jacobian is known


def linear(model: nn.Module, layer: str) -> str:
    """Return the name of the linear layer `layer` in `model`; an empty `layer` means the last linear layer. Raises
    `ValueError` if the model has no such layer."""
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if layer and layer not in layers:
        raise ValueError(f"no linear layer {layer!r}; there are {', '.join(layers) or 'none'}")
    if not layers:
        raise ValueError("the model has no linear layer whose input could be pruned")
    return layer or layers[-1]


def feature_sensitivity(local: Local, layer: str) -> Tensor:
    """Return how much each input feature of a linear layer reveals about the example: ‖∂r_i/∂x‖/|r_i| for example x and
    feature r_i, (client, example, feature); ∞ for r_i = 0. A small value means a revealing feature. `local`: model,
    weights and examples of the clients; `layer`: name of the layer."""
    return _of_clients(local, layer, lambda shared: _whole)


def sensitivity_about(local: Local, layer: str, count: int) -> Tensor:
    """Return an approximation of `feature_sensitivity`, ‖∂r_i/∂x‖/|r_i| for example x and feature r_i, fast enough for
    an attacker's search: (client, example, feature). It serves to select the `count` smallest values: values near the
    `count`-th smallest are exact; values surely below are 0, values surely above are ∞.

    - `local`: model, weights and examples of the clients.
    - `layer`: name of the linear layer with the input features r.

    A whole Jacobian takes ten times as long as the gradients. Products with random directions therefore estimate the
    norm of each Jacobian row, and only rows near the `count`-th smallest are differentiated. If all clients have the
    same weights, the estimates are corrected by their errors for a grey image, whose exact Jacobian is computed once.
    On LeNets with MNIST and CIFAR-10, untrained and trained, at least 99.5 % of the features fall on the right side."""
    return _of_clients(local, layer, lambda shared: partial(_screened, count=count, shared=shared))


def _of_clients(local: Local, layer: str, of: Callable[[bool], _Sensitivity]) -> Tensor:
    features = _features(local.model, linear(local.model, layer))
    shared = all(value.stride(0) == 0 for value in local.weights.values())
    inputs = local.inputs.detach()
    if shared:  # equal weights: all examples in a single batch
        each = of(shared)(features, _of_client(local, 0), inputs.flatten(0, 1))
        return each.reshape(*inputs.shape[:2], -1)
    return torch.stack([of(shared)(features, _of_client(local, n), own) for n, own in enumerate(inputs)])


def _of_client(local: Local, client: int) -> dict[str, Tensor]:
    return {name: value[client].detach() for name, value in local.weights.items()}


def _whole(of_example: _OfExample, weights: Tensors, inputs: Tensor) -> Tensor:
    norms = torch.cat([_norms(of_example, weights, part) for part in inputs.split(_CHUNK)])
    return _over(norms, _values(of_example, weights, inputs))


def _screened(of_example: _OfExample, weights: Tensors, inputs: Tensor, count: int, shared: bool) -> Tensor:
    values, near = _values(of_example, weights, inputs), _NEAR[shared]
    if _DIRECTIONS + near >= min(values.shape[-1], inputs[0].numel()):
        return _whole(of_example, weights, inputs)
    norms = _estimates(of_example, weights, inputs)
    if shared:
        grey = torch.full_like(inputs[:1], _GREY)
        wrong = _estimates(of_example, weights, grey) / _norms(of_example, weights, grey)
        # a feature with zero derivative gives NaN, which is not above 0
        norms = torch.where(wrong > 0, norms / wrong, norms)
    estimate = _over(norms, values)
    first = min(max(count - near // 2, 0), estimate.shape[-1] - near)
    order = estimate.argsort(dim=-1, stable=True)
    about = order[:, first : first + near]
    exact = torch.cat(
        [
            _norms(of_example, weights, part, rows)
            for part, rows in zip(inputs.split(_CHUNK), about.split(_CHUNK), strict=True)
        ]
    )
    sides = torch.full_like(estimate, torch.inf).scatter(-1, order[:, :first], 0.0)
    return sides.scatter(-1, about, _over(exact, values.gather(-1, about)))


def _over(norms: Tensor, values: Tensor) -> Tensor:
    size = values.abs()
    return torch.where(size > 0, norms / size.clamp_min(torch.finfo(size.dtype).tiny), torch.inf)


def _values(of_example: _OfExample, weights: Tensors, inputs: Tensor) -> Tensor:
    values: Tensor = vmap(of_example, in_dims=(None, 0))(weights, inputs)
    return values.detach()


def _norms(of_example: _OfExample, weights: Tensors, inputs: Tensor, rows: Tensor | None = None) -> Tensor:
    """Return the norm of each feature's derivative, ‖∂r_i/∂x‖: (example, feature), or (example, row) for the features
    in `rows`. `of_example` computes the features r of an input x."""

    def chosen(x: Tensor, rows: Tensor | None) -> Tensor:
        r = of_example(weights, x)
        return r if rows is None else r.gather(0, rows)

    jacobian: Tensor = vmap(jacrev(chosen), in_dims=(0, None if rows is None else 0))(inputs, rows)
    norms: Tensor = torch.linalg.vector_norm(jacobian.detach().flatten(2), dim=-1)
    return norms


def _estimates(of_example: _OfExample, weights: Tensors, inputs: Tensor) -> Tensor:
    """Return an estimate of ‖∂r_i/∂x‖: the root mean square of (∂r_i/∂x)·v over random sign vectors v. `of_example`
    computes the features r of an input x. All calls and examples share v."""
    drawn = torch.randint(
        2, (_DIRECTIONS, *inputs.shape[1:]), generator=torch.Generator().manual_seed(0), dtype=torch.int8
    )
    directions = (2 * drawn - 1).to(inputs)

    def at(x: Tensor) -> Tensor:
        def along(direction: Tensor) -> Tensor:
            slope: Tensor = jvp(partial(of_example, weights), (x,), (direction,))[1]
            return slope

        return vmap(along)(directions).square().mean(0).sqrt()

    with warnings.catch_warnings():
        # torch warns about its `jit.script` at a process's first forward derivative
        warnings.simplefilter("ignore", DeprecationWarning)
        estimates: Tensor = vmap(at, chunk_size=_CHUNK)(inputs)
    return estimates.detach()


def _features(model: nn.Module, layer: str) -> _OfExample:
    """Return a function (weights, x) → input of `layer`, (feature,), on a copy, because threads share the model."""
    module = copy.deepcopy(model)
    inputs: list[Tensor] = []
    module.get_submodule(layer).register_forward_pre_hook(lambda _, args: inputs.append(args[0]))

    def of_example(weights: Tensors, x: Tensor) -> Tensor:
        inputs.clear()
        functional_call(module, dict(weights), (x[None],))
        return inputs.pop()[0]

    return of_example
