"""mixup: train on mixtures of examples and labels."""

from dataclasses import dataclass

import torch
from scipy.special import betaincinv
from torch import Tensor

from bench.defenses.base import Context, Defense, Setting, StageTransforms, Tensors, Transform
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class MixNext(Transform):
    """Mix each example i with its successor j in the batch: x̃_i = λ_i x_i + (1 - λ_i) x_j, ỹ_i = λ_i y_i + (1 - λ_i)
    y_j, for inputs x and label probabilities y. The last example's successor is the first.

    λ_i ~ Beta(α, α) is computed from a uniform draw per example, by the inverse distribution function."""

    random = True
    batchwise = True
    mixes_examples = True

    alpha: float
    """α, the parameter of the Beta distribution of λ."""

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        inputs = tensors["inputs"]
        drawn = context.draws.uniform("share", inputs.new_empty(inputs.shape[:2]))
        share = torch.from_numpy(betaincinv(self.alpha, self.alpha, drawn.double().cpu().numpy())).to(drawn)
        return {name: _mixed(value, share) for name, value in tensors.items()}


def _mixed(value: Tensor, share: Tensor) -> Tensor:
    """Mix each example in `value` (client, example, …) with the next example in its batch, the last with the first. The
    weights are an example's `share` (client, example), and 1 - share for the next example."""
    kept = share.reshape(*share.shape, *[1] * (value.dim() - 2))
    return kept * value + (1 - kept) * value.roll(-1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixUp(Defense):
    """Train on mixtures of two examples in place of examples: λx + (1 - λ)x′ with label λy + (1 - λ)y′, λ ~ Beta(α, α);
    x′ is another example in the batch. A batch with a single example is not mixed: its readings (observed updates)
    equal the undefended readings bit for bit. Clients send the exact gradient of the mixtures. Gradient matching
    returns mixtures; an attacker who knows of the mixing may separate them (`demix`). A mixture counts as leaked if
    either original leaks.

    Departures: the paper mixes a batch with a random permutation. Here an example is mixed with the next: each round
    draws a new batch order, so the partner is random and never the example itself. λ is drawn per pair, as in the
    paper's formula; the paper's listing draws a single λ per batch. Huang et al. 2021 (GradAttack) attack mixup as a
    defense."""

    reference = "Zhang et al. 2018 (mixup)"
    stages = ("input",)

    alpha: float = parameter(1.0, "α of λ ~ Beta(α, α); 1: uniform", source="Zhang et al. 2018", above=0)

    def transforms(self, setting: Setting) -> StageTransforms:
        return {"input": (MixNext(alpha=self.alpha),)} if setting.batch > 1 else {}
