"""A user's data: an `.npz` file, or a folder of images for each class.  Private by default."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from bench.datasets.arrays import class_labels, required
from bench.datasets.base import Dataset, Group, Raw, held_out, hold_out
from bench.datasets.pictures import FORMATS, read_picture
from bench.datasets.tables import numeric_groups
from bench.errors import DataError, MissingDataError
from bench.parameters import parameter
from bench.record.npz import LIMIT, Arrays, read_npz

_SUFFIXES = {suffix for suffixes in FORMATS.values() for suffix in suffixes}
_UNREAD = (set(Image.registered_extensions()) | {".heic", ".heif", ".svg", ".dcm", ".npy"}) - _SUFFIXES
_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "eval"}


def _locate(path: str, folders: tuple[Path, ...], what: str) -> Path:
    if not path:
        raise MissingDataError(f'no {what} given: name it with path = "…"')
    place = Path(path).expanduser()
    for candidate in (place, *(folder / place for folder in folders)):
        if candidate.exists():
            return candidate
    below = ", ".join(map(str, folders))
    raise MissingDataError(f"{place}: no such {what}, from the current folder or below {below or 'any other'}")


@dataclass(frozen=True, kw_only=True)
class NpzPack(Dataset):
    """Data set from a user's `.npz` file with `x_train`, `y_train` and optionally `x_test`, `y_test`, `class_names`, at
    most 8 GiB, without pickle. `x` are images N×H×W or N×H×W×C (N×C×H×W with layout CHW), uint8 or floats in [0, 1]; or
    rows N×F, floats in [0, 1], for a table with numeric columns. `y` are integers from 0. Without a test part, a
    quarter of the examples becomes the test part, in a fixed random order."""

    reference = "one's own data"
    kind = "image"
    private = True
    path: str = parameter("", "the pack, from the current folder or below a data folder", source="ours")
    layout: Literal["HWC", "CHW"] = parameter("HWC", "order of a picture's axes", source="ours")

    def load(self, folders: tuple[Path, ...]) -> Raw:
        path = _locate(self.path, folders, "pack")
        pack = read_npz(path)
        x, y = required(pack, path, "x_train", "y_train")
        inputs, labels = self._inputs(x, path, "x_train"), class_labels(y, path, "y_train")
        if len(inputs) != len(labels):
            raise DataError(f"{path}: x_train has {len(inputs)} examples, y_train {len(labels)}")
        if "x_test" in pack or "y_test" in pack:
            test_x, test_y = required(pack, path, "x_test", "y_test")
            unseen, unseen_labels = self._inputs(test_x, path, "x_test"), class_labels(test_y, path, "y_test")
            if unseen.shape[1:] != inputs.shape[1:] or unseen.dtype != inputs.dtype:
                raise DataError(f"{path}: x_train and x_test differ in shape or dtype: {x.shape}, {test_x.shape}")
        else:
            train, test = hold_out(len(labels), "npz")
            inputs, unseen, labels, unseen_labels = inputs[train], inputs[test], labels[train], labels[test]
        return Raw(
            train_inputs=inputs,
            train_labels=labels,
            test_inputs=unseen,
            test_labels=unseen_labels,
            class_names=_class_names(pack, labels, unseen_labels, path),
            groups=_columns(inputs),
            kind="image" if inputs.ndim == 4 else "table",
            sources=(path,),
        )

    def _inputs(self, x: NDArray[Any], path: Path, name: str) -> NDArray[np.uint8] | NDArray[np.float32]:
        """Return images `x` as uint8 or float32 (example, channel, height, width), or rows as float32 (example,
        feature). Raises `DataError`, with the array's `name`, for another type or shape."""
        if x.ndim not in (2, 3, 4) or not x.size or not (x.dtype == np.uint8 or x.dtype.kind == "f"):
            raise DataError(
                f"{path}: {name} must be uint8 or floats of shape N×H×W, N×H×W×C or N×F, got {x.dtype} {x.shape}"
            )
        if x.ndim == 2 and x.dtype == np.uint8:
            raise DataError(f"{path}: {name}: rows must be floats in [0, 1], got uint8; scale them first")
        if x.dtype.kind == "f":
            x = x.astype(np.float32)
        if x.ndim == 3:
            x = x[:, None]
        elif x.ndim == 4 and self.layout == "HWC":
            x = x.transpose(0, 3, 1, 2)
        if x.ndim == 4 and x.shape[1] not in (1, 3):
            raise DataError(
                f"{path}: {name}: pictures have 1 or 3 channels, got {x.shape[1]} with layout {self.layout}; "
                "give the other layout, or another pack"
            )
        return np.ascontiguousarray(x)


@dataclass(frozen=True, kw_only=True)
class PictureFolder(Dataset):
    """Data set from a user's image files, in a folder for each class, at any depth. Images are cropped to the middle
    and reduced to the same size. Classes and files are sorted by name; hidden files and folders are left out. A quarter
    of the examples becomes the test part, in a fixed random order."""

    reference = "one's own data"
    kind = "image"
    private = True
    path: str = parameter("", "the folder, from the current one or below a data folder", source="ours")
    size: tuple[int, int] = parameter((32, 32), "height and width", unit="pixels", source="ours")
    colour: bool = parameter(True, "three channels; otherwise one, grey", source="ours")

    def __post_init__(self) -> None:
        if not all(1 <= side <= 1024 for side in self.size):
            raise ValueError(f"size must be 1 to 1024 pixels high and wide, got {self.size}")

    def load(self, folders: tuple[Path, ...]) -> Raw:
        root = _locate(self.path, folders, "folder").resolve()
        if not root.is_dir():
            raise DataError(f"{root}: not a folder; it must hold one folder of pictures a class")
        places = [place for place in sorted(root.iterdir()) if place.is_dir() and not _hidden(place.name)]
        if splits := [place.name for place in places if place.name.lower() in _SPLITS]:
            raise DataError(f"{root}: {', '.join(splits)}: parts of a data set, not classes; name one part as the path")
        files = {place.name: _files(place, root) for place in places}
        if len(files) < 2 or not all(files.values()):
            empty = ", ".join(name for name, paths in files.items() if not paths)
            raise DataError(
                f"{root}: needs two or more folders, each with image files; "
                + (f"none in {empty}" if empty else f"it has {len(files)}")
            )
        count = sum(map(len, files.values()))
        if count * int(np.prod(self.size)) * 3 > LIMIT:
            raise DataError(f"{root}: {count} pictures of {self.size} are more than {LIMIT} bytes; reduce size")
        pictures = np.stack([self._picture(path) for paths in files.values() for path in paths])
        labels = np.repeat(np.arange(len(files)), [len(paths) for paths in files.values()]).astype(np.int64)
        return held_out("folder", pictures, labels, tuple(files), sources=(root,))

    def _picture(self, path: Path) -> NDArray[np.uint8]:
        picture = ImageOps.exif_transpose(read_picture(path, mode="RGB" if self.colour else "L"))
        height, width = self.size
        fitted = np.asarray(ImageOps.fit(picture, (width, height), Image.Resampling.BICUBIC))
        return fitted.transpose(2, 0, 1) if self.colour else fitted[None]


def _files(place: Path, root: Path) -> list[Path]:
    """Return the image files below the class folder `place`, sorted by path. Raises `DataError` for images of another
    format, and for a link that leads out of `root`, the folder of the data set."""
    below = sorted(path for path in place.rglob("*") if not any(map(_hidden, path.relative_to(place).parts)))
    files = [path for path in below if path.is_file() or path.is_symlink()]
    if unread := [path for path in files if path.suffix.lower() in _UNREAD]:
        kinds = ", ".join(sorted({path.suffix.lower() for path in unread})[:5])
        known = ", ".join(sorted(_SUFFIXES))
        raise DataError(f"{place}: {len(unread)} images in a format that is not read ({kinds}); save them as {known}")
    paths = [path for path in files if path.suffix.lower() in _SUFFIXES]
    for path in paths:
        if not path.resolve().is_relative_to(root):
            raise DataError(f"{path}: leads out of {root}; copy the picture there instead")
    return paths


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _class_names(pack: Arrays, labels: NDArray[np.int64], unseen: NDArray[np.int64], path: Path) -> tuple[str, ...]:
    if "class_names" in pack:
        return tuple(str(name) for name in pack["class_names"].ravel().tolist())
    classes = int(max(labels.max(initial=0), unseen.max(initial=0))) + 1
    if classes > 10_000:
        raise DataError(f"{path}: labels up to {classes - 1}; number the classes from 0")
    return tuple(str(number) for number in range(classes))


def _columns(inputs: NDArray[Any]) -> tuple[Group, ...]:
    if inputs.ndim != 2:
        return ()
    return numeric_groups([f"column {i}" for i in range(inputs.shape[1])], range(inputs.shape[1]), inputs)
