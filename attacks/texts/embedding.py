"""A model's token embedding."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.trip import Tensors


def token_embedding(model: nn.Module, weights: Tensors, ids: Tensor) -> str | None:
    """Return the path to the first embedding in `model` with token ids as inputs; None without such a layer.

    - `weights`: the model's weights, name → (*shape).
    - `ids` (text, position): token ids, any texts."""
    found: list[str] = []

    def watch(path: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            given = arguments[0]
            if given.shape == ids.shape and bool((given == ids).all()):
                found.append(path)

        return hook

    ids = ids.to(next(model.parameters()).device)
    embeddings = [(path, layer) for path, layer in model.named_modules() if isinstance(layer, nn.Embedding)]
    handles = [layer.register_forward_pre_hook(watch(path)) for path, layer in embeddings]
    try:
        with torch.no_grad():
            functional_call(model, dict(weights), (ids,))
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


@contextmanager
def vectors(model: nn.Module, path: str) -> Iterator[list[Tensor]]:
    """Collect the outputs (text, position, value) from the embedding at `path` during forward passes inside the `with`
    statement. The outputs are leaves for autograd."""
    leaves: list[Tensor] = []

    def leaf(layer: nn.Module, arguments: tuple[Tensor, ...], out: Tensor) -> Tensor:
        leaves.append(out.detach().requires_grad_())
        return leaves[-1]

    handle = model.get_submodule(path).register_forward_hook(leaf)
    try:
        yield leaves
    finally:
        handle.remove()
