"""Base class for models: an architecture, and initial weights drawn by a key on the CPU."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from bench import rng
from bench.errors import BenchError

Activation = Literal["sigmoid", "tanh", "relu"]
ACTIVATIONS: dict[str, type[nn.Module]] = {"sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU}


_NORMS = (nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm1d, nn.InstanceNorm2d)


class Model(ABC):
    """Base class for models: an architecture with an initialisation. Concrete models are frozen dataclasses. Inputs lie
    in [0, 1]; their normalisation is a layer inside the module."""

    reference: ClassVar[str]
    """Paper that describes the model."""
    takes: ClassVar[tuple[str, ...]]
    """Names of the kinds of data that the model accepts: "image", "table", "text"."""
    work: ClassVar[float] = 1.0
    """Time for a gradient relative to the model `dlg-lenet` on the same images, for time estimates."""
    step_work: ClassVar[float | None] = None
    """Time for a training step in the same unit; None: `work`."""

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Return the module that maps inputs (example, *`shape`) to logits (example, class), for `classes` classes."""

    def bound(self, name: str, fan_in: int) -> float:
        """Return the half width w of the uniform distribution on [-w, w] from which the parameter `name` is drawn at
        the start. `fan_in` is the number of inputs of an output value; the default, as in torch, is 1/√fan_in."""
        return float(fan_in**-0.5)

    def initial(self, module: nn.Module, seed: int) -> dict[str, Tensor]:
        """Draw initial weights for the parameters of `module`: name → (*shape). Each is uniform between -w and w, with
        w from `bound` and a separate key from `seed`. Normalisation layers start as the identity. Raises `BenchError`
        for other layers with parameters."""
        return {
            name: torch.from_numpy(
                rng.generator(seed, "weights", name).uniform(-width, width, tuple(tensor.shape)) + centre
            ).to(tensor.dtype)
            for name, tensor, centre, width in self._laws(module)
        }

    def _laws(self, module: nn.Module) -> Iterator[tuple[str, Tensor, float, float]]:
        """Yield each parameter's name and tensor, and the centre and half width of its uniform distribution."""
        for path, layer in module.named_modules():
            parameters = dict(layer.named_parameters(recurse=False))
            if not parameters:
                continue
            if isinstance(layer, _NORMS):
                for name, tensor in parameters.items():
                    yield f"{path}.{name}" if path else name, tensor, float(name == "weight"), 0.0
                continue
            if "weight" not in parameters or parameters["weight"].dim() < 2:
                raise BenchError(
                    f"{type(self).__name__}: cannot draw initial weights of {type(layer).__name__}; "
                    "give the model an `initial` of its parameters"
                )
            fan_in = parameters["weight"][0].numel()
            for name, tensor in parameters.items():
                full = f"{path}.{name}" if path else name
                yield full, tensor, 0.0, self.bound(full, fan_in)


class Normalise(nn.Module):
    """Layer that normalises each channel of its input: (x - mean) / deviation, with a mean and a deviation per
    channel."""

    def __init__(self, mean: tuple[float, ...], deviation: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("deviation", torch.tensor(deviation)[:, None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return (`x` - mean) / deviation, channel by channel, for `x` (example, channel, height, width)."""
        mean, deviation = self.get_buffer("mean"), self.get_buffer("deviation")
        return (x - mean) / deviation
