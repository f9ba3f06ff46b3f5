"""D-SNR: an example that dominates a tensor's gradient in the client's batch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.detectors.base import Detector, ReceivedModel
from bench.gradients import group_gradients

_CHUNK = 16  # examples' gradients in memory at once


@dataclass(frozen=True, kw_only=True)
class DSnr(Detector):
    """Detector of weights under which a single example's gradient dominates the client's batch. The score is the
    disaggregation signal-to-noise ratio: the largest gradient norm of an example divided by the sum of the other
    examples' norms, max_i ‖g_i‖ / (Σ_i ‖g_i‖ - max_i ‖g_i‖), in the weight tensor with the largest ratio. The score of
    a batch with a single example is infinity."""

    reference = "Garov et al. 2024, ICLR (Hiding in Plain Sight), §3"
    looks_at = "data"

    def score(self, received: ReceivedModel) -> float:
        pairs = zip(received.inputs.split(_CHUNK), received.targets.split(_CHUNK), strict=True)
        parts = [_norms(group_gradients(received.model, received.weights, x[:, None], y[:, None])) for x, y in pairs]
        largest = 0.0
        for name in parts[0]:
            norms = torch.cat([part[name] for part in parts]).sort().values
            if norms[-1] > 0:
                largest = max(largest, float(norms[-1] / norms[:-1].sum()))
        return largest


def _norms(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the norms (example,) of the `gradients`, name → (example, *shape), of weights with rows."""
    return {name: value.flatten(1).norm(dim=1).double() for name, value in gradients.items() if value.dim() > 2}
