"""Single openings: rows of a hidden layer that a single example of the client's batch opens."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from bench.detectors.base import Detector, ReceivedModel


@dataclass(frozen=True, kw_only=True)
class SingleOpenings(Detector):
    """Detector of neurons that a single example activates, so that their gradient shows the example. The score is the
    share of a hidden layer's outputs that are positive for exactly one of the client's examples, in the layer with the
    largest share. Each position of a convolution counts as an output."""

    reference = "Nowak et al. 2024 (AGGP); the share: ours"
    looks_at = "data"

    def score(self, received: ReceivedModel) -> float:
        shares: list[float] = []

        def keep(layer: nn.Module, arguments: tuple[Any, ...], out: Tensor) -> None:
            shares.append(float(((out.flatten(1) > 0).sum(0) == 1).double().mean()))

        layers = [layer for layer in received.model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
        handles = [layer.register_forward_hook(keep) for layer in layers]
        try:
            received.logits(received.weights)
        finally:
            for handle in handles:
                handle.remove()
        return max(shares[:-1], default=0.0)  # the last layer's outputs are logits
