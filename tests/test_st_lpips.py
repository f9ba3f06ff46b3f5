"""Promise: ST-LPIPS is the published metric where its package is installed, and absent with a reason elsewhere."""

import hashlib
import json
import sys
import types
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from sklearn.datasets import load_sample_image
from tests.boards import attacked
from tests.records import attack_record, readings_of

from bench.cli.cell_text import lines
from bench.health import versions
from bench.leaderboard.board import board
from bench.leaderboard.forms import csv, markdown
from bench.record import schema
from bench.record.equality import differences
from bench.scoring import st_lpips_metric
from bench.scoring.weights import Learned

Images = NDArray[np.float64]


@pytest.fixture(scope="module")
def published() -> Learned:
    metric, reason = st_lpips_metric.load()
    if metric is None:
        pytest.skip(str(reason))
    return metric


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of the published shapes: for the plumbing; their distances mean nothing."""
    draw = torch.Generator().manual_seed(0)
    shapes = {
        "1.0": (64, 3, 11),
        "2.5": (192, 64, 5),
        "3.9": (384, 192, 3),
        "4.11": (256, 384, 3),
        "5.13": (256, 256, 3),
    }
    state = {"scaling_layer.shift": torch.zeros(1, 3, 1, 1), "scaling_layer.scale": torch.ones(1, 3, 1, 1)}
    for layer, (name, (out, into, side)) in enumerate(shapes.items()):
        weight = torch.randn(out, into, side, side, generator=draw)
        state[f"net.slice{name}.weight"] = weight / (into * side**2) ** 0.5
        state[f"net.slice{name}.bias"] = torch.zeros(out)
        state[f"lin{layer}.model.1.weight"] = torch.rand(1, out, 1, 1, generator=draw)
    for name, channels in {"1.1": 64, "2.4": 64, "3.8": 192}.items():
        state[f"net.slice{name}.filt"] = torch.full((channels, 1, 3, 3), 1 / 9)
    path = tmp_path_factory.mktemp("weights") / "random.pth"
    torch.save(state, path)
    return path


@pytest.fixture(scope="module")
def random(weights: Path) -> Learned:
    metric, reason = st_lpips_metric.load(weights, sha256="")
    assert metric is not None and reason is None
    return metric


def crops(count: int = 3, side: int = 32) -> Images:
    """(reading 1, example, 3, side + 1, side + 1): parts of a photograph."""
    photograph = load_sample_image("china.jpg") / 255
    places = [photograph[40 * n : 40 * n + side + 1, 90 * n : 90 * n + side + 1] for n in range(count)]
    return np.moveaxis(np.stack(places), -1, 1)[None]


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 20, 33)])
def test_equal_images_have_no_distance_and_batches_change_no_value(
    rng: np.random.Generator, random: Learned, shape: tuple[int, ...]
) -> None:
    truth = rng.random((2, 1, *shape))
    near, far = truth + 0.02 * rng.standard_normal(truth.shape), truth[::-1]
    np.testing.assert_array_equal(random(truth, truth), 0)
    values = random(truth, near)
    assert (values > 0).all() and (values < random(truth, far)).all()
    single = [random(truth[n : n + 1], near[n : n + 1])[0, 0] for n in (0, 1)]
    np.testing.assert_allclose(values[:, 0], single, rtol=1e-6)
    near[0, 0, 0, 0, 0] = np.nan
    values = random(truth, near)
    assert np.isnan(values[0, 0]) and values[1, 0] > 0


def test_grey_images_count_as_colours_and_other_channels_have_no_distance(
    rng: np.random.Generator, random: Learned
) -> None:
    truth, guess = rng.random((2, 1, 1, 1, 64, 64))
    colours = [image.repeat(3, axis=2) for image in (truth, guess)]
    assert random(truth, guess)[0, 0] == random(*colours)[0, 0]
    assert np.isnan(random(*(image.repeat(4, axis=2) for image in (truth, guess)))).all()


def test_small_images_are_enlarged_bilinearly(rng: np.random.Generator, random: Learned) -> None:
    truth, guess = rng.random((2, 1, 3, 16, 17))

    def large(image: Images) -> Images:
        enlarged = torch.nn.functional.interpolate(torch.from_numpy(image), (64, 68), mode="bilinear")
        return enlarged.numpy()[None]

    assert random(truth[None], guess[None])[0, 0] == pytest.approx(random(large(truth), large(guess))[0, 0], rel=1e-4)


def test_a_missing_package_and_other_weights_are_a_line(monkeypatch: pytest.MonkeyPatch, weights: Path) -> None:
    metric, reason = st_lpips_metric.load(weights)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert metric is None
    assert reason == (
        f"random.pth: its sha256 starts with {digest[:8]}, expected b356b382; pip install 'stlpips_pytorch==0.0.2'"
    )
    monkeypatch.setattr(st_lpips_metric, "find_spec", lambda name: None)
    missing = "no package stlpips_pytorch; pip install 'stlpips_pytorch==0.0.2'"
    assert st_lpips_metric.load() == (None, missing)


@pytest.mark.slow
def test_the_package_gives_the_same_values(
    monkeypatch: pytest.MonkeyPatch, published: Learned, rng: np.random.Generator
) -> None:
    for name, unused in (("IPython", "embed"), ("torchsummary", "summary")):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        setattr(sys.modules[name], unused, None)
    stlpips = pytest.importorskip("stlpips_pytorch.stlpips")
    network = stlpips.LPIPS(net="alex", variant="shift_tolerant", verbose=False)
    truth, guess = crops(2, 71)[0], rng.random((2, 3, 72, 72))
    with torch.no_grad():
        expected = network(*(torch.tensor(each, dtype=torch.float32) for each in (truth, guess)), normalize=True)
    np.testing.assert_allclose(published(truth[None], guess[None])[0], expected.flatten(), atol=1e-5)
    assert expected.min() > 0.1


def test_a_shift_is_nearer_than_noise_and_a_blur_is_the_farther_the_stronger(
    published: Learned, rng: np.random.Generator
) -> None:
    images = crops()
    truth, shifted = images[..., :-1, :-1], images[..., 1:, 1:]
    noise = rng.standard_normal(truth.shape)
    axes = (2, 3, 4)
    scale = np.sqrt(((truth - shifted) ** 2).mean(axes) / (noise**2).mean(axes))[..., None, None, None]
    assert (published(truth, shifted) < 0.3 * published(truth, truth + scale * noise)).all()
    blurs = [published(truth, gaussian_filter(truth, (0, 0, 0, width, width))) for width in (0, 0.5, 1, 2)]
    assert (blurs[0] == 0).all() and (np.diff(blurs, axis=0) > 0).all()


def with_st_lpips(record: schema.Record, value: float | None) -> schema.Record:
    assert record.attack is not None
    readings = tuple(
        replace(reading, examples=tuple(replace(each, st_lpips=value) for each in reading.examples))
        for reading in record.attack.readings
    )
    return replace(record, result=replace(record.attack, readings=readings))


def test_a_board_has_the_column_where_a_value_is_known() -> None:
    without, known = attacked(32), with_st_lpips(attacked(4, defense="prune"), 0.25)
    assert "ST-LPIPS" not in markdown.board(board([without])) and "st_lpips" not in csv.board(board([without]))
    shown = markdown.board(board([without, known]))
    assert "| LPIPS | ST-LPIPS |" in shown and "| 0.250 |" in shown
    assert "type-2 st_lpips" in csv.board(board([without, known]))


def test_no_median_where_one_machine_lacked_the_metric() -> None:
    """Else its examples would count as failed."""
    here, elsewhere = with_st_lpips(attacked(32, seed=0), 0.25), attacked(32, seed=1)
    (row,) = board([here, elsewhere])
    best = row.points["type-2"].best
    assert best is not None and best.medians["st_lpips"] is None and best.medians["ssim"] == 0.9


def test_a_cell_says_why_its_metric_is_absent() -> None:
    def medians(**result: Any) -> str:
        return dict(lines(attack_record(result=result)))["medians"]

    assert "ST-LPIPS" not in medians()
    assert medians(st_lpips_absent="no package").endswith(" ST-LPIPS – (no package)")
    readings = readings_of([[True], [True]], st_lpips=0.25)
    assert dict(lines(attack_record(readings=readings)))["medians"].endswith("LPIPS –, ST-LPIPS 0.250")


def test_records_of_machines_with_and_without_the_package_agree() -> None:
    plain = attack_record(result={"st_lpips_absent": "no package"})
    known = attack_record(readings=readings_of([[True], [False]], st_lpips=0.25))
    assert differences(plain, known) == []
    other = attack_record(readings=readings_of([[True], [False]], st_lpips=0.5))
    assert len(differences(known, other)) == 3  # two examples and their median


def test_a_record_without_values_has_no_new_fields() -> None:
    content = json.loads(schema.adapter().dump_json(attack_record()))["result"]
    assert "st_lpips_absent" not in content and content["summary"]["medians"]["st_lpips"] is None
    assert all("st_lpips" not in example for reading in content["readings"] for example in reading["examples"])


@pytest.mark.parametrize(("version", "state", "detail"), [("0.0.2", "ok", "0.0.2"), ("0.1", "warn", "wanted ==0.0.2")])
def test_the_doctor_names_the_package(monkeypatch: pytest.MonkeyPatch, version: str, state: str, detail: str) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    finding = versions.st_lpips()
    assert finding.name == "stlpips-pytorch" and finding.state == state and detail in finding.detail


def test_the_doctor_finds_no_fault_in_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    finding = versions.st_lpips()
    assert finding.state == "ok" and finding.detail.endswith("pip install 'stlpips_pytorch==0.0.2'")
