"""The path from Python: one's own gradients, checked, attacked and scored without a run folder."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor, nn

from bench import api
from bench.errors import BenchError
from bench.kinds.tables import TABLE

SHAPE = (1, 8, 8)
Pictures = tuple[Tensor, Tensor]  # (example, 1, 8, 8) in [0, 1], (example,)


@pytest.fixture(scope="module")
def pictures() -> Pictures:
    """Digits, the first ten with different labels."""
    digits = load_digits()
    return torch.from_numpy(digits.images[:60, None] / 16).float(), torch.from_numpy(digits.target[:60]).long()


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return api.build("dlg-lenet", shape=SHAPE, classes=10)


def read(model: nn.Module, x: Tensor, y: Tensor, **options: Any) -> Any:
    gradients = api.gradient(model, x, y)
    return api.reading(gradients, model=model, shape=SHAPE, classes=10, batch=len(x), **options)


def psnr(scores: Any) -> list[float]:
    return [picture.psnr_db for row in scores.readings for picture in row.examples]


# --- the five lines ----------------------------------------------------------------------------------


def test_the_five_lines_bring_a_digit_back(model: nn.Module, pictures: Pictures, tmp_path: Path) -> None:
    x, y = pictures
    gradients = api.gradient(model, x[:1], y[:1])
    reading = api.reading(gradients, model=model, weights=model.state_dict(), shape=SHAPE, classes=10, batch=1)
    found = api.attack(reading, "cpl", evaluations=100)
    scores = api.score(found, x[:1], y[:1], public=x[10:])
    path = api.save_pictures(tmp_path / "leak.png", x[:1], found)
    assert reading.point.name == "type-2"
    assert psnr(scores)[0] >= 20
    assert (scores.readings[0].examples[0].ssim or 0) > 0.9
    assert (scores.summary.asr.value, scores.summary.label_accuracy, scores.summary.gallery) == (1, 1, 50)
    assert int(found.evaluations[0]) <= 100
    with Image.open(path) as image:
        assert image.size == (96 + 12, 2 * 96 + 18)


def test_a_wrong_gradient_brings_nothing_back(model: nn.Module, pictures: Pictures) -> None:
    """The scores above can fail: noise of the gradient's size in its place."""
    x, y = pictures
    generator, gradients = torch.Generator().manual_seed(0), api.gradient(model, x[:1], y[:1])
    noise = {n: torch.randn(g.shape, generator=generator) * g.std() for n, g in gradients.items()}
    found = api.attack(api.reading(noise, model=model, shape=SHAPE, classes=10), evaluations=60)
    with pytest.warns(UserWarning, match="the scores say nothing: the truth does not explain what was sent"):
        scores = api.score(found, x[:1], y[:1])
    assert scores.doubt is not None
    assert psnr(scores)[0] < 20 and scores.summary.asr.value == 0


def test_gradients_per_example_are_readings_of_their_own(model: nn.Module, pictures: Pictures) -> None:
    """As Opacus' `grad_sample` has them: (example, *shape); each is attacked as it would be alone."""
    x, y = pictures[0][:2], pictures[1][:2]
    each = [api.gradient(model, x[n : n + 1], y[n : n + 1]) for n in range(2)]
    samples = {name: torch.stack([one[name] for one in each]) for name in each[0]}
    reading = api.reading(samples, model=model, shape=SHAPE, classes=10)
    assert (len(reading), reading.point.name) == (2, "type-2")
    found = api.attack(reading, evaluations=100)
    assert min(psnr(api.score(found, x, y))) >= 20
    alone = api.attack(api.reading(each[0], model=model, shape=SHAPE, classes=10), evaluations=100)
    assert float((alone.inputs[0] - found.inputs[0]).abs().max()) < 0.05


def test_an_update_is_read_in_its_own_unit(model: nn.Module, pictures: Pictures) -> None:
    """Flower's way: lists of arrays in the parameters' order, w_0 - w_1 = η g."""
    x, y = pictures[0][:1], pictures[1][:1]
    rate, gradients = 0.05, api.gradient(model, x, y)
    names = [name for name, _ in model.named_parameters()]
    before = [parameter.detach().double().numpy() for parameter in model.parameters()]
    after = [b - rate * gradients[name].double().numpy() for name, b in zip(names, before, strict=True)]
    update = [b - a for b, a in zip(before, after, strict=True)]
    weights = dict(zip(names, before, strict=True))
    reading = api.reading(update, model=model, weights=weights, shape=SHAPE, classes=10, rate=rate, unit=rate)
    assert psnr(api.score(api.attack(reading, evaluations=100), x, y))[0] >= 20
    several = api.reading(
        update, model=model, weights=weights, shape=SHAPE, classes=10, batch=2, steps=3, rate=rate, unit=rate
    )
    assert (several.point.name, several.examples) == ("type-1", 6)


# --- gradients ---------------------------------------------------------------------------------------


def test_gradient_is_autograds(model: nn.Module, pictures: Pictures) -> None:
    x, y = pictures[0][:5], pictures[1][:5]
    found = api.gradient(model, x, y)
    mine = copy.deepcopy(model).double()
    loss = nn.functional.cross_entropy(mine(x.double()), y)
    expected = torch.autograd.grad(loss, list(mine.parameters()))
    for (name, _), oracle in zip(mine.named_parameters(), expected, strict=True):
        torch.testing.assert_close(found[name].double(), oracle, rtol=1e-4, atol=1e-6)


def test_the_callers_model_is_left_alone(pictures: Pictures) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    other = {name: value + 1 for name, value in before.items()}
    reading = read(model, *(part[:1] for part in pictures), weights=other)
    api.attack(reading, "cpl", evaluations=5)
    assert model.training and not reading.model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(reading.weights["2.bias"][0], other["2.bias"])


def test_a_registered_model_by_name_is_the_same_reading(model: nn.Module, pictures: Pictures) -> None:
    gradients = api.gradient(model, pictures[0][:1], pictures[1][:1])
    named = api.reading(gradients, model="dlg-lenet", weights=model.state_dict(), shape=SHAPE, classes=10)
    own = api.reading(gradients, model=model, shape=SHAPE, classes=10)
    assert all(torch.equal(named.weights[name], own.weights[name]) for name in own.weights)
    with pytest.raises(BenchError, match="'dlg-lenet' is given by name: give the weights"):
        api.reading(gradients, model="dlg-lenet", shape=SHAPE, classes=10)


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))


GOOD = {"1.weight": torch.ones(3, 4), "1.bias": torch.ones(3)}


@pytest.mark.parametrize(
    ("gradients", "options", "message"),
    [
        ({"1.weight": torch.ones(3, 4)}, {}, r"no gradient of '1.bias'; given are 1.weight, the model's"),
        (GOOD | {"x": torch.ones(1)}, {}, r"gradient of 'x', which is no parameter; given are"),
        (GOOD | {"1.bias": torch.ones(4)}, {}, r"'1.bias' has shape \(4,\); expected \(3,\), or \('readings', 3\)"),
        (GOOD | {"1.bias": torch.ones(2, 3)}, {}, r"'1.bias' has an axis of readings, that of '1.weight' has none"),
        (
            {"1.weight": torch.ones(2, 3, 4), "1.bias": torch.ones(5, 3)},
            {},
            r"2 readings in the gradient of '1.weight', 5 in that of '1.bias'",
        ),
        (GOOD | {"1.bias": torch.tensor([1, float("nan"), 0])}, {}, r"'1.bias' is not finite; take it again"),
        (dict.fromkeys(GOOD), {}, r"the gradient of every trained parameter is None; take it after loss.backward"),
        (GOOD | {"1.bias": "abc"}, {}, r"'1.bias' is not an array of numbers"),
        ([torch.ones(3, 4)], {}, r"1 gradients for 2 parameters; give one each in the order"),
        (GOOD, {"batch": 0}, r"reading: batch: .* greater than or equal to 1"),
        (GOOD, {"rate": -1.0}, r"reading: rate: "),
        (GOOD, {"weights": {"1.weight": torch.ones(3, 4)}}, r"weights: no tensor '1.bias'"),
        (GOOD, {"weights": GOOD | {"1.bias": torch.ones(2)}}, r"weights: 1.bias has shape \(2,\), the model needs"),
        (GOOD, {"labels": [3]}, r"labels must lie in 0..2, got 3 to 3"),
        (GOOD, {"labels": [0, 1]}, r"2 labels for 1 examples; give one each"),
        (GOOD, {"public": torch.ones(2, 5)}, r"public: shape \(2, 5\); expected \(example, 4\)"),
        (GOOD, {"public": torch.ones(2, 4), "public_labels": [1]}, r"1 labels for 2 examples"),
    ],
)
def test_a_mistake_is_one_line_with_the_way_out(gradients: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BenchError, match=message) as caught:
        api.reading(gradients, **{"model": linear(), "shape": (4,), "classes": 3, **options})
    assert "\n" not in str(caught.value)


def test_more_mistakes(model: nn.Module, pictures: Pictures) -> None:
    x, y = pictures[0][:1], pictures[1][:1]
    reading = read(model, x, y)
    with pytest.raises(BenchError, match=r"the model takes no inputs of shape \(1, 2, 8, 8\)"):
        api.gradient(model, torch.ones(1, 2, 8, 8), y)
    with pytest.raises(BenchError, match=r"labels must lie in 0..9, got 10 to 10"):
        api.gradient(model, x, torch.tensor([10]))
    with pytest.raises(BenchError, match="unknown attack 'clp'; did you mean 'cpl'"):
        api.attack(reading, "clp")
    with pytest.raises(BenchError, match="unknown parameter 'restart'; did you mean 'restarts'"):
        api.attack(reading, params={"restart": 1})
    with pytest.raises(BenchError, match="evaluations and chunk must be at least 1, got 0"):
        api.attack(reading, evaluations=0)
    with pytest.raises(BenchError, match=r"model 'dlg-lenet' takes no inputs of shape \(4,\)"):
        api.build("dlg-lenet", shape=(4,), classes=3)
    found = api.attack(reading, "prior-mean")
    with pytest.raises(BenchError, match=r"truth has shape \(2, 1, 8, 8\); expected \(1, 1, 1, 8, 8\)"):
        api.score(found, pictures[0][:2], y)
    with pytest.raises(BenchError, match=r"truth must lie in 0..1, got 0 to 239.062; scale it"):
        api.score(found, x * 255, y)


# --- grants and scores -------------------------------------------------------------------------------


def test_labels_are_granted_only_when_given_and_without_their_order(model: nn.Module, pictures: Pictures) -> None:
    x, y = pictures[0][:3], torch.tensor([7, 2, 5])
    assert read(model, x, y).labels is None
    granted = read(model, x, y, labels=y).labels
    assert granted is not None and granted.tolist() == [[2, 5, 7]]


def test_without_public_pictures_the_scores_say_what_the_floor_was(model: nn.Module, pictures: Pictures) -> None:
    x, y = pictures[0][:2], pictures[1][:2]
    found = api.attack(read(model, x, y), "prior-mean")
    assert float(found.inputs.min()) == float(found.inputs.max()) == 0.5
    scores = api.score(found, x, y)
    assert "grey" in scores.priors_from
    assert (scores.summary.identification, scores.summary.identification_chance) == (None, None)
    assert scores.readings[0].examples[0].identified is None
    error = float(((x - 0.5) ** 2).mean((1, 2, 3))[0])
    assert (scores.readings[0].examples[0].priors_db or {})["mean"] == pytest.approx(-10 * np.log10(error))
    given = api.score(found, x, y, public=pictures[0][10:], public_labels=pictures[1][10:])
    assert given.priors_from == "the public examples given"
    assert given.summary.gallery == 50
    assert given.summary.identification_chance == pytest.approx(2 / 51)
    assert isinstance(given.readings[0].examples[0].identified, bool)


def test_another_value_range_has_the_same_scores(model: nn.Module, pictures: Pictures) -> None:
    x, y = pictures[0][:1], pictures[1][:1]
    found = api.attack(read(model, x, y), evaluations=5)
    wide = replace(found, inputs=found.inputs * 2 - 1)
    scores = api.score(wide, 2 * x - 1, y, public=2 * pictures[0][10:] - 1, value_range=(-1, 1))
    narrow = api.score(found, x, y, public=pictures[0][10:])
    assert psnr(scores)[0] == pytest.approx(psnr(narrow)[0], abs=1e-4)
    reading = read(model, 2 * x - 1, y, value_range=(-1.0, 1.0))
    assert float(reading.public_mean.mean()) == 0


def test_tables_are_scored_by_their_columns() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.rand((40, 4), generator=generator)
    model = linear()
    gradients = api.gradient(model, rows[:1], torch.tensor([1]))
    reading = api.reading(gradients, model=model, shape=(4,), classes=3, public=rows[1:])
    assert reading.kind == TABLE
    found = api.attack(reading, "cpl", evaluations=200)
    scores = api.score(found, rows[0], [1], public=rows[1:])
    assert scores.readings[0].examples[0].numeric_rmse is not None
    assert scores.readings[0].examples[0].numeric_rmse < 0.2
    assert scores.summary.asr.value == 1


def test_reconstructions_are_drawn_without_a_truth(model: nn.Module, pictures: Pictures, tmp_path: Path) -> None:
    found = api.attack(read(model, pictures[0][:2], pictures[1][:2]), "prior-mean")
    with Image.open(api.save_pictures(tmp_path / "a.png", None, found)) as image:
        page = np.asarray(image)
    assert page.shape[0] < 96 + 18
    assert (page[page.shape[0] // 2, 20] == 128).all()


# --- files -------------------------------------------------------------------------------------------


def test_a_saved_reading_is_the_same_reading(model: nn.Module, pictures: Pictures, tmp_path: Path) -> None:
    x, y = pictures[0][:2], pictures[1][:2]
    before = read(model, x, y, labels=y)
    api.save_reading(tmp_path / "a.npz", before)
    after = api.open_reading(tmp_path / "a.npz", model="dlg-lenet")
    assert (after.batch, after.examples, after.point, after.shape) == (2, 2, before.point, SHAPE)
    assert after.labels is not None and before.labels is not None
    assert torch.equal(after.labels, before.labels)
    for name in before.values:
        assert torch.equal(after.values[name], before.values[name])
        assert torch.equal(after.weights[name], before.weights[name])
    with pytest.raises(BenchError, match=r"a\.npz: weights: no tensor '.*'"):
        api.open_reading(tmp_path / "a.npz", model="cpl-lenet")


def test_chance_is_within_the_class_where_labels_are_known(model: nn.Module, pictures: Pictures) -> None:
    x, y = pictures[0][:1], pictures[1][:1]
    reading = api.reading(api.gradient(model, x, y), model=model, shape=SHAPE, classes=10)
    found = api.attack(reading, evaluations=5)
    public, labels = pictures[0][10:], pictures[1][10:]
    plain = api.score(found, x, y, public=public, public_labels=labels).summary
    known = api.score(found, x, y, public=public, public_labels=labels, labels_known=True).summary
    alike = int((np.asarray(labels) == int(np.asarray(y)[0])).sum())
    assert plain.identification_chance == pytest.approx(1 / (len(public) + 1))
    assert known.identification_chance == pytest.approx(1 / (alike + 1))
    with pytest.raises(BenchError, match="labels_known: chance is among examples of the true class"):
        api.score(found, x, y, public=public, labels_known=True)
