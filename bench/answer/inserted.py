"""Layers that a malicious server inserts before the agreed model (the grant `server = "layers"`)."""

from collections import OrderedDict
from math import prod

from torch import Tensor, nn

from bench.cell import AttackCell, TrainingCell
from bench.models.base import Model
from bench.registry import entries as registry

ROWS = 1024  # rows (neurons) of the inserted layer


class InsertedLayers(nn.Module):
    """Two fully connected layers with a ReLU between, which a malicious server inserts before the agreed model: the
    gradient of the first layer then shows the clients' inputs. Their output, a number for each example, is added to
    each input value, and the agreed model gets the sum."""

    def __init__(self, size: int) -> None:
        """Make the layers for inputs with `size` values in an example."""
        super().__init__()
        self.rows = nn.Linear(size, ROWS)
        self.sum = nn.Linear(ROWS, 1)

    def forward(self, x: Tensor) -> Tensor:
        raised: Tensor = self.sum(self.rows(x.flatten(1)).relu())
        return x + raised.reshape(-1, *[1] * (x.dim() - 1))


def program(cell: AttackCell | TrainingCell, net: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """Return the module that the clients of the `cell` (an experiment) run: the agreed model `net`, or with the grant
    `server = "layers"` this model behind inserted layers. `shape` is an example's shape. Parameters then have the
    prefixes `inserted.` and `net.`."""
    if not inserts(cell):
        return net
    return nn.Sequential(OrderedDict(inserted=InsertedLayers(prod(shape)), net=net)).eval()


def program_weights(cell: AttackCell | TrainingCell, model: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the start weights of the module that the clients of the `cell` (an experiment) run, name → (*shape). If
    the server inserts layers, these get initial weights, drawn like those of the cell's model.

    - `model`: the module, from `program`.
    - `weights`: weights of the agreed model, name → (*shape); without inserted layers, these are the result."""
    if not inserts(cell):
        return weights
    architecture: Model = registry.of("models", cell.model)
    layers = architecture.initial(model.get_submodule("inserted"), cell.seed)
    return {f"inserted.{name}": value for name, value in layers.items()} | {
        f"net.{name}": value for name, value in weights.items()
    }


def inserts(cell: AttackCell | TrainingCell) -> bool:
    """Return whether the malicious server of the `cell` (an experiment) inserts layers before the agreed model (grant
    `server = "layers"`)."""
    return isinstance(cell, AttackCell) and cell.grants.server == "layers"
