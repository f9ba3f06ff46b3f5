"""Loss jump: a received model that is worse on the client's own data than the model of the round before."""

from dataclasses import dataclass
from math import inf, isfinite

from bench.detectors.base import Detector, ReceivedModel
from bench.training import loss_of


@dataclass(frozen=True, kw_only=True)
class LossJump(Detector):
    """Detector of a received model that is worse than the model of the round before. The score is the difference of
    their losses on the client's examples, received minus before."""

    reference = "On the Detectability of Active Gradient Inversion 2025 (arXiv 2511.10502), loss dynamics"
    looks_at = "data"

    def score(self, received: ReceivedModel) -> float:
        loss = loss_of(received.model)
        now, before = (
            float(loss(received.logits(weights), received.targets)) for weights in (received.weights, received.previous)
        )
        return now - before if isfinite(now) else inf
