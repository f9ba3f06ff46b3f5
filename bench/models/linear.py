"""A linear layer: softmax regression."""

from dataclasses import dataclass
from math import prod

from torch import nn

from bench.models.base import Model


@dataclass(frozen=True, kw_only=True)
class Linear(Model):
    """A linear layer with biases: softmax regression, or the head of a frozen network on its features."""

    reference = "softmax regression; on a frozen network's features: linear probe (Alain & Bengio 2016)"
    takes = ("image", "table")
    step_work = 0.01

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))
