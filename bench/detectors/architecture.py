"""Architecture: received weights with other names or shapes than agreed."""

from dataclasses import dataclass

from bench.detectors.base import Detector, ReceivedModel, shapes


@dataclass(frozen=True, kw_only=True)
class Architecture(Detector):
    """Detector of weights that do not have the agreed architecture; the score is the number of weights with another
    name or shape. A client with this detector stops every inserted layer; chosen weights of the agreed shapes always
    pass."""

    reference = "Hear No Evil 2025 (arXiv 2506.20651)"
    looks_at = "weights"

    def score(self, received: ReceivedModel) -> float:
        got, agreed = shapes(received.weights), shapes(dict(received.model.named_parameters()))
        return float(sum(got.get(name) != agreed.get(name) for name in {*got, *agreed}))
