"""mixup: a client trains on mixtures of its examples, and of their labels."""

from dataclasses import dataclass

import torch
from scipy.special import betaincinv
from torch import Tensor

from bench.defenses.base import Context, Defense, Setting, StageTransforms, Tensors, Transform
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class MixNext(Transform):
    """x̃_i = λ_i x_i + (1 - λ_i) x_j and ỹ_i = λ_i y_i + (1 - λ_i) y_j, λ_i ~ Beta(α, α) for each example, j the next of
    its batch, after the last the first.

    λ_i is drawn by the inverse of the law's distribution function at a uniform draw.
    """

    random = True
    batchwise = True
    mixes_examples = True

    alpha: float

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        inputs = tensors["inputs"]
        drawn = context.draws.uniform("share", inputs.new_empty(inputs.shape[:2]))
        share = torch.from_numpy(betaincinv(self.alpha, self.alpha, drawn.double().cpu().numpy())).to(drawn)
        return {name: _mixed(value, share) for name, value in tensors.items()}


def _mixed(value: Tensor, share: Tensor) -> Tensor:
    """`value` (client, example, …) with `share` (client, example) of each example kept."""
    kept = share.reshape(*share.shape, *[1] * (value.dim() - 2))
    return kept * value + (1 - kept) * value.roll(-1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixUp(Defense):
    """Train on λx + (1 - λ)x′ with the label λy + (1 - λ)y′, λ ~ Beta(α, α), x′ another example of the batch.

    A batch of one has no partner: nothing is mixed, and its readings are those without a defense, bit for bit. What
    is sent is the exact gradient of the mixtures, so that an attacker who matches gradients gets mixtures back, and
    one who knows of the mixing may take those of a batch apart (`demix`); one counts as leaked if either of its
    originals does.

    The paper mixes a batch with a random permutation of itself.  Here that is the shift by one: a batch's order is
    drawn anew each round, so that the partner is a random other example, and never the example itself.  λ is drawn for
    each pair, as in the paper's formula; its listing draws one a batch.  Huang et al. 2021 (GradAttack) attack it as a
    defense.
    """

    reference = "Zhang et al. 2018 (mixup)"
    stages = ("input",)

    alpha: float = parameter(1.0, "α of λ ~ Beta(α, α); 1: uniform", source="Zhang et al. 2018", above=0)

    def transforms(self, setting: Setting) -> StageTransforms:
        return {"input": (MixNext(alpha=self.alpha),)} if setting.batch > 1 else {}
