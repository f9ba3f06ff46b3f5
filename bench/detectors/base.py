"""Base class for detectors: a detector turns a received model into a score; a larger score is more suspicious."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.trip import Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedModel:
    """Knowledge of an honest client that has received a model from the server, before the client sends an update."""

    model: nn.Module
    """Model of the agreed architecture, in eval mode; its parameters are not used, see `weights`."""
    weights: Tensors
    """Received weights, name → (*shape)."""
    previous: Tensors
    """Weights of the round before, name → (*shape). In the first round: initial weights that the client draws for
    comparison."""
    inputs: Tensor
    """(example, *shape): the client's examples."""
    targets: Tensor
    """(example, class): class probabilities of the client's examples."""

    @property
    def agreed(self) -> bool:
        """True if all received weights have the names and shapes of the agreed architecture."""
        return shapes(self.weights) == shapes(dict(self.model.named_parameters()))

    def logits(self, weights: Tensors) -> Tensor:
        """Return the model's outputs (example, class) on the client's examples, with the given `weights`, name →
        (*shape), such as those of the round before."""
        with torch.no_grad():
            out: Tensor = functional_call(self.model, dict(weights), (self.inputs,))
        return out


class Detector(ABC):
    """Base class for detectors, the tests of a received model by an honest client. Each subclass is a frozen dataclass;
    its fields are the detector's parameters."""

    reference: ClassVar[str]
    """Paper that describes the detector."""
    looks_at: ClassVar[str]
    """Input of the score: "weights" (received weights and those of the round before) or "data" (the client's examples,
    too)."""

    @abstractmethod
    def score(self, received: ReceivedModel) -> float:
        """Return a number that tells how suspicious the `received` model is: a larger score is more suspicious.
        Infinity is allowed, NaN is not. Detectors other than `architecture` are called only for weights of the agreed
        architecture (`ReceivedModel.agreed`)."""


def shapes(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's `weights`, name → shape."""
    return {name: tuple(value.shape) for name, value in weights.items()}
