"""The common residual net for CIFAR-10, with GroupNorm, because batch statistics would mix the examples."""

from dataclasses import dataclass
from math import sqrt

import torch.nn.functional as F
from torch import Tensor, nn

from bench.models.base import Model
from bench.parameters import parameter

_STAGES = (1, 2, 4)  # times `width`


class _Block(nn.Module):
    """Two 3×3 convolutions plus the identity, padded with zero channels (He et al. 2016, option A)."""

    def __init__(self, channels: int, out: int, stride: int, groups: int) -> None:
        super().__init__()
        self.stride, self.more = stride, out - channels
        self.inner = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, padding=1, bias=False),
            nn.GroupNorm(groups, out),
            nn.ReLU(),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            nn.GroupNorm(groups, out),
        )
        self.outer = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        shortcut = F.pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))
        result: Tensor = self.outer(self.inner(x) + shortcut)
        return result


@dataclass(frozen=True, kw_only=True)
class Resnet20(Model):
    """Residual net with three stages of `width`·(1, 2, 4) channels, and `blocks` residual blocks in each stage.

    A 3×3 convolution comes first, the mean over pixel positions and a linear layer last: 6·blocks + 2 layers with
    weights, .27 million parameters at 20 layers."""

    reference = "He, Zhang, Ren & Sun 2016, §4.2; GroupNorm (Wu & He 2018) for BatchNorm"
    takes = ("image",)
    work = 25.0
    step_work = 13.0

    width: int = parameter(16, "channels of the first stage", source="He et al. 2016", low=1)
    blocks: int = parameter(3, "residual blocks of each stage", source="He et al. 2016", low=1)
    groups: int = parameter(8, "groups of channels that are normalised together", source="ours", low=1)

    def __post_init__(self) -> None:
        if self.width % self.groups:
            raise ValueError(f"width={self.width} is no multiple of groups={self.groups}")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels = self.width
        layers: list[nn.Module] = [
            nn.Conv2d(shape[0], channels, 3, padding=1, bias=False),
            nn.GroupNorm(self.groups, channels),
            nn.ReLU(),
        ]
        for stage, factor in enumerate(_STAGES):
            for block in range(self.blocks):
                stride = 2 if stage and not block else 1
                layers.append(_Block(channels, self.width * factor, stride, self.groups))
                channels = self.width * factor
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))

    def bound(self, name: str, fan_in: int) -> float:
        """Return the half width of the initial uniform distribution for the parameter `name`, which gives variance
        2/`fan_in` (He et al. 2015); the last layer keeps torch's default."""
        last = not name.startswith(("0.", "1.")) and ".inner." not in name
        return float((1 if last else sqrt(6)) * fan_in**-0.5)
