"""CIFAR-10 as the features of a frozen network: its last layer is trained by the clients."""

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.datasets import frozen
from bench.datasets.base import Dataset, Raw, content_hash
from bench.datasets.cifar import Cifar10First
from bench.datasets.files import Layout, Remote, locate
from bench.datasets.tables import numeric_groups
from bench.errors import DataError, StorageError
from bench.record.files import new_file, read_plain
from bench.record.npz import read_npz

_FILE = "mobilenet_v2-b0353104.pth"
_SHA256 = "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889"
_WEIGHTS = Layout(place="", names=(_FILE,))
_FEATURES, _SIDE, _CHUNK = 1280, 64, 100
_LARGEST = np.float32(6)  # of ReLU6, the network's last activation


@dataclass(frozen=True, kw_only=True)
class Cifar10MobileNet(Dataset):
    """The images of `cifar10-10k` (the first 10000 training and 1000 test images of CIFAR-10) as 1280 features in [0,
    1]. The features are MobileNetV2's last activation (ReLU6) with ImageNet's weights, averaged over positions and
    divided by 6. Images are enlarged to 64×64. The model `linear` on these features is the head of a frozen network.
    The first `load` takes about 30 seconds; the user's cache keeps the features."""

    reference = "Krizhevsky 2009, CIFAR-10; Sandler et al. 2018, MobileNetV2 (torchvision, IMAGENET1K_V1)"
    kind = "table"
    private = False
    remotes = (
        *Cifar10First.remotes,
        Remote(name=_FILE, hash=f"sha256:{_SHA256}", urls=(f"https://download.pytorch.org/models/{_FILE}",), place=""),
    )

    def load(self, folders: tuple[Path, ...]) -> Raw:
        weights = _weights(folders)
        pictures = Cifar10First().load(folders)
        source = hashlib.sha256(f"{content_hash(pictures)} {_SHA256} {_SIDE}".encode()).hexdigest()
        kept = folders[-1] / f"cifar10-mobilenet-{source[:16]}.npz"
        parts = (pictures.train_inputs, pictures.test_inputs)
        features = _read(kept, sum(map(len, parts)))
        if features is None:
            chunks = [
                [np.asarray(part[n : n + _CHUNK], np.uint8) for n in range(0, len(part), _CHUNK)] for part in parts
            ]
            rows = np.concatenate(frozen.features("mobilenet_v2", weights, chunks, side=_SIDE))
            features = np.clip(rows / _LARGEST, 0, 1)
            _keep(kept, features)
        train, test = features[: len(parts[0])], features[len(parts[0]) :]
        names = [f"feature {number}" for number in range(_FEATURES)]
        return Raw(
            train_inputs=train,
            train_labels=pictures.train_labels,
            test_inputs=test,
            test_labels=pictures.test_labels,
            class_names=pictures.class_names,
            groups=numeric_groups(names, range(_FEATURES), train),
            subset=pictures.subset,
            sources=(*pictures.sources, weights),
            source_sha256=source,
        )


def _weights(folders: tuple[Path, ...]) -> Path:
    """Return the file of the network's weights in the data folders, or in torchvision's own cache."""
    import torch.hub

    _, (path,) = locate((*folders, Path(torch.hub.get_dir()) / "checkpoints"), (_WEIGHTS,))
    try:
        actual = hashlib.sha256(read_plain(path)).hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    if actual != _SHA256:
        raise DataError(f"{path}: truncated or altered: sha256 {actual}, published is {_SHA256}")
    return path


def _read(path: Path, count: int) -> NDArray[np.float32] | None:
    """Return the kept features of `count` examples (example, 1280); None: absent or damaged."""
    with suppress(DataError):
        features = read_npz(path).get("features")
        if features is not None and features.shape == (count, _FEATURES) and features.dtype == np.float32:
            return features
    return None


def _keep(path: Path, features: NDArray[np.float32]) -> None:
    with suppress(StorageError), new_file(path) as part, part.open("wb") as file:
        np.savez(file, features=features)
