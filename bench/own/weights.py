"""A user's weights before and after a round, as a client's update, and checks of the user's model."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.errors import BenchError
from bench.gradients import mixing_layer
from bench.kinds.base import Kind
from bench.own.coerce import Values, tensor
from bench.own.losses import two_logits
from bench.own.vocabulary import BEYOND
from bench.record.checkpoints import fit, refuse_diverged
from bench.sanitize import first_line
from bench.uses import bypass, reached

_PREFIXES = ("module.", "_module.", "_orig_mod.")  # wrappers' prefixes
_SAME = 0.999  # cosine above which "gradients" are the weights


def check_model(module: nn.Module, shape: tuple[int, ...], classes: int, kind: Kind) -> bool:
    """Check that the user's model `module` maps inputs of `shape` to logits (example, `classes`), or for two classes to
    a single logit. Return whether the model has a single logit; the hook `two_logits` is then added to the model.
    Raises `BenchError` for other outputs, and for embeddings unless the `kind` of data has token ids."""
    if kind.differentiable and (layer := _embeds(module, shape)):
        raise BenchError(
            f'{layer}, which takes integers, and attacks reconstruct numbers; give kind="text" for token ids, or the '
            "part of the model behind it, with its outputs as inputs"
        )
    like = next(iter(module.parameters()), torch.zeros(0))
    count = _few(module)
    try:
        with torch.no_grad():
            outputs = module(torch.zeros((count, *shape), dtype=like.dtype))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        hint = BEYOND if isinstance(error, IndexError) else ""
        raise BenchError(f"the model takes no inputs of shape {(count, *shape)}: {first_line(error)}{hint}") from None
    given = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
    if classes == 2 and given in ((count,), (count, 1)):
        module.register_forward_hook(two_logits)
        return True
    if given != (count, classes):
        remedy = "; give a module that returns one output alone" if not isinstance(given, tuple) else ""
        expected = f"expected logits {(count, classes)}, one a class{remedy}"
        raise BenchError(f"the model gives {given} for {('one example', 'two examples')[count - 1]}; {expected}")
    return False


def _few(module: nn.Module) -> int:
    """Return the number of examples with which `module` runs: 2 if a layer may need a batch's statistics, else 1."""
    return 2 if mixing_layer(module) or any(layer.training for layer in module.modules()) else 1


def _embeds(module: nn.Module, shape: tuple[int, ...]) -> str | None:
    """Return the path and class of the first embedding layer of `module` whose indices depend on the inputs, as text;
    None without such a layer. Embeddings of fixed indices, such as positions, do not count."""
    calls: list[tuple[str, Tensor]] = []

    def keep(path: str) -> Any:
        def hook(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            calls.append((f"{path or 'the model'} is an {type(layer).__name__}", arguments[0]))

        return hook

    handles = [
        layer.register_forward_pre_hook(keep(path))
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag)
    ]
    like = next(iter(module.parameters()), torch.zeros(0))
    try:
        with torch.no_grad():
            for value in (0.0, 1.0) if handles else ():
                module(torch.full((2, *shape), value, dtype=like.dtype))
    except (RuntimeError, ValueError, IndexError, TypeError):
        return calls[-1][0] if calls and calls[-1][1].is_floating_point() else None
    finally:
        for handle in handles:
            handle.remove()
    pairs = zip(calls[: len(calls) // 2], calls[len(calls) // 2 :], strict=True)
    return next((layer for (layer, one), (_, other) in pairs if not torch.equal(one, other)), None)


def refuse_closures(model: nn.Module, module: nn.Module, shape: tuple[int, ...]) -> None:
    """Check that `module`, a copy of the user's `model`, can run with other weights. Raises `BenchError` if the output
    for an input of `shape` depends on a parameter that the copy cannot replace, such as a parameter in a closure.
    Attacks run the copy with the attacked weights."""
    leaves = {name: value.detach().requires_grad_() for name, value in module.named_parameters()}
    like = next(iter(leaves.values()), torch.zeros(0))
    with torch.enable_grad():
        outputs = functional_call(module, leaves, (torch.zeros((_few(module), *shape), dtype=like.dtype),))
    for held in (model, module):
        if name := reached(outputs, dict(held.named_parameters())):
            raise BenchError(bypass(name))


def load_state(module: nn.Module, state: Mapping[str, Tensor] | None, what: str) -> dict[str, Tensor]:
    """Load the weights `state`, name → (*shape), into the module; None keeps the module's weights. Return the
    parameters that are not frozen, name → (*shape). Raises `BenchError` if the weights do not fit or are not finite, or
    if all parameters are frozen; `what` is the weights' name in the message."""
    if state is not None:
        fitted = fit(module, state, where=what)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(fitted[name])
    refuse_diverged(module.state_dict(), where="the model" if state is None else what)
    own = {name: value.detach().clone() for name, value in module.named_parameters() if value.requires_grad}
    if not own:
        raise BenchError("the model has no parameter that requires a gradient; unfreeze what is trained")
    return own


def named_state(values: Mapping[str, Values] | Sequence[Values], model: nn.Module, what: str) -> dict[str, Tensor]:
    """Return a model's state (parameters and buffers) as name → (*shape), from the user's mapping or list `values`.

    A list has the order of `model.state_dict()` if both have equal length, otherwise of `model.parameters()`, or of the
    trained parameters. Frozen parameters may be left out; they keep the model's values. Raises `BenchError` for names
    and shapes that do not fit the model; `what` is the state's name in the message."""
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    frozen = {name: parameters[name] for name, value in model.named_parameters() if not value.requires_grad}
    state = dict(model.state_dict())
    if isinstance(values, Mapping):
        named = _unprefixed(values, state | parameters)
    else:
        orders: tuple[list[str], ...] = (list(state), list(parameters), [n for n in parameters if n not in frozen])
        order = next((names for names in orders if len(values) == len(names)), [])
        if len(values) != len(order):
            raise BenchError(
                f"{what}: {len(values)} arrays; the model has {len(parameters)} parameters, "
                f"its state_dict() {len(state)}"
            )
        named = dict(zip(order, values, strict=True))
    known, found = state | parameters, dict(frozen)
    for name, value in named.items():
        if name not in known:
            raise BenchError(f"{what}: {name!r} is neither parameter nor buffer of the model; give its state_dict()")
        array = tensor(value, f"{what} {name!r}")
        if tuple(array.shape) != tuple(known[name].shape):
            raise BenchError(
                f"{what}: {name!r} has shape {tuple(array.shape)}, the model's is {tuple(known[name].shape)}"
            )
        found[name] = array
    if missing := [name for name in parameters if name not in found]:
        raise BenchError(f"{what}: no {missing[0]!r}; give the whole state_dict(), or freeze what is not sent")
    refuse_diverged(found, where=what)
    return found


def _unprefixed(values: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values`, name → value, without a wrapper's prefix in the names, if no name is in `known`."""
    if values and not any(name in known for name in values):
        for prefix in _PREFIXES:
            if all(name.startswith(prefix) for name in values):
                return {name.removeprefix(prefix): value for name, value in values.items()}
    return dict(values)


def of_trained(
    gradients: Mapping[str, Values | None] | Sequence[Values | None], module: nn.Module
) -> Mapping[str, Values] | Sequence[Values]:
    """Return the user's `gradients` for the trained parameters only, without a wrapper's prefix in the names. None in
    place of a gradient means that the client does not send this gradient; the parameter of `module` is then frozen.
    Entries for frozen parameters are left out. Raises `BenchError` if every gradient is None."""
    parameters = dict(module.named_parameters())
    named: dict[str, Any]
    if isinstance(gradients, Mapping):
        named = _unprefixed(gradients, parameters)
    elif isinstance(gradients, Sequence) and len(gradients) == len(parameters):
        named = dict(zip(parameters, gradients, strict=True))
        for name in [name for name, value in parameters.items() if not value.requires_grad]:
            named[name] = None
    else:
        return gradients  # type: ignore[return-value]  # of the wrong length: an error follows
    for name in [name for name, value in named.items() if value is None and name in parameters]:
        parameters[name].requires_grad_(False)
        del named[name]
    if not any(value.requires_grad for value in parameters.values()):
        raise BenchError("the gradient of every trained parameter is None; take it after loss.backward()")
    return named


def difference(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return a client's update, the weight difference `before` - `after` (w_0 - w_L), name → (*shape) in float64, for
    the trained `parameters` only. Raises `BenchError` for unchanged weights."""
    update = {name: before[name].double() - after[name].double() for name in parameters}
    if not any(bool(value.any()) for value in update.values()):
        raise BenchError("before and after are equal; copy the weights before the client trains")
    return update


def refuse_batch_statistics(model: nn.Module) -> None:
    """Raise `BenchError` for a BatchNorm layer in training mode or without statistics, which mixes the examples of a
    batch."""
    if layer := mixing_layer(model):
        raise BenchError(
            f"{layer}: its gradients mix the examples of a batch; give batch_statistics=True if the gradient is of "
            "this mode, or model.eval()"
        )


def refuse_weights(values: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Raise `BenchError` if the user passed weights in place of gradients. `values` are the gradients, name → (reading,
    *shape), and `weights` the model's weights, name → (*shape)."""
    given, own = (
        torch.cat([each[name].double().flatten() for name in values])
        for each in ({name: value[0] for name, value in values.items()}, weights)
    )
    cosine = float(torch.nn.functional.cosine_similarity(given, own, dim=0).abs())
    if cosine > _SAME:
        raise BenchError(
            f"the gradients are the model's weights (cosine {cosine:.4f}); give gradients, or before= and after="
        )
