"""Promise: a cell's figures follow the rules of evaluation, and the field's mistakes are not made."""

import json
import math
from dataclasses import asdict, replace
from itertools import permutations

import numpy as np
import pytest
import torch

from bench.datasets.base import Group
from bench.kinds.images import IMAGE
from bench.kinds.tables import TABLE
from bench.kinds.unit import UNIT, mse
from bench.scoring.intervals import wilson
from bench.scoring.metrics import psnr_db, ssim
from bench.scoring.prior_only import prior_only_baselines
from bench.scoring.reading import reading_cosine, reading_snr
from bench.scoring.score import score
from bench.trip import Reconstruction


def claim(inputs, labels=None, status=None, **changed):
    inputs = torch.from_numpy(np.ascontiguousarray(inputs))
    readings = len(inputs)
    labels = np.full(inputs.shape[:2], -1) if labels is None else labels
    numbers = {"loss": torch.full((readings,), 0.5)} | {
        name: torch.arange(readings) + 1 for name in ("evaluations", "outer", "restarts")
    }
    return Reconstruction(
        inputs=inputs, labels=torch.as_tensor(labels), status=tuple(status or ["ok"] * readings), **(numbers | changed)
    )


def scored(truth, reconstruction, *, prior=None, labels=None, **more):
    """Pictures with one prior: the mid-grey example unless another is given."""
    truth = np.asarray(truth)
    prior = np.full_like(truth, 0.5) if prior is None else prior
    labels = np.zeros(truth.shape[:2], int) if labels is None else labels
    more.setdefault("gallery", np.random.default_rng(9).random((30, *truth.shape[2:])))
    kind = more.pop("kind", IMAGE)
    return score(truth, labels, reconstruction, kind=kind, priors={"mean": prior}, **more)


def at_psnr(truth, decibel):
    """A guess at just that PSNR, by the same step at each pixel, away from the nearer end."""
    return truth + np.where(truth > 0.5, -1, 1) * 10 ** (-np.asarray(decibel, float) / 20)


def test_success_needs_twenty_decibels_and_strict_thirty(rng):
    truth = rng.random((1, 4, 1, 8, 8)).round()
    wanted = np.array([19.9, 20.1, 29.9, 30.1]).reshape(1, 4, 1, 1, 1)
    found = scored(truth, claim(at_psnr(truth, wanted)))
    examples = found.readings[0].examples
    assert [p.psnr_db for p in examples] == pytest.approx([19.9, 20.1, 29.9, 30.1])
    assert [p.success for p in examples] == [False, True, True, True]
    assert [p.strict for p in examples] == [False, False, False, True]
    assert (found.summary.asr.value, found.summary.asr_strict.value) == (0.75, 0.25)
    # one reading says nothing of how readings vary: four examples of it are worth one
    assert (found.summary.asr.low, found.summary.asr.high) == wilson(0.75, 1)
    assert found.summary.lower_bound is False


@pytest.mark.parametrize(("prior_db", "success"), [(21.9, True), (22.1, False)])
def test_success_needs_three_decibels_over_the_best_prior_on_that_example(rng, prior_db, success):
    truth = rng.random((2, 1, 1, 8, 8)).round()
    best = np.stack([at_psnr(truth[0], prior_db), np.full_like(truth[1], 0.5)])
    found = score(
        truth,
        np.zeros((2, 1), int),
        claim(at_psnr(truth, 25)),
        kind=IMAGE,
        gallery=rng.random((9, 1, 8, 8)),
        priors={"mean": np.full_like(truth, 0.5), "nearest": best},
    )
    first, second = (reading.examples[0] for reading in found.readings)
    assert (first.success, second.success) == (success, True)
    assert (first.prior_db, first.over_prior_db) == pytest.approx((prior_db, 25 - prior_db))
    assert (second.priors_db or {})["nearest"] == pytest.approx(20 * math.log10(2))


def test_each_metric_is_taken_on_the_one_pairing(rng):
    """Guesses that SSIM would rather pair otherwise: every metric keeps the partner of the MSE."""
    truth, guess = rng.random((2, 1, 5, 1, 8, 8))
    found = scored(truth, claim(guess)).readings[0].examples
    chosen = [example.matched for example in found]
    assert sorted(chosen) == [0, 1, 2, 3, 4]
    each = {(i, j): (truth[:, [i]], guess[:, [j]]) for i in range(5) for j in range(5)}
    for i, example in enumerate(found):
        partner = each[i, chosen[i]]
        assert example.rmse == pytest.approx(math.sqrt(mse(*partner).item()))
        assert example.psnr_db == pytest.approx(psnr_db(*partner).item())
        assert example.ssim == pytest.approx(ssim(*partner).item())
    own_best = max(sum(ssim(*each[i, j]).item() for i, j in enumerate(order)) for order in permutations(range(5)))
    assert sum(example.ssim for example in found) < own_best - 0.01


def test_copies_of_one_example_leak_one_example(rng):
    """Many-to-one pairing would find all three: the true examples are within 25 dB of one another."""
    first = 0.4 + 0.2 * rng.random((1, 1, 1, 8, 8))
    truth = np.concatenate([first, first + 0.05, first - 0.05], axis=1)
    far = rng.random((1, 2, 1, 8, 8)).round()
    found = scored(truth, claim(np.concatenate([far, first], axis=1)), prior=np.zeros_like(truth))
    assert (psnr_db(truth, np.repeat(first, 3, axis=1)) > 20).all()
    assert found.summary.asr.value == pytest.approx(1 / 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_failed_examples_stay_in_every_denominator(rng, bad):
    truth = rng.random((4, 1, 1, 8, 8)).round()
    guess = at_psnr(truth, 40)
    guess[1:, 0, 0, 0, 0] = bad
    found = scored(truth, claim(guess, status=["ok", "nan", "nan", "nan"]))
    summary = found.summary
    assert summary.asr.value == summary.identification.value == summary.readings_leaked.value == 0.25
    assert (summary.lower_bound, summary.nan_share) == (True, 0.75)
    # A median over the survivors would say 40 dB; more than half failed, so there is none.
    assert all(summary.medians[name] is None for name in ("psnr_db", "rmse", "rmse_unclipped", "ssim"))
    first, second = (reading.examples[0] for reading in found.readings[:2])
    assert (second.psnr_db, second.status) == (None, "nan") and first.psnr_db == pytest.approx(40)
    json.dumps([asdict(found.readings[1]), asdict(summary)], allow_nan=False)


def test_a_failed_minority_moves_the_median_to_the_worse(rng):
    truth = rng.random((5, 1, 1, 8, 8)).round()
    guess = at_psnr(truth, np.array([20, 25, 30, 35, 40]).reshape(5, 1, 1, 1, 1))
    assert scored(truth, claim(guess)).summary.medians["psnr_db"] == pytest.approx(30)
    guess[2:4] = np.nan
    summary = scored(truth, claim(guess)).summary
    assert summary.medians["psnr_db"] == pytest.approx(20)
    assert summary.medians["rmse"] == pytest.approx(0.1)
    assert summary.lower_bound is True


def test_a_diverged_example_is_scored_by_its_pixels_and_marks_the_figure(rng):
    truth = rng.random((2, 1, 1, 8, 8)).round()
    guess = at_psnr(truth, 40)
    guess[1] = 1e30
    summary = scored(truth, claim(guess, status=["ok", "diverged"])).summary
    assert (summary.asr.value, summary.lower_bound, summary.diverged_share) == (0.5, True, 0.5)
    assert summary.medians["rmse_unclipped"] > 1


def test_one_dummy_for_a_batch_misses_the_rest(rng):
    truth = rng.random((2, 3, 1, 8, 8)).round()
    found = scored(truth, claim(truth[:, 1:2]))
    summary = found.summary
    assert (summary.asr.value, summary.missing_share) == pytest.approx((1 / 3, 2 / 3))
    assert (summary.readings_leaked.value, summary.lower_bound) == (1, False)
    missing = found.readings[0].examples[0]
    assert (missing.status, missing.matched, missing.psnr_db) == ("missing", None, None)


def test_no_readings_are_refused():
    with pytest.raises(ValueError, match="expected readings"):
        scored(np.zeros((0, 1, 1, 8, 8)), claim(np.zeros((0, 1, 1, 8, 8))))


@pytest.mark.parametrize(
    ("named", "accuracy"),
    [([1, 1, 2], 1.0), ([2, 1, 1], 1.0), ([1, 2, 2], 2 / 3), ([1, 1, 1], 2 / 3), ([0, 0, -1], 0.0)],
)
def test_labels_count_as_a_multiset(rng, named, accuracy):
    truth = rng.random((1, 3, 1, 8, 8))
    found = scored(truth, claim(truth, labels=[named]), labels=[[1, 1, 2]])
    assert found.readings[0].label_accuracy == pytest.approx(accuracy)
    assert found.summary.label_accuracy == pytest.approx(accuracy)


def test_an_attack_that_names_no_label_has_no_accuracy_and_a_silent_reading_has_none_right(rng):
    truth = rng.random((2, 1, 1, 8, 8))
    assert scored(truth, claim(truth)).summary.label_accuracy is None
    half = scored(truth, claim(truth, labels=[[0], [-1]]))
    assert half.summary.label_accuracy == 0.5
    assert half.readings[1].label_accuracy is None


def test_the_prior_is_scored_beside_the_attack(rng):
    truth = rng.random((4, 1, 1, 8, 8)).round()
    prior = at_psnr(truth, np.array([21, 10, 10, 10]).reshape(4, 1, 1, 1, 1))
    guess = at_psnr(truth, np.array([19, 30, 30, 9]).reshape(4, 1, 1, 1, 1))
    summary = scored(truth, claim(guess), prior=prior).summary
    mean = summary.priors["mean"]
    assert (mean.asr, mean.beaten, mean.psnr_db_median) == (0.25, 0.5, pytest.approx(10))
    assert (summary.prior_beaten, summary.beats_prior) == (0.5, False)
    assert summary.medians["over_prior_db"] == pytest.approx((-1 + 20) / 2)


def test_counts_of_the_search_are_reported(rng):
    truth = rng.random((3, 1, 1, 8, 8))
    found = scored(truth, claim(truth, loss=torch.tensor([0.1, float("nan"), 2.0])))
    summary = found.summary
    assert summary.evaluations_median == summary.outer_median == 2
    assert [reading.loss for reading in found.readings] == [pytest.approx(0.1), None, 2.0]
    assert (summary.readings, summary.examples, summary.gallery) == (3, 3, 30)
    assert summary.identification_chance == pytest.approx(1 / 31)


def test_lpips_is_none_where_absent_and_on_the_pairing_where_it_is_there(rng):
    truth = rng.random((1, 2, 1, 8, 8))
    assert scored(truth, claim(truth)).summary.medians["lpips"] is None
    found = scored(
        truth, claim(truth[:, ::-1] + 0.1), learned={"lpips": lambda a, b: np.abs(a - b).mean(axis=(2, 3, 4))}
    )
    assert found.summary.medians["lpips"] == pytest.approx(0.1)


def test_nothing_depends_on_the_order_of_readings_or_guesses(rng):
    truth = rng.random((6, 3, 1, 8, 8))
    guess = truth + 0.1 * rng.standard_normal(truth.shape)
    one, other = scored(truth, claim(guess)).summary, scored(truth[::-1], claim(guess[::-1, ::-1])).summary
    assert asdict(one.priors["mean"]) == pytest.approx(asdict(other.priors["mean"]))
    assert one.medians == pytest.approx(other.medians)
    assert replace(one, priors={}, medians={}) == replace(other, priors={}, medians={})


GROUPS = (
    Group(name="age", columns=(0,), categorical=False, deviation=0.1),
    Group(name="work", columns=(1, 2), categorical=True),
)
ROWS = np.array([[0.5, 1, 0], [0.5, 1, 0], [0.5, 1, 0]])[:, None]


def test_tables_succeed_by_numeric_error_and_groups():
    guess = ROWS + np.array([[0.019, 0, 0], [0.021, 0, 0], [0.019, -0.9, 0.9]])[:, None]
    found = scored(ROWS, claim(guess), kind=TABLE, groups=GROUPS, prior=np.full_like(ROWS, 0.4))
    assert [reading.leaked for reading in found.readings] == [True, False, False]
    example, summary = found.readings[1].examples[0], found.summary
    assert (example.numeric_rmse, example.groups_right, example.ssim) == (pytest.approx(0.21), 1, None)
    assert (summary.asr.value, summary.asr_strict) == (pytest.approx(1 / 3), None)
    assert (summary.medians["ssim"], summary.priors["mean"].asr) == (None, 0)
    json.dumps([asdict(found.readings[1]), asdict(found.summary)], allow_nan=False)


def test_a_row_that_is_not_finite_fails():
    guess = ROWS.copy()
    guess[0, 0, 0] = np.nan
    assert scored(ROWS, claim(guess), kind=TABLE, groups=GROUPS).summary.asr.value == pytest.approx(2 / 3)


def test_a_table_without_groups_is_refused():
    with pytest.raises(ValueError, match="groups of columns"):
        scored(ROWS, claim(ROWS), kind=TABLE)


def test_priors_are_the_mean_the_nearest_to_it_and_the_class_mean():
    public = np.array([0.0, 0.2, 0.4, 1.0]).reshape(4, 1, 1, 1) * np.ones((4, 1, 2, 2))
    found = prior_only_baselines(public, [0, 0, 1, 1], [[0, 1], [-1, 7]], UNIT)
    assert {name: array.shape for name, array in found.items()} == dict.fromkeys(
        ("mean", "nearest", "class-mean"), (2, 2, 1, 2, 2)
    )
    np.testing.assert_allclose([found["mean"], found["nearest"]], 0.4)
    np.testing.assert_allclose(found["class-mean"][..., 0, 0, 0], [[0.1, 0.7], [0.4, 0.4]])


def test_the_nearest_prior_is_a_real_public_example(rng):
    public = rng.random((20, 1, 4, 4))
    nearest = prior_only_baselines(public, np.zeros(20, int), [[0]], UNIT)["nearest"][0, 0]
    distances = ((public - public.mean(axis=0)) ** 2).sum(axis=(1, 2, 3))
    np.testing.assert_array_equal(nearest, public[distances.argmin()])


def test_priors_refuse_bytes_and_nothing():
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        prior_only_baselines(np.full((2, 1, 2, 2), 255, np.uint8), [0, 0], [[0]], UNIT)
    with pytest.raises(ValueError, match="need public examples"):
        prior_only_baselines(np.zeros((0, 1, 2, 2)), [], [[0]], UNIT)


def test_reading_snr_and_cosine_by_hand():
    clean = {
        "weight": np.array([[[3.0, 0.0]], [[3.0, 0.0]], [[0.0, 0.0]]]),
        "bias": np.array([[[4.0]], [[4.0]], [[0.0]]]),
    }
    scaled = {name: values * np.array([1.1, -1.0, 1.0])[:, None, None] for name, values in clean.items()}
    np.testing.assert_allclose(reading_snr(scaled, clean), [20, -20 * np.log10(2), np.nan])
    np.testing.assert_allclose(reading_cosine(scaled, clean), [1, -1, np.nan])
    assert reading_snr(clean, clean)[0] == 120
    turned = {"weight": clean["weight"][..., ::-1], "bias": clean["bias"] * 0}
    np.testing.assert_allclose(reading_cosine(turned, clean)[:2], 0)


def test_noise_of_the_signal_s_size_has_an_snr_of_zero(rng):
    clean = {"w": rng.standard_normal((5, 2, 4000))}
    noisy = {"w": clean["w"] + rng.standard_normal((5, 2, 4000))}
    np.testing.assert_allclose(reading_snr(noisy, clean), 0, atol=0.3)  # standard error .1 dB
    np.testing.assert_allclose(reading_cosine(noisy, clean), 0.5**0.5, atol=0.03)
    noisy["w"][0, 0, 0] = np.nan
    assert np.isnan([reading_snr(noisy, clean)[0], reading_cosine(noisy, clean)[0]]).all()


def test_readings_of_other_variables_are_refused():
    with pytest.raises(ValueError, match="same variables"):
        reading_snr({"a": np.zeros((1, 1, 2))}, {"b": np.zeros((1, 1, 2))})
