"""Cocktail party attack: independent component analysis of a fully connected first layer's gradient."""

from dataclasses import dataclass

from torch import Tensor

from bench.attacks.base import Attack
from bench.attacks.first_layer.ica import independent
from bench.attacks.first_layer.layer import RowSpace, refusal
from bench.attacks.first_layer.unmixing import unmixed_examples
from bench.parameters import parameter
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction

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

    Labels, certificate and loss come from δ, ∂loss/∂z at the first layer's output z (`first_layer/unmixing.py`)."""

    reference = "Kariyappa et al. 2023; Hyvärinen & Oja 2000; Pham & Garat 1997"
    iterative = False
    most_examples = 64

    refine: bool = parameter(True, "likelihood without decorrelation after FastICA; off: only FastICA", source="ours")

    def refuses(self, reading: Reading) -> str | None:
        return refusal(reading)

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        def mixing(space: RowSpace, index: int) -> Tensor | None:
            return independent(space, reading, key.generator("start", index, 0, 0), refine=self.refine)

        return unmixed_examples(reading, mixing, _NOTES)
