"""Proportional rows: rows of a layer that are multiples of each other."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.detectors.base import Detector, ReceivedModel


@dataclass(frozen=True, kw_only=True)
class ProportionalRows(Detector):
    """Detector of proportional rows (neurons' weight vectors) in a layer's weight matrix, as attacks choose them. The
    score is the mean, over the rows of a layer, of a row's largest |cosine| with another row, in the layer with the
    largest mean."""

    reference = "On the Detectability of Active Gradient Inversion 2025 (arXiv 2511.10502); the mean over rows: ours"
    looks_at = "weights"

    def score(self, received: ReceivedModel) -> float:
        return max((_likeness(value.flatten(1)) for value in received.weights.values() if value.dim() > 1), default=0.0)


def _likeness(rows: Tensor) -> float:
    if len(rows) < 2 or rows.shape[1] < 2:
        return 0.0  # every pair of numbers is proportional
    units = torch.nn.functional.normalize(rows.float(), eps=1e-30)
    return float((units @ units.T).abs().fill_diagonal_(0).amax(1).mean())
