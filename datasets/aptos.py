"""APTOS 2019 (diabetic retinopathy, five grades): retina pictures, or features from a frozen network."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bench import rng
from bench.datasets.base import Dataset, Group, Raw
from bench.datasets.files import Layout, locate
from bench.datasets.frozen import Images, features
from bench.datasets.pictures import read_picture
from bench.datasets.tables import numeric_groups
from bench.errors import DataError, MissingDataError
from bench.parameters import parameter

_PICTURES, _TEST = 3662, 500
_GRADES = ("no DR", "mild", "moderate", "severe", "proliferative DR")
_LAYOUTS = tuple(
    Layout(place=place, names=("train.csv", "train_images")) for place in ("aptos", "aptos2019-blindness-detection")
)
_CHUNK = 16
Values = NDArray[np.uint8] | NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Aptos(Dataset):
    """Retina images, or their features; the first 500 images are the test part. Each later image gives `copies`
    training examples: the middle square, then random crops, mirrored or not, drawn by the image's name (Triastcyn &
    Faltings 2019, §VI).

    - `features` = "pixels": an example is the image, `side` pixels square.
    - `features` = "resnet50": an example is the 2048 inputs of the last layer of torchvision's ResNet-50, divided by
      their largest training value. This is a table for the model `linear`, the network's last layer. The weights are
      read from `resnet50*.pth` in the folder of `train.csv`."""

    reference = "APTOS 2019 Blindness Detection; Bayesian DP table III"
    kind = "table"  # kind for features; pixels are images
    private = True  # patients' eyes

    features: Literal["resnet50", "pixels"] = parameter(
        "resnet50", "values of an example: the image, or features of a network", source="Bayesian DP §VI"
    )
    side: int = parameter(224, "side of the square cut from an image", unit="pixels", source="ours", low=8)
    copies: int = parameter(
        11, "crops of each training image, for about 350 examples per client at N = 100", source="ours", low=1
    )

    def load(self, folders: tuple[Path, ...]) -> Raw:
        _, (table, pictures) = locate(folders, _LAYOUTS)
        names, grades = _read(table)
        if len(names) <= _TEST:
            raise DataError(f"{table}: {len(names)} pictures; the first {_TEST} are the test, and none is left")
        files = [_file(pictures, name) for name in names]
        inputs: tuple[Values, Values]
        groups: tuple[Group, ...] = ()
        if self.features == "pixels":
            inputs = _cut(files[_TEST:], self.side, self.copies), _cut(files[:_TEST], self.side, 1)
        else:
            chunks = self._chunks(files[_TEST:], self.copies), self._chunks(files[:_TEST], 1)
            rows, unseen = features("resnet50", _weights(table.parent), chunks)
            largest = np.float32(rows.max() or 1)
            rows, unseen = rows / largest, np.clip(unseen / largest, 0, 1)
            columns = range(rows.shape[1])
            groups = numeric_groups([f"feature {column}" for column in columns], columns, rows)
            inputs = rows, unseen
        return Raw(
            train_inputs=inputs[0],
            train_labels=np.repeat(grades[_TEST:], self.copies),
            test_inputs=inputs[1],
            test_labels=grades[:_TEST],
            class_names=_GRADES,
            groups=groups,
            kind="image" if self.features == "pixels" else "table",
            together=self.copies,
            subset=None if len(names) == _PICTURES else f"{len(names)} of {_PICTURES} pictures",
            sources=(table, pictures),
        )

    def _chunks(self, files: list[Path], copies: int) -> Iterator[Images]:
        return (_cut(files[n : n + _CHUNK], self.side, copies) for n in range(0, len(files), _CHUNK))


def _read(table: Path) -> tuple[list[str], NDArray[np.int64]]:
    try:
        with table.open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        names, grades = [line["id_code"] for line in lines], [int(line["diagnosis"]) for line in lines]
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise DataError(f"{table}: must have the columns id_code and diagnosis, a grade 0 to 4 ({error!r})") from None
    if invalid := [name for name in names if not name or Path(name).name != name]:
        raise DataError(f"{table}: {invalid[0]!r} is no picture's name")
    return names, np.array(grades, np.int64)


def _file(folder: Path, name: str) -> Path:
    path = folder / f"{name}.png"
    if not path.exists():
        raise MissingDataError(f"{folder} lacks {path.name}, which train.csv names")
    return path


def _cut(files: list[Path], side: int, copies: int) -> Images:
    """Cut `copies` squares from each image file: (file · copy, 3, side, side). The first is the middle square; the
    others are random squares of 80 % of its side, mirrored or not."""
    images = np.empty((len(files) * copies, 3, side, side), np.uint8)
    for number, path in enumerate(files):
        picture = read_picture(path, mode="RGB")
        random = rng.generator(0, "aptos", path.stem)
        for copy in range(copies):
            cut = _square(picture, random if copy else None).resize((side, side), Image.Resampling.BILINEAR)
            images[number * copies + copy] = np.asarray(cut).transpose(2, 0, 1)
    return images


def _square(picture: Image.Image, random: np.random.Generator | None) -> Image.Image:
    whole = min(picture.size)
    left, top = ((length - whole) / 2 for length in picture.size)
    if random is None:
        return picture.crop((round(left), round(top), round(left) + whole, round(top) + whole))
    size = max(1, round(0.8 * whole))
    x, y = (round(start + place * (whole - size)) for start, place in zip((left, top), random.random(2), strict=True))
    cut = picture.crop((x, y, x + size, y + size))
    return cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else cut


def _weights(folder: Path) -> Path:
    paths = sorted(folder.glob("resnet50*.pth"))
    if not paths:
        raise MissingDataError(
            f"{folder} lacks resnet50*.pth: put torchvision's ImageNet weights of ResNet-50 there, or ask for "
            'features = "pixels"'
        )
    return paths[0]
