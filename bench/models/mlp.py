"""Fully connected net for tables, and for pictures flattened to vectors."""

from dataclasses import dataclass
from math import prod

from torch import nn

from bench.models.base import ACTIVATIONS, Activation, Model
from bench.parameters import parameter


@dataclass(frozen=True, kw_only=True)
class Mlp(Model):
    """Fully connected net with two hidden layers of 200 units, with biases."""

    reference = "NISS (MLP 200-200); Fed-αCDP's tabular sets have two hidden layers (sizes ours)"
    takes = ("image", "table")
    step_work = 0.03

    hidden: tuple[int, ...] = parameter((200, 200), "units of each hidden layer", source="NISS")
    activation: Activation = parameter("sigmoid", "after each hidden layer", source="ours")

    def __post_init__(self) -> None:
        if min(self.hidden, default=1) < 1:
            raise ValueError(f"hidden must be positive sizes, got {list(self.hidden)}")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        units = prod(shape)
        for size in self.hidden:
            layers += [nn.Linear(units, size), ACTIVATIONS[self.activation]()]
            units = size
        return nn.Sequential(*layers, nn.Linear(units, classes))
