"""Promise: an attacker holds of public data what the cell grants: examples, their moments, or nothing of them."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from bench.answer.public import known_public
from bench.cell import Grants
from bench.datasets.base import Data
from bench.kinds.images import IMAGE
from bench.kinds.tables import TABLE


def data(shape: tuple[int, ...], count: int = 300) -> Data:
    rng = np.random.default_rng(0)
    floats = rng.random((count, *shape), dtype=np.float32) ** 2
    public = SimpleNamespace(floats=lambda: floats, labels=np.arange(count) % 3)
    made: Any = SimpleNamespace(public=public, shape=shape, kind=IMAGE if len(shape) == 3 else TABLE)
    return cast(Data, made)


def test_the_distribution_is_the_public_split() -> None:
    inputs, labels = known_public(data((4,)), "distribution")
    assert np.array_equal(inputs.numpy(), data((4,)).public.floats())
    assert labels.tolist() == data((4,)).public.labels.tolist()


@pytest.mark.parametrize("shape", [(4,), (3, 4, 4)])
def test_statistics_are_the_mean_and_the_covariance_alone(shape: tuple[int, ...]) -> None:
    """512 draws: a mean is good to 4 %, a covariance entry to 6 % of the variances."""
    known = data(shape)
    inputs, labels = known_public(known, "statistics")
    public = torch.from_numpy(known.public.floats()).flatten(1)
    drawn = inputs.flatten(1)
    deviation = public.std(0)
    assert ((drawn.mean(0) - public.mean(0)).abs() < 5 * deviation / 512**0.5).all()
    expected, got = torch.cov(public.T), torch.cov(drawn.T)
    assert ((got - expected).abs() < 5 * deviation[:, None] * deviation / (512 / 2) ** 0.5).all()
    assert (labels == -1).all()
    assert not (drawn[:, None] == public).all(-1).any()


def test_nothing_is_the_law_of_natural_images() -> None:
    """Amplitudes fall as 1/f: the spectrum's slope in log-log is -1 over the middle octaves; nothing of the split."""
    inputs, labels = known_public(data((1, 32, 32)), "none")
    spectrum = torch.fft.fft2(inputs - inputs.mean((-2, -1), keepdim=True)).abs().square().mean((0, 1))[0].sqrt()
    slope = float((spectrum[8].log() - spectrum[2].log()) / (np.log(8) - np.log(2)))
    assert -1.3 < slope < -0.7
    assert abs(float(inputs.mean()) - 0.5) < 0.05
    assert (labels == -1).all()
    again, _ = known_public(data((1, 32, 32), count=20), "none")
    assert torch.equal(inputs, again)


def test_the_grant_is_part_of_the_id_only_where_it_differs() -> None:
    assert Grants().granted() == {}
    assert Grants(public="none").words() == ["public data: none"]
