"""Models: shapes as the papers have them, and initial weights by key."""

from typing import Any

import pytest
import torch
from torch import nn

from bench.errors import BenchError, NotApplicable
from bench.models.base import Model, Normalise
from bench.models.resnet20 import Resnet20
from bench.registry import entries as registry


@pytest.mark.parametrize(
    ("name", "shape", "inner"),
    [
        ("dlg-lenet", (1, 28, 28), 588),
        ("dlg-lenet", (3, 32, 32), 768),
        ("cpl-lenet", (1, 28, 28), 588),
        ("fed-cnn", (1, 28, 28), 1600),
    ],
)
def test_the_last_layer_is_as_wide_as_the_paper_has_it(name: str, shape: tuple[int, ...], inner: int) -> None:
    model: Model = registry.instance("models", name, {})
    module = model.build(shape, 10)
    last = [layer for layer in module.modules() if isinstance(layer, nn.Linear)][-1]
    assert (last.in_features, last.out_features) == (inner, 10)
    assert module(torch.zeros(2, *shape)).shape == (2, 10)


def test_the_net_of_dlg_starts_uniform_in_half_a_unit() -> None:
    model: Model = registry.instance("models", "dlg-lenet", {})
    weights = model.initial(model.build((3, 32, 32), 10), 0)
    drawn = torch.cat([value.flatten() for value in weights.values()])
    assert float(drawn.abs().max()) <= 0.5
    # n draws of variance 1/12: five standard errors of the mean
    assert abs(float(drawn.mean())) < 5 * (1 / 12 / len(drawn)) ** 0.5
    again = model.initial(model.build((3, 32, 32), 10), 0)
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    other = model.initial(model.build((3, 32, 32), 10), 1)
    assert not any(torch.equal(weights[name], other[name]) for name in weights)


class _Own(Model):
    reference = "test"
    takes = ("image",)

    def __init__(self, *layers: nn.Module) -> None:
        self.layers = layers

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(*self.layers)


def test_normalisation_layers_start_as_the_identity() -> None:
    model = _Own(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4))
    weights = model.initial(model.build((1, 8, 8), 10), 0)
    assert weights["1.weight"].tolist() == [1] * 4
    assert weights["1.bias"].tolist() == [0] * 4


def test_a_layer_without_a_known_law_is_refused() -> None:
    model = _Own(nn.PReLU())
    with pytest.raises(BenchError, match=r"cannot draw initial weights of PReLU; give the model an `initial`"):
        model.initial(model.build((1, 8, 8), 10), 0)


def test_batch_norm_is_refused_with_a_way_out() -> None:
    model: Model = registry.instance("models", "convnet8", {"batch_norm": True})
    with pytest.raises(NotApplicable, match="use GroupNorm"):
        model.build((3, 32, 32), 10)


def test_normalisation_is_a_layer_without_parameters() -> None:
    layer = Normalise((0.5, 0.25), (0.5, 0.25))
    x = torch.rand(3, 2, 4, 4)
    expected = torch.stack([(x[:, 0] - 0.5) / 0.5, (x[:, 1] - 0.25) / 0.25], 1)
    torch.testing.assert_close(layer(x), expected)
    assert not list(layer.parameters())


def test_resnet20_has_the_paper_s_layers() -> None:
    """.27 million parameters (He et al. 2016, table 6); stages of 16, 32 and 64 channels at 32, 16 and 8 places."""
    module = Resnet20().build((3, 32, 32), 10)
    assert isinstance(module, nn.Sequential)
    assert round(sum(value.numel() for value in module.parameters()) / 1e6, 2) == 0.27
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert len(layers) == 20
    sizes = []
    x = torch.zeros(1, 3, 32, 32)
    for block in list(module)[:-3]:
        x = block(x)
        sizes.append(tuple(x.shape[1:]))
    assert sizes[3:] == [(16, 32, 32)] * 3 + [(32, 16, 16)] * 3 + [(64, 8, 8)] * 3
    with pytest.raises(ValueError, match="width=10 is no multiple of groups=8"):
        Resnet20(width=10)


def test_its_shortcuts_are_the_identity() -> None:
    """A block whose last GroupNorm gives zeros passes on what comes, at a stage's start every second place of it."""
    module = Resnet20(width=8, blocks=1).build((3, 8, 8), 10)
    assert isinstance(module, nn.Sequential)
    block: Any = module[4]
    nn.init.zeros_(block.inner[-1].weight)
    x = torch.rand(2, 8, 8, 8)
    shown = block(x)
    torch.testing.assert_close(shown[:, :8], x[..., ::2, ::2])
    assert shown.shape == (2, 16, 4, 4) and not shown[:, 8:].any()
