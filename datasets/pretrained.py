"""CIFAR-10 as features of a frozen network: clients train its last layers."""

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bench import mobilenet
from bench.datasets import frozen
from bench.datasets.base import Dataset, Raw, content_hash
from bench.datasets.cifar import Cifar10First
from bench.datasets.files import Remote
from bench.datasets.tables import numeric_groups
from bench.errors import DataError, StorageError
from bench.parameters import parameter
from bench.record.files import new_file
from bench.record.npz import read_npz

_FEATURES, _IMAGE, _CHUNK = 1280, 64, 100
_LARGEST = np.float32(6)  # of ReLU6, the network's last activation


@dataclass(frozen=True, kw_only=True)
class Cifar10MobileNet(Dataset):
    """The images of `cifar10-10k` (the first 10000 training and 1000 test images of CIFAR-10) as 1280 features in [0,
    1], from MobileNetV2 with ImageNet's weights. Images are enlarged to 64×64. With `cut=head`, the features are the
    last activation (ReLU6), averaged over positions and divided by 6: the model `linear` is the head of a frozen
    network. With `cut=block`, they are the outputs before the last block, 320 channels at 2×2 positions, mapped from
    [-3, 3]: the model `mobilenet-tail` is the rest of the network. The first `load` takes about 30 seconds; the user's
    cache keeps the features."""

    reference = "Krizhevsky 2009, CIFAR-10; Sandler et al. 2018, MobileNetV2 (torchvision, IMAGENET1K_V1)"
    kind = "table"
    private = False
    remotes = (
        *Cifar10First.remotes,
        Remote(name=mobilenet.FILE, hash=f"sha256:{mobilenet.SHA256}", urls=(mobilenet.URL,), place=""),
    )

    cut: Literal["head", "block"] = parameter(
        "head", "end of the frozen part: before the head, or before the last block", source="ours"
    )

    def load(self, folders: tuple[Path, ...]) -> Raw:
        weights = mobilenet.find(folders)
        pictures = Cifar10First().load(folders)
        where = "" if self.cut == "head" else f" {self.cut}"
        identity = f"{content_hash(pictures)} {mobilenet.SHA256} {_IMAGE}{where}"
        source = hashlib.sha256(identity.encode()).hexdigest()
        kept = folders[-1] / f"cifar10-mobilenet-{source[:16]}.npz"
        parts = (pictures.train_inputs, pictures.test_inputs)
        features = _read(kept, sum(map(len, parts)))
        if features is None:
            chunks = [
                [np.asarray(part[n : n + _CHUNK], np.uint8) for n in range(0, len(part), _CHUNK)] for part in parts
            ]
            blocks = None if self.cut == "head" else mobilenet.BLOCKS
            rows = np.concatenate(frozen.features("mobilenet_v2", weights, chunks, side=_IMAGE, blocks=blocks))
            scaled = rows / _LARGEST if self.cut == "head" else (rows / np.float32(mobilenet.LARGEST) + 1) / 2
            features = np.clip(scaled, 0, 1)
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
