"""The last block and the head of MobileNetV2, pretrained on ImageNet: the part that clients fine-tune."""

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path

import torch
from torch import Tensor, nn

from bench import mobilenet
from bench.errors import DataError, MissingDataError, NotApplicable
from bench.folders import folders
from bench.models.base import Model, Normalise

_INPUTS = (mobilenet.CHANNELS, mobilenet.SIDE, mobilenet.SIDE)
_LAST = f"features.{mobilenet.BLOCKS}"
_EPS = 1e-5  # of torchvision's BatchNorm


@dataclass(frozen=True, kw_only=True)
class MobileNetTail(Model):
    """The last block of MobileNetV2 (a 1×1 convolution from 320 to 1280 channels, frozen BatchNorm, ReLU6, mean over
    positions) with ImageNet's weights, and a drawn linear head: 422410 trained parameters. Inputs are the features of
    `cifar10-mobilenet:cut=block`. The file of weights comes with `bench data fetch cifar10-mobilenet`; it is searched
    in BENCH_DATA and in the user's cache."""

    reference = "Sandler et al. 2018, MobileNetV2 (torchvision, IMAGENET1K_V1)"
    takes = ("table",)
    work = 5.0
    step_work = 0.5

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if prod(shape) != prod(_INPUTS):
            raise NotApplicable(f"mobilenet-tail reads {prod(_INPUTS)} features, an example has {prod(shape)}")
        channels, width = mobilenet.CHANNELS, mobilenet.WIDTH
        convolution = nn.Conv2d(channels, width, 1, bias=False)
        layers = [
            nn.Flatten(),
            nn.Unflatten(1, _INPUTS),
            Normalise((0.5,) * channels, (0.5 / mobilenet.LARGEST,) * channels),
            convolution,
            Normalise((0.0,) * width, (1.0,) * width),
            nn.ReLU6(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, classes),
        ]
        if not convolution.weight.is_meta:  # a plan of a run needs shapes only
            layers[4] = _frozen_norm(_weights())
        return nn.Sequential(*layers)

    def initial(self, module: nn.Module, seed: int) -> dict[str, Tensor]:
        """Return initial weights for the parameters of `module`, name → (*shape): ImageNet's for the convolution, and
        drawn ones with a key from `seed` for the head."""
        return {**super().initial(module, seed), "3.weight": _weights()[f"{_LAST}.0.weight"].clone()}


def _frozen_norm(weights: dict[str, Tensor]) -> Normalise:
    """Return BatchNorm with ImageNet's statistics, γ (x - mean) / √(variance + ε) + β, as (x - m) / d."""
    gamma, beta, mean, variance = (
        weights[f"{_LAST}.1.{name}"].double() for name in ("weight", "bias", "running_mean", "running_var")
    )
    deviation = (variance + _EPS).sqrt() / gamma
    centre = mean - beta * deviation
    return Normalise(tuple(centre.tolist()), tuple(deviation.tolist()))


def _weights() -> dict[str, Tensor]:
    """Return torchvision's weights of the last block. Raises `DataError` with the remedy for a missing or damaged
    file."""
    try:
        path = mobilenet.find(folders(None))
    except MissingDataError as error:
        raise MissingDataError(
            f"mobilenet-tail: {error}; run `bench data fetch cifar10-mobilenet` (not searched in --data-dir)"
        ) from None
    return _stored(path)


@lru_cache(maxsize=1)  # the file is checked by its hash, and a cell asks twice
def _stored(path: Path) -> dict[str, Tensor]:
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a wrong file raises many types
        raise DataError(f"{path}: cannot be read ({type(error).__name__})") from None
    return {name: value for name, value in stored.items() if name.startswith(f"{_LAST}.")}
