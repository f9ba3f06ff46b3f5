"""Attack that infers labels but no inputs."""

from dataclasses import dataclass

from bench.attacks.base import Attack, closed_form
from bench.attacks.labels.infer import infer_labels
from bench.attacks.objective.mismatch import observations
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction


@dataclass(frozen=True, kw_only=True)
class LabelsOnly(Attack):
    """Infer labels from the last layer's gradient, without a reconstruction of inputs: all inputs returned are the
    public mean. The attack shows how much labels leak."""

    reference = "Zhao et al. 2020; batches: Wainakh et al. 2021"
    iterative = False

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        labels = infer_labels(reading, observations(reading)[0])
        return closed_form(reading, reading.public_mean.expand(*labels.shape, *reading.shape), labels)
