"""MNIST and Fashion-MNIST: four IDX files, 28×28 grey pictures, in torchvision's folders or ours."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from bench.datasets.base import Dataset, Raw
from bench.datasets.files import Layout, Remote, check_balance, locate, subset
from bench.datasets.idx import read_idx

_WHOLE = (60000, 10000)
_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _layouts(*places: str) -> tuple[Layout, ...]:
    return tuple(Layout(place=place, names=_FILES) for place in places)


def _remotes(place: str, mirrors: tuple[str, ...], hashes: tuple[str, ...]) -> tuple[Remote, ...]:
    return tuple(
        Remote(name=f"{n}.gz", hash=f"md5:{md5}", place=place, urls=tuple(f"{m}/{n}.gz" for m in mirrors))
        for n, md5 in zip(_FILES, hashes, strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class _IdxPictures(Dataset):
    layouts: ClassVar[tuple[Layout, ...]]
    contents: ClassVar[tuple[str | None, ...]]  # md5 of the four uncompressed files, where published
    class_names: ClassVar[tuple[str, ...]]
    balanced: ClassVar[bool]

    def load(self, folders: tuple[Path, ...]) -> Raw:
        _, paths = locate(folders, self.layouts)
        wholes, items = np.repeat(_WHOLE, 2).tolist(), ((28, 28), ()) * 2
        arrays = [
            read_idx(path, item=item, whole=whole, known_md5=known)
            for path, item, whole, known in zip(paths, items, wholes, self.contents, strict=True)
        ]
        labels = [arrays[1].astype(np.int64), arrays[3].astype(np.int64)]
        if self.balanced:
            for path, part, whole in zip(paths[1::2], labels, _WHOLE, strict=True):
                if len(part) == whole:
                    check_balance(path, part, len(self.class_names))
        return Raw(
            train_inputs=arrays[0][:, None],
            train_labels=labels[0],
            test_inputs=arrays[2][:, None],
            test_labels=labels[1],
            class_names=self.class_names,
            subset=subset((len(labels[0]), len(labels[1])), _WHOLE),
            sources=paths,
        )


@dataclass(frozen=True, kw_only=True)
class Mnist(_IdxPictures):
    """MNIST: 60000 training and 10000 test grey images of handwritten digits, 1×28×28, in ten classes."""

    reference = "LeCun, Cortes and Burges 1998, MNIST"
    kind = "image"
    private = False
    class_names = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
    layouts = _layouts("mnist", "MNIST/raw")
    contents = (
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    )
    balanced = False
    remotes = _remotes(
        "mnist",
        ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class FashionMnist(_IdxPictures):
    """Fashion-MNIST: 60000 training and 10000 test grey images of clothing, 1×28×28, in ten classes."""

    reference = "Xiao, Rasul and Vollgraf 2017, Fashion-MNIST"
    kind = "image"
    private = False
    class_names = (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    )
    layouts = _layouts("fashion-mnist", "FashionMNIST/raw")
    # Only the compressed files have published checksums; whole label files are checked for balance.
    contents = (None, None, None, None)
    balanced = True
    remotes = _remotes(
        "fashion-mnist",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
        ),
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    )
