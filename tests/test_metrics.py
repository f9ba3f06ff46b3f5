"""Promise: each figure of a picture is right, on one data range, and finite in JSON."""

import hashlib
import inspect
import socket

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.lib.stride_tricks import sliding_window_view
from skimage.metrics import peak_signal_noise_ratio

from bench.datasets.base import Group
from bench.scoring import lpips_metric, metrics
from bench.scoring.metrics import ssim

PICTURES = arrays(np.float64, (2, 3, 1, 4, 4), elements=st.floats(0, 1, width=32))
steady = settings(derandomize=True, database=None, deadline=None, max_examples=50)


def slow_ssim(x, y):
    """Wang et al. 2004, eq. 13, over every 7×7 window, with sample covariances."""
    a, b = (sliding_window_view(image, (7, 7), (1, 2)).reshape(-1, 49) for image in (x, y))
    covariance = ((a - a.mean(1, keepdims=True)) * (b - b.mean(1, keepdims=True))).sum(1) / 48
    luminance = (2 * a.mean(1) * b.mean(1) + 0.01**2) / (a.mean(1) ** 2 + b.mean(1) ** 2 + 0.01**2)
    structure = (2 * covariance + 0.03**2) / (a.var(1, ddof=1) + b.var(1, ddof=1) + 0.03**2)
    return (luminance * structure).mean()


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 9, 13), (1, 7, 7)])
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.8])
def test_ssim_and_psnr_equal_their_definitions(rng, shape, noise):
    truth = rng.random((2, 2, *shape))
    guess = truth + noise * rng.standard_normal(truth.shape)
    seen = np.clip(guess, 0, 1)
    for index in np.ndindex(2, 2):
        assert ssim(truth, guess)[index] == pytest.approx(slow_ssim(truth[index], seen[index]), abs=1e-9)
        if noise:
            expected = peak_signal_noise_ratio(truth[index], seen[index], data_range=1)
            assert metrics.psnr_db(truth, guess)[index] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("level", "other"), [(0.0, 0.3), (0.3, 0.7), (0.0, 1.0), (0.5, 0.5)])
def test_ssim_of_flat_images_compares_their_means(level, other):
    truth, guess = np.full((1, 1, 3, 8, 8), level), np.full((1, 1, 3, 8, 8), other)
    expected = (2 * level * other + 1e-4) / (level**2 + other**2 + 1e-4)
    assert ssim(truth, guess)[0, 0] == pytest.approx(expected, abs=1e-9)


def test_ssim_is_absent_for_pictures_smaller_than_its_window():
    assert np.isnan(ssim(np.zeros((1, 2, 1, 6, 9)), np.zeros((1, 2, 1, 6, 9)))).all()


@steady
@given(PICTURES, PICTURES)
def test_psnr_is_symmetric_finite_and_follows_from_rmse(truth, guess):
    forward = metrics.psnr_db(truth, guess)
    np.testing.assert_array_equal(forward, metrics.psnr_db(guess, truth))
    assert ((forward >= 0) & (forward <= metrics.PSNR_CAP_DB)).all()
    error = np.maximum(metrics.rmse(truth, guess), 1e-6)
    np.testing.assert_allclose(forward, -20 * np.log10(error), atol=1e-9)


@steady
@given(PICTURES, arrays(np.float64, (2, 3, 1, 4, 4), elements=st.floats(-5, 5, width=32)))
def test_clipping_never_hurts_and_metrics_see_the_clipped_guess(truth, guess):
    assert (metrics.rmse(truth, guess) <= metrics.rmse_unclipped(truth, guess) + 1e-12).all()
    np.testing.assert_array_equal(metrics.psnr_db(truth, guess), metrics.psnr_db(truth, np.clip(guess, 0, 1)))


@pytest.mark.parametrize("metric", [metrics.rmse, metrics.rmse_unclipped, metrics.psnr_db, ssim])
@pytest.mark.parametrize("wrong", [lambda p: p * 255, lambda p: 2 * p - 1, lambda p: p * np.nan])
def test_a_truth_in_another_range_is_refused(rng, metric, wrong):
    truth = rng.random((1, 1, 3, 8, 8))
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        metric(wrong(truth), wrong(truth))


def test_known_values():
    truth, guess = np.zeros((1, 2, 1, 2, 2)), np.zeros((1, 2, 1, 2, 2))
    guess[0, 0] = 0.1
    np.testing.assert_allclose(metrics.psnr_db(truth, guess), [[20, metrics.PSNR_CAP_DB]])
    np.testing.assert_allclose(metrics.rmse(truth, guess - 5), [[0, 0]])
    np.testing.assert_allclose(metrics.rmse_unclipped(truth, guess - 5), [[4.9, 5]])


def test_a_bad_picture_is_nan_and_leaves_its_neighbours_alone(rng):
    truth = rng.random((2, 2, 1, 8, 8))
    guess = np.clip(truth + 0.1, 0, 1)
    broken = guess.copy()
    broken[0, 1, 0, 3, 3] = np.nan
    for metric in (metrics.rmse, metrics.psnr_db, ssim):
        clean, seen = metric(truth, guess), metric(truth, broken)
        assert np.isnan(seen[0, 1])
        seen[0, 1] = clean[0, 1]
        np.testing.assert_array_equal(seen, clean)


def test_a_picture_too_large_to_square_is_infinitely_far():
    assert metrics.rmse_unclipped(np.zeros((1, 1, 2)), np.full((1, 1, 2), 1e200)) == np.inf


AGE = Group(name="age", columns=(0,), categorical=False, mean=0.5, deviation=0.1)
HOURS = Group(name="hours", columns=(1,), categorical=False, mean=0.4, deviation=0.2)
WORK = Group(name="work", columns=(2, 3, 4), categorical=True)
SEX = Group(name="sex", columns=(5,), categorical=True)
ROW = np.array([[[0.5, 0.4, 1, 0, 0, 0]]])


def test_numeric_rmse_is_in_deviations():
    guess = ROW + np.array([0.1, -0.4, 0, 0, 0, 0])
    expected = np.sqrt((1**2 + 2**2) / 2)
    assert metrics.numeric_rmse(ROW, guess, (AGE, HOURS, WORK))[0, 0] == pytest.approx(expected)
    assert np.isnan(metrics.numeric_rmse(ROW, guess, (WORK,))[0, 0])


def test_a_column_that_never_varies_counts_in_units_of_the_range():
    still = Group(name="still", columns=(0,), categorical=False, deviation=0.0)
    assert metrics.numeric_rmse(ROW, ROW - 0.25, (still,))[0, 0] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("columns", "share"),
    [
        ((0.9, 0.2, 0.1, 0.2), 1.0),
        ((0.1, 0.2, 0.1, 0.2), 0.5),
        ((0.3, 0.3, 0.3, 0.2), 0.5),  # a tie names nothing, though argmax would say 0
        ((-3, -4, -4, 0.9), 0.5),
        ((-3, -2, -4, 0.9), 0.0),
    ],
)
def test_categorical_groups(columns, share):
    guess = np.array([[[0, 0, *columns]]])
    assert metrics.groups_right(ROW, guess, (AGE, WORK, SEX))[0, 0] == share


def test_categorical_groups_absent_or_not_a_number():
    assert np.isnan(metrics.groups_right(ROW, ROW, (AGE,))[0, 0])
    assert np.isnan(metrics.groups_right(ROW, ROW * np.nan, (WORK,))[0, 0])


def test_lpips_is_absent_with_a_reason_and_no_network(monkeypatch, tmp_path):
    def refuse(*args, **kwargs):
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.delenv("BENCH_LPIPS_TRUNK", raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    metric, reason = lpips_metric.load()
    assert metric is None and lpips_metric.TRUNK in str(reason) and str(tmp_path) not in str(reason)
    assert not any(tmp_path.iterdir())
    monkeypatch.setenv("BENCH_LPIPS_TRUNK", str(tmp_path / "elsewhere.pth"))
    assert lpips_metric.trunk_path() == tmp_path / "elsewhere.pth"
    assert lpips_metric.load()[0] is None


def test_lpips_refuses_weights_of_another_hash_and_damaged_ones(tmp_path):
    file = tmp_path / lpips_metric.TRUNK
    file.write_bytes(b"not weights")
    digest = hashlib.sha256(b"not weights").hexdigest()
    metric, reason = lpips_metric.load(file)
    assert metric is None and f"starts with {digest[:8]}, expected 7be5be79" in str(reason)
    metric, reason = lpips_metric.load(file, prefix=digest[:8])
    assert metric is None and "does not hold this metric's weights" in str(reason)


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """A trunk of AlexNet's shapes with random weights: for the plumbing alone, its figures mean nothing."""
    pytest.importorskip("lpips")
    draw = torch.Generator().manual_seed(0)
    shapes = {0: (64, 3, 11), 3: (192, 64, 5), 6: (384, 192, 3), 8: (256, 384, 3), 10: (256, 256, 3)}
    state = {}
    for layer, (out, into, side) in shapes.items():
        weight = torch.randn(out, into, side, side, generator=draw)
        state[f"features.{layer}.weight"] = weight / (into * side**2) ** 0.5
        state[f"features.{layer}.bias"] = torch.zeros(out)
    file = tmp_path_factory.mktemp("trunk") / "stand-in.pth"
    torch.save(state, file)
    before = torch.random.get_rng_state()
    metric, reason = lpips_metric.load(file, prefix="")
    assert reason is None
    assert torch.equal(before, torch.random.get_rng_state())
    return metric


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_lpips_plumbing_with_a_stand_in_trunk(rng, stand_in, shape):
    truth = rng.random((2, 2, *shape))
    near, far = truth + 0.02 * rng.standard_normal(truth.shape), truth[::-1, ::-1]
    np.testing.assert_array_equal(stand_in(truth, truth), 0)
    assert (stand_in(truth, near) > 0).all()
    assert (stand_in(truth, near) < stand_in(truth, far)).all()
    near[0, 1, 0, 0, 0] = np.nan
    values = stand_in(truth, near)
    assert np.isnan(values[0, 1]) and np.isfinite(values).sum() == 3


def test_lpips_is_the_package_s_own_value(rng, stand_in):
    """Same network called by hand: [0, 1] scaled to [-1, 1], picture by picture."""
    truth, guess = rng.random((2, 1, 1, 3, 32, 32))
    distance = inspect.getclosurevars(stand_in).nonlocals["distance"]
    network = inspect.getclosurevars(distance).nonlocals["network"]
    expected = network(*(torch.tensor(p[0], dtype=torch.float32) for p in (truth, guess)), normalize=True)
    assert stand_in(truth, guess)[0, 0] == pytest.approx(float(expected), rel=1e-5)
