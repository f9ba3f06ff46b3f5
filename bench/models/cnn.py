"""Convolutional models that the papers train."""

from dataclasses import dataclass

from torch import nn

from bench.models.base import ACTIVATIONS, Activation, Model
from bench.parameters import parameter


@dataclass(frozen=True, kw_only=True)
class FedCnn(Model):
    """Two 3×3 convolutions (32, 64 channels) with 2×2 pooling, then a linear layer; no padding, no biases."""

    reference = "Fed-αCDP's authors' code, MNIST"
    takes = ("image",)
    work = 1.7

    activation: Activation = parameter("relu", "after each convolution", source="Fed-αCDP's code")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = shape
        act = ACTIVATIONS[self.activation]
        for _ in range(2):
            height, width = (height - 2) // 2, (width - 2) // 2
        return nn.Sequential(
            nn.Conv2d(channels, 32, 3, bias=False),
            act(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, bias=False),
            act(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * height * width, classes, bias=False),
        )


@dataclass(frozen=True, kw_only=True)
class Cnn(Model):
    """Convolutional net with two padded 3×3 convolutions (32 and 64 channels) with pooling, a hidden linear layer and a
    linear classifier."""

    reference = "LDP-FL and NISS (two-layer CNN); sizes ours, 512 hidden units from NISS"
    takes = ("image",)
    work = 24.0
    step_work = 3.6

    hidden: int = parameter(512, "units of the linear layer", source="NISS; LDP-FL gives no size", low=1)
    activation: Activation = parameter("relu", "after each layer", source="ours")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = shape
        act = ACTIVATIONS[self.activation]
        return nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1),
            act(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            act(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (height // 4) * (width // 4), self.hidden),
            act(),
            nn.Linear(self.hidden, classes),
        )


@dataclass(frozen=True, kw_only=True)
class VggSmall(Model):
    """VGG net with six 3×3 convolutions of 32, 32, 64, 64, 128 and 128 channels, pooling after each pair, and a hidden
    layer of 256 units."""

    reference = "LDP-FL (small VGG for CIFAR-10); sizes ours"
    takes = ("image",)
    work = 15.0
    step_work = 10.0

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = shape
        layers: list[nn.Module] = []
        for out in (32, 64, 128):
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(out, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            channels = out
        return nn.Sequential(
            *layers,
            nn.Flatten(),
            nn.Linear(128 * (height // 8) * (width // 8), 256),
            nn.ReLU(),
            nn.Linear(256, classes),
        )
