"""APTOS's loader, on a folder in its layout whose pictures are made here."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bench.datasets.aptos import Aptos
from bench.datasets.loading import load
from bench.errors import DataError, MissingDataError
from bench.kinds.images import IMAGE
from bench.kinds.tables import TABLE

COUNT = 506


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """506 pictures, 40 × 30; the grade of each is in its shade of red."""
    place = tmp_path_factory.mktemp("data")
    pictures = place / "aptos" / "train_images"
    pictures.mkdir(parents=True)
    draw = np.random.default_rng(0)
    with (place / "aptos" / "train.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id_code", "diagnosis"])
        for number in range(COUNT):
            writer.writerow([f"eye{number:03}", number % 5])
            pixels = draw.integers(0, 256, (30, 40, 3), np.uint8)
            pixels[..., 0] = 50 * (number % 5)
            Image.fromarray(pixels).save(pictures / f"eye{number:03}.png")
    return place


def test_the_first_500_are_the_test_and_the_others_come_in_copies(folder: Path) -> None:
    raw = Aptos(features="pixels", side=16, copies=3).load((folder,))
    assert raw.test_inputs.shape == (500, 3, 16, 16)
    assert raw.train_inputs.shape == (18, 3, 16, 16)
    assert raw.train_labels.tolist() == [n % 5 for n in range(500, 506) for _ in range(3)]
    assert (raw.train_inputs[:, 0] == 50 * raw.train_labels[:, None, None]).all(), "red is the grade"
    assert raw.subset == "506 of 3662 pictures"
    again = Aptos(features="pixels", side=16, copies=3).load((folder,))
    assert (again.train_inputs == raw.train_inputs).all()
    first = raw.train_inputs.reshape(6, 3, 3, 16, 16)
    assert (first[:, 0] != first[:, 1]).any() and (first[:, 1] != first[:, 2]).any()
    once = Aptos(features="pixels", side=16, copies=1).load((folder,))
    assert (once.train_inputs == first[:, 0]).all(), "the first copy is the picture's own middle"


@pytest.mark.slow
def test_features_of_a_frozen_network_are_a_table(folder: Path) -> None:
    from torchvision.models import resnet50

    torch.manual_seed(0)
    torch.save(resnet50().state_dict(), folder / "aptos" / "resnet50-test.pth")
    entry = Aptos(side=32, copies=8)
    raw = entry.load((folder,))
    assert raw.train_inputs.shape == (48, 2048)
    assert raw.train_inputs.min() >= 0 and raw.train_inputs.max() == 1
    found = load(entry, "aptos", folder)
    assert (found.kind, found.classes, found.private) == (TABLE, 5, True)
    assert len(found.groups) == 2048
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3 - min(before, 2))
        assert load(entry, "aptos", folder).sha256 == found.sha256, "threads change no bit"
    finally:
        torch.set_num_threads(before)


def test_copies_of_one_picture_stay_in_one_split(folder: Path) -> None:
    entry = Aptos(features="pixels", side=8, copies=30)
    found, raw = load(entry, "aptos", folder), entry.load((folder,))
    assert found.kind == IMAGE
    source = {row.tobytes(): number // 30 for number, row in enumerate(raw.train_inputs)}
    parts = (found.training, found.public, found.tuning, found.gallery)
    owners = [{source[row.tobytes()] for row in part.inputs} for part in parts]
    assert sum(map(len, owners)) == len(set.union(*owners)) == 6


def test_what_is_missing_or_damaged_is_one_line(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="looked for aptos/train.csv or aptos2019"):
        Aptos().load((tmp_path,))
    place = tmp_path / "aptos"
    (place / "train_images").mkdir(parents=True)
    table = place / "train.csv"
    table.write_text("id_code,grade\na,1\n")
    with pytest.raises(DataError, match=r"train\.csv: must have the columns id_code and diagnosis"):
        Aptos().load((tmp_path,))
    table.write_text("id_code,diagnosis\n../../secret,1\n")
    with pytest.raises(DataError, match="is no picture's name"):
        Aptos().load((tmp_path,))
    table.write_text("id_code,diagnosis\na,1\n")
    with pytest.raises(DataError, match="1 pictures; the first 500 are the test"):
        Aptos().load((tmp_path,))
    table.write_text("id_code,diagnosis\n" + "".join(f"eye{n},1\n" for n in range(501)))
    with pytest.raises(MissingDataError, match=r"lacks eye0\.png, which train\.csv names"):
        Aptos().load((tmp_path,))


def test_without_the_networks_weights_the_remedy_is_said(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "aptos").symlink_to(folder / "aptos")
    for kept in (folder / "aptos").glob("resnet50*.pth"):
        kept.unlink()
    with pytest.raises(MissingDataError, match=r"lacks resnet50\*\.pth: put torchvision's ImageNet weights"):
        Aptos(side=8, copies=1).load((tmp_path,))
    (tmp_path / "aptos" / "resnet50-broken.pth").write_bytes(b"no weights")
    with pytest.raises(DataError, match="no weights of torchvision's resnet50"):
        Aptos(side=8, copies=1).load((tmp_path,))
