"""GradInv's eight-layer ConvNet; batch normalisation is refused, because it mixes examples."""

from dataclasses import dataclass

from torch import nn

from bench.errors import NotApplicable
from bench.models.base import Model
from bench.parameters import parameter


@dataclass(frozen=True, kw_only=True)
class ConvNet8(Model):
    """Convolutional net with eight 3×3 convolutions of `width`·(1, 2, 2, 4, 4, 4, 4, 4) channels, 3×3 pooling after the
    6th and the 8th, and a linear layer."""

    reference = "Geiping et al. 2020 (GradInv), ConvNet; Risk-balanced's model for GIA"
    takes = ("image",)
    work = 80.0
    step_work = 20.0

    width: int = parameter(32, "channels of the first convolution", source="Geiping et al. 2020", low=1)
    batch_norm: bool = parameter(
        False, "BatchNorm after each convolution; refused: its statistics leak between examples", source="ours"
    )

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if self.batch_norm:
            raise NotApplicable(
                "batch statistics mix the examples of a batch, so that no gradient is one example's; "
                "use GroupNorm in a model of your own"
            )
        channels, height, width = shape
        layers: list[nn.Module] = []
        for index, factor in enumerate((1, 2, 2, 4, 4, 4, 4, 4), start=1):
            layers += [nn.Conv2d(channels, self.width * factor, 3, padding=1), nn.ReLU()]
            channels = self.width * factor
            if index in (6, 8):
                layers.append(nn.MaxPool2d(3))
                height, width = height // 3, width // 3
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, classes))
