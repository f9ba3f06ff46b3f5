"""Cocktail party attack: independent component analysis of a fully connected first layer's gradient."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.attacks.base import Attack, closed_form
from bench.attacks.first_layer.certificate import Witness
from bench.attacks.first_layer.ica import independent
from bench.attacks.first_layer.layer import FirstLayer, first_layer, refusal, row_space, table
from bench.attacks.labels.infer import infer_labels
from bench.attacks.objective.mismatch import mean_observation, observations
from bench.parameters import parameter
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction, Status

_NOTES = (
    "independent components of pixel differences, where the authors take gradients of a network's pixels as they are",
    "scale and sign from the bias column, where the authors search them",
)


@dataclass(frozen=True, kw_only=True)
class Cpa(Attack):
    """Find the examples as independent components in the row space of the first layer's gradient [dW | db].

    The row space contains the examples even if each example's gradient was clipped or rescaled, under any later layers
    and over several local steps (`first_layer/ica.py`). Noise is not undone, so a description of the defense would
    change nothing.

    Labels come from δ, ∂loss/∂z at the first layer's output z. An example's label is the class for which δ simulated by
    the model is nearest to δ computed from the gradient. The loss reported for a reading is the mean share of δ's
    variance that this simulation does not explain."""

    reference = "Kariyappa et al. 2023; Hyvärinen & Oja 2000; Pham & Garat 1997"
    iterative = False
    most_examples = 64

    refine: bool = parameter(True, "likelihood without decorrelation after FastICA; off: only FastICA", source="ours")

    def refuses(self, reading: Reading) -> str | None:
        return refusal(reading)

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        layer = first_layer(reading)
        assert layer is not None
        observed, witness = observations(reading), Witness.of(reading, layer)
        inferred = infer_labels(reading, mean_observation(observed))
        rows = [
            self._one_reading(reading, layer, witness, table(layer, observed, row), inferred[row], index, key)
            for row, index in enumerate(reading.indices)
        ]
        inputs, labels, loss, certain, status = zip(*rows, strict=True)
        return closed_form(
            reading,
            torch.stack(inputs).to(next(iter(reading.values.values())).dtype),
            torch.stack(labels),
            loss=torch.tensor(loss, dtype=torch.float64),
            status=status,
            certificate=torch.tensor(certain, dtype=torch.float64),
            notes=_NOTES,
        )

    def _one_reading(
        self,
        reading: Reading,
        layer: FirstLayer,
        witness: Witness,
        gradient: Tensor,
        labels: Tensor,
        index: int,
        key: Key,
    ) -> tuple[Tensor, Tensor, float, float, Status]:
        public = reading.public_mean.double().cpu().expand(reading.examples, *reading.shape)
        if not torch.isfinite(gradient).all():
            return public, labels, float("nan"), 0.0, "nan"
        if not gradient[:, -1].any():
            return public, labels, 1.0, 0.0, "diverged"
        space = row_space(layer, gradient / gradient.abs().max(), reading.examples)
        mixing = independent(space, reading, key.generator("start", index, 0, 0), refine=self.refine)
        if mixing is None or not torch.isfinite(mixing).all():
            return public, labels, 1.0, 0.0, "diverged"
        inputs = mixing @ space.right
        agreed = witness.agreement(inputs, space.deltas(mixing))
        missing = reading.examples - len(inputs)  # repeated examples, or more examples than neurons
        if missing == 0 and reading.labels is None:
            labels = agreed.labels
        inputs = torch.cat([inputs, inputs.mean(0).expand(missing, -1)])
        return (
            inputs.reshape(-1, *reading.shape),
            labels,
            float(1 - agreed.explained.clamp_min(0).mean()),
            agreed.certain / reading.examples,
            "ok",
        )
