"""Models attacked by DLG and CPL: small convolutional nets with wide uniform weights."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from bench.models.base import ACTIVATIONS, Activation, Model
from bench.parameters import parameter


@dataclass(frozen=True, kw_only=True)
class _Lenet(Model):
    activation: Activation = parameter("sigmoid", "after each convolution", source="Zhu et al. 2019")
    width: float = parameter(0.5, "weights and biases start uniform in ±width", source="Zhu et al. 2019", above=0)
    strides: ClassVar[tuple[int, ...]]

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = shape
        layers: list[nn.Module] = []
        for stride in self.strides:
            layers += [nn.Conv2d(channels, 12, 5, stride, padding=2), ACTIVATIONS[self.activation]()]
            channels, height, width = 12, (height - 1) // stride + 1, (width - 1) // stride + 1
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12 * height * width, classes))

    def bound(self, name: str, fan_in: int) -> float:
        return self.width


@dataclass(frozen=True, kw_only=True)
class DlgLenet(_Lenet):
    """Three 5×5 convolutions with 12 channels (strides 2, 2, 1), then a linear layer."""

    reference = "Zhu et al. 2019 (DLG), the authors' LeNet"
    takes = ("image",)
    strides = (2, 2, 1)
    step_work = 0.25


@dataclass(frozen=True, kw_only=True)
class CplLenet(_Lenet):
    """`dlg-lenet` with a fourth convolution (stride 1), as in the notebooks for CPL and Fed-αCDP."""

    reference = "Wei et al. 2020 (CPL) and Fed-αCDP's notebooks"
    takes = ("image",)
    strides = (2, 2, 1, 1)
    step_work = 0.3
