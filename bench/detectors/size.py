"""Size: a tensor whose norm jumps against the round before."""

from dataclasses import dataclass
from math import log

from torch import Tensor

from bench.detectors.base import Detector, ReceivedModel

_LEAST = 1e-12  # norm of an empty tensor


@dataclass(frozen=True, kw_only=True)
class Size(Detector):
    """Detector of weight tensors that are much larger or smaller than in the round before. The score is the largest
    |ln(‖w‖ / ‖w_before‖)| over the weight tensors, without biases."""

    reference = "Geminio 2025, ICCV (sizes of chosen weights); the ratio of norms: ours"
    looks_at = "weights"

    def score(self, received: ReceivedModel) -> float:
        now, before = received.weights, received.previous
        return max(
            (abs(_log_norm(now[name]) - _log_norm(before[name])) for name in now if now[name].dim() > 1), default=0
        )


def _log_norm(value: Tensor) -> float:
    return log(max(_LEAST, float(value.double().norm())))
