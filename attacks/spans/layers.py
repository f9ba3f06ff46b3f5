"""A model's linear layers per token, by common input."""

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bench.gradients import group_gradients, one_hot
from bench.kinds.texts import PAD
from bench.trip import Reading, Tensors

CHUNK = 64  # texts in a forward pass: their vectors stay in the processor's cache


class _Stop(Exception):
    """Ends a forward pass at the layer whose input is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayeredModel:
    """A text model, with its trained linear layers per token in groups by common input."""

    model: nn.Module
    """The reading's model, copied, with the reading's weights, in double precision."""
    positions: int
    """Positions in a text with padding."""
    crops: bool
    """True if the tokens' vectors stay equal without padding."""
    embedding: str
    """The token embedding's path."""
    table: Tensor
    """(token, value): the token embedding's weights, trained or frozen."""
    weights: Tensors
    """The model's trained weights, name → (*shape)."""
    single: tuple[tuple[str, ...], ...]
    """Paths to the layers on single tokens' vectors, by group."""
    whole: tuple[tuple[str, ...], ...]
    """Paths to the layers on vectors behind whole texts, by group."""
    causal: bool
    """True if vectors depend on earlier tokens only."""

    @property
    def tokens(self) -> int:
        """The vocabulary's size."""
        return len(self.table)

    @classmethod
    def of(cls, reading: Reading) -> "LayeredModel | None":
        """Find the layers in the model behind `reading`, by forward passes. None for a model without an embedding for
        token ids, or without trained linear layers on vectors behind several tokens."""
        model = copy.deepcopy(reading.model).double().cpu()
        for module in model.modules():
            module._forward_pre_hooks.clear()  # passes of the copy are no evaluations
        weights = {name: value[0].detach().double().cpu() for name, value in reading.weights.items()}
        model.requires_grad_(False).load_state_dict(weights, strict=False)
        # texts with a common first token, and with a common last token: equal vectors there depend on no other token
        ids = torch.full((3, *reading.shape), 1.0, dtype=torch.float64)
        ids[1, 1:] = ids[2, :-1] = 2
        embeddings, groups = _layers(model, frozenset(weights), ids)
        forward, backward = (
            [bool(torch.allclose(h[0, at], h[other, at], rtol=0, atol=1e-12)) for h, _ in groups]
            for at, other in ((0, 1), (-1, 2))
        )
        alone = [first and last for first, last in zip(forward, backward, strict=True)]
        if len(embeddings) < 1 or all(alone):
            return None
        single, whole = (
            tuple(tuple(paths) for (_, paths), same in zip(groups, alone, strict=True) if same == first)
            for first in (True, False)
        )
        embedding = model.get_submodule(embeddings[0])
        assert isinstance(embedding, nn.Embedding)
        return cls(
            model=model,
            positions=reading.shape[0],
            crops=_crops(model, frozenset(weights), reading.shape[0]),
            embedding=embeddings[0],
            table=weights.get(f"{embeddings[0]}.weight", embedding.weight).detach(),
            weights=weights,
            single=single,
            whole=whole,
            causal=all(forward),
        )

    def gradient(self, text: tuple[int, ...], label: int, classes: int) -> Tensors:
        """Return the model's gradient for the `text` (token ids) with the class number `label`, name → (*shape).
        `classes` counts the classes."""
        inputs = torch.tensor(text, dtype=torch.float64)[None, None]
        targets = one_hot(torch.tensor([[label]]), classes, torch.float64)
        each = group_gradients(self.model, self.weights, inputs, targets)
        return {name: value[0] for name, value in each.items()}

    def inputs(self, path: str, texts: Tensor) -> Tensor:
        """Return the inputs to the layer at `path` for `texts` (text, position), each followed by 1: (text, position,
        value + 1)."""
        kept: list[Tensor] = []

        def keep(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            kept.append(arguments[0])
            raise _Stop

        handle = self.model.get_submodule(path).register_forward_pre_hook(keep)
        try:
            with suppress(_Stop):
                self.model(texts)
        finally:
            handle.remove()
        return torch.cat([kept[0], kept[0].new_ones(*kept[0].shape[:-1], 1)], -1)

    def moved(self, gradient: Tensors, rate: float) -> "LayeredModel":
        """Return a copy at the weights after a step by the `gradient`, name → (*shape), with the learning `rate`."""
        weights = {name: value - rate * gradient[name] for name, value in self.weights.items()}
        model = copy.deepcopy(self.model)
        model.load_state_dict(weights, strict=False)
        return replace(self, model=model, weights=weights, table=weights.get(f"{self.embedding}.weight", self.table))

    def single_precision(self) -> "LayeredModel":
        """Return a copy whose vectors have single precision."""
        return replace(self, model=copy.deepcopy(self.model).float(), table=self.table.float())


def _layers(model: nn.Module, trained: frozenset[str], ids: Tensor) -> tuple[list[str], list[tuple[Tensor, list[str]]]]:
    """Return the paths to embeddings that take the `ids` (text, position), and the `trained` linear layers per position
    in call order: pairs (input (text, position, value), paths to the layers with this input)."""
    embeddings: list[str] = []
    groups: list[tuple[Tensor, list[str]]] = []

    def watch(path: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            given = arguments[0]
            if isinstance(layer, nn.Embedding) and given.shape == ids.shape and bool((given == ids).all()):
                embeddings.append(path)
            elif isinstance(layer, nn.Linear) and given.shape[:-1] == ids.shape and f"{path}.weight" in trained:
                same = next((paths for known, paths in groups if known is given), None)
                if same is None:
                    groups.append((given, [path]))
                else:
                    same.append(path)

        return hook

    handles = [
        layer.register_forward_pre_hook(watch(path))
        for path, layer in model.named_modules()
        if isinstance(layer, nn.Embedding | nn.Linear)  # other layers of a user's model may take keywords only
    ]
    try:
        with torch.no_grad():
            model(ids)
    finally:
        for handle in handles:
            handle.remove()
    return embeddings, groups


def _crops(model: nn.Module, trained: frozenset[str], positions: int) -> bool:
    """Return whether the layers' inputs for a text stay equal without the padding behind the text."""
    short = (positions + 1) // 2
    ids = torch.full((1, positions), float(PAD), dtype=torch.float64)
    ids[:, :short] = 1
    whole = _layers(model, trained, ids)[1]
    try:
        cut = _layers(model, trained, ids[:, :short])[1]
    except Exception:  # a model of a user may refuse other lengths by any error
        return False
    return [paths for _, paths in cut] == [paths for _, paths in whole] and all(
        bool(torch.allclose(less, more[:, :short], rtol=0, atol=1e-12))
        for (less, _), (more, _) in zip(cut, whole, strict=True)
    )
