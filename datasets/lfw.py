"""Labeled Faces in the Wild: 62 people with at least 20 pictures, 32×32 colour, from an `.npz` pack or pictures."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bench.datasets.arrays import channels_first, class_labels, required
from bench.datasets.base import Dataset, Raw, held_out
from bench.datasets.files import Layout, Remote, locate
from bench.datasets.pictures import read_picture
from bench.errors import DataError, MissingDataError
from bench.record.npz import read_npz

_PEOPLE, _PICTURES, _LEAST = 62, 3023, 20
# Rows and columns 61..188 of 250×250 pictures, reduced four times: 32×32 (Fed-αCDP's notebooks).
_SOURCE, _BOX, _SIZE = (250, 250), (61, 61, 189, 189), (32, 32)
_LAYOUTS = (
    Layout(place="", names=("lfw.npz",), format="pack"),
    Layout(place="lfw_home", names=("lfw_funneled",), format="pictures"),
    Layout(place="lfw-py", names=("lfw_funneled",), format="pictures"),
)
_Faces = tuple[NDArray[np.uint8], NDArray[np.int64], tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Lfw(Dataset):
    """Labeled Faces in the Wild: 2267 training and 756 test colour images, 3×32×32, of 62 people, divided in a fixed
    random order.

    Images are also searched in scikit-learn's data folder. The images in an `.npz` file are deep-funneled, those of
    scikit-learn funneled (two alignments of faces), so the content hashes differ."""

    reference = "Huang et al. 2007, LFW; Fed-αCDP Table II"
    kind = "image"
    private = False
    remotes = (
        Remote(
            name="lfw-funneled.tgz",
            place="lfw_home",
            unpacks="lfw_funneled",
            hash="sha256:b47c8422c8cded889dc5a13418c4bc2abbda121092b3533a83306f90d900100a",
            urls=("https://ndownloader.figshare.com/files/5976015", "http://vis-www.cs.umass.edu/lfw/lfw-funneled.tgz"),
        ),
    )

    def load(self, folders: tuple[Path, ...]) -> Raw:
        home = Path(os.environ.get("SCIKIT_LEARN_DATA") or "~/scikit_learn_data").expanduser()
        layout, paths = locate((*folders, home), _LAYOUTS)
        pictures, labels, names = _pack(paths[0]) if layout.format == "pack" else _folder(paths[0])
        if len(pictures) != len(labels):
            raise DataError(f"{paths[0]}: altered: {len(pictures)} pictures and {len(labels)} labels")
        subset = f"{len(labels)} of {_PICTURES} pictures, {len(names)} of {_PEOPLE} people"
        whole = (len(labels), len(names)) == (_PICTURES, _PEOPLE)
        return held_out("lfw", pictures, labels, names, subset=None if whole else subset, sources=paths)


def _pack(path: Path) -> _Faces:
    x, y, names = required(read_npz(path, limit=2**30), path, "x", "y", "names")
    if x.shape[1:] != (*_SIZE, 3):
        raise DataError(f"{path}: pictures must be N×32×32×3, got {x.shape}")
    return channels_first(x, path, "x"), class_labels(y, path, "y"), tuple(str(name) for name in names)


def _folder(folder: Path) -> _Faces:
    people = sorted(person for person in folder.iterdir() if person.is_dir())
    files = {person.name: sorted(person.glob("*.jpg")) for person in people}
    enough = {name: paths for name, paths in files.items() if len(paths) >= _LEAST}
    if not enough:
        raise MissingDataError(f"{folder}: no person with {_LEAST} pictures")
    labels = np.repeat(np.arange(len(enough)), [len(paths) for paths in enough.values()]).astype(np.int64)
    pictures = np.stack([_face(path) for paths in enough.values() for path in paths])
    return np.ascontiguousarray(pictures.transpose(0, 3, 1, 2)), labels, tuple(enough)


def _face(path: Path) -> NDArray[np.uint8]:
    picture = read_picture(path, mode="RGB")
    if picture.size != _SOURCE:
        raise DataError(f"{path}: altered: {picture.size} pixels, the funneled pictures have {_SOURCE}")
    return np.asarray(picture.crop(_BOX).resize(_SIZE, Image.Resampling.BICUBIC))
