"""Representation pruning: remove the most revealing features from a linear layer's gradient."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses import ranges
from bench.defenses.base import Context, Shown, State, Tensors, Transform
from bench.defenses.transforms.features import feature_sensitivity, linear, sensitivity_about


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRepresentation(Transform):
    """Remove the features that reveal most about an example from a linear layer's weight gradient, by zero columns. For
    each example x, these are the input features r_i with least ‖∂r_i/∂x‖/|r_i| (Soteria, Sun et al. 2021, §4). A zero
    feature has no gradient and ranks last."""

    reads: ClassVar[Shown] = "zeros"

    share: float
    """Share of the features whose columns become zero."""
    layer: str = ""
    """Name of the linear layer's module; empty selects the model's last linear layer."""

    def __post_init__(self) -> None:
        ranges.share("share of the features", self.share)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        return self._pruned(tensors, context, searching=False)

    def _pruned(self, tensors: Tensors, context: Context, *, searching: bool) -> dict[str, Tensor]:
        if context.local is None:
            raise ValueError("a representation belongs to an example: prune it at stage example")
        local = context.local
        name = f"{linear(local.model, self.layer)}.weight"
        count = round(self.share * tensors[name].shape[-1])
        of = partial(sensitivity_about, count=count) if searching else feature_sensitivity
        sensitivity = of(local, self.layer)
        order = sensitivity.argsort(dim=-1, stable=True)[..., :count]
        kept = torch.ones_like(sensitivity, dtype=torch.bool).scatter(-1, order, False)
        return {**tensors, name: torch.where(kept[..., None, :], tensors[name], 0.0)}

    @property
    def keeps(self) -> tuple[Shown, ...]:
        return ("zeros",)

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """Simulate the pruning on an attacker's candidate gradients `tensors`: each candidate's gradient without the
        columns of its own most revealing features. Return the result and the unchanged `state`. For the gradients of a
        search (tensors with `requires_grad`), the faster `sensitivity_about` selects the features. `context`: place in
        the training, with the examples behind the gradients."""
        searching = any(value.requires_grad for value in tensors.values())
        return self._pruned(tensors, context, searching=searching), state

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """Simulate the pruning on an attacker's candidate gradients `tensors`, with the choice of features that the
        attacked reading `observed` shows: the candidate without the columns that are zero in the reading. `context`:
        place in the training."""
        name = self._defended(tensors, context.lead)
        shown = (observed[name] != 0).any(-2, keepdim=True)
        return {**tensors, name: torch.where(shown, tensors[name], 0.0)}

    def _defended(self, tensors: Tensors, lead: int) -> str:
        """Return the name of the layer's weight, or of the last matrix in `tensors` (without `lead` axes) if none is
        named."""
        if self.layer:
            return f"{self.layer}.weight"
        return [name for name, value in tensors.items() if name.endswith("weight") and value.dim() == lead + 2][-1]
