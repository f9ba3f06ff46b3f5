"""A model's token embedding."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.trip import Tensors


def token_embedding(model: nn.Module, weights: Tensors, ids: Tensor) -> str | None:
    """Search for a model's token embedding: return the path to the first embedding whose inputs are the token ids, or
    None without such a layer.

    - `model`: the model; `weights`: its weights, name → (*shape).
    - `ids` (text, position): token ids of any texts, for a forward pass."""
    paths: list[str] = []

    def watch(path: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            given = arguments[0]
            if given.shape == ids.shape and bool((given == ids).all()):
                paths.append(path)

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
    return paths[0] if paths else None


@contextmanager
def vectors(model: nn.Module, path: str) -> Iterator[list[Tensor]]:
    """Give access to the token vectors in forward passes of `model`, for derivatives of a loss by them. Inside the
    `with` statement, each pass appends the embedding's outputs (text, position, value) to the list; the outputs are
    leaves for autograd. `path` is the embedding's path."""
    leaves: list[Tensor] = []

    def leaf(layer: nn.Module, arguments: tuple[Tensor, ...], out: Tensor) -> Tensor:
        leaves.append(out.detach().requires_grad_())
        return leaves[-1]

    handle = model.get_submodule(path).register_forward_hook(leaf)
    try:
        yield leaves
    finally:
        handle.remove()
