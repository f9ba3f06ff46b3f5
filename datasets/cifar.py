"""CIFAR-10 and CIFAR-100 from torchvision's batches, the binary version, or an `.npz` pack; 32×32 colour pictures."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bench.datasets.arrays import channels_first, class_labels, required
from bench.datasets.base import Dataset, Raw
from bench.datasets.batches import read_batch
from bench.datasets.files import Layout, Remote, check_balance, locate, read, subset
from bench.errors import DataError
from bench.record.npz import read_npz

_WHOLE = (50000, 10000)
_FIRST = (10000, 1000)
_PICTURE = 3 * 32 * 32
_URL = "https://www.cs.toronto.edu/~kriz"
_Part = tuple[NDArray[np.uint8], NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True)
class _Cifar(Dataset):
    class_names: ClassVar[tuple[str, ...]]
    layouts: ClassVar[tuple[Layout, ...]]
    batches: ClassVar[dict[str, str]]
    """Pickled files with their md5; the last file is the test part."""
    label: ClassVar[str]
    """Key of the labels in a pickled file."""
    label_bytes: ClassVar[int]
    """Bytes before each picture in the binary version; the last byte is the label."""

    def load(self, folders: tuple[Path, ...]) -> Raw:
        layout, paths = locate(folders, self.layouts)
        *training, (test_inputs, test_labels) = self._parts(layout.format, paths)
        inputs = np.concatenate([part[0] for part in training])
        labels = np.concatenate([part[1] for part in training])
        for path, part, whole in ((paths[0], labels, _WHOLE[0]), (paths[-1], test_labels, _WHOLE[1])):
            if len(part) == whole:
                check_balance(path, part, len(self.class_names))
        return Raw(
            train_inputs=inputs,
            train_labels=labels,
            test_inputs=test_inputs,
            test_labels=test_labels,
            class_names=self.class_names,
            subset=subset((len(labels), len(test_labels)), _WHOLE),
            sources=paths,
        )

    def _parts(self, form: str, paths: tuple[Path, ...]) -> list[_Part]:
        if form == "batches":
            return [read_batch(path, known_md5=self.batches[path.name], label=self.label) for path in paths]
        if form == "binary":
            return [_read_binary(path, self.label_bytes) for path in paths]
        path = paths[0]
        pack = read_npz(path, limit=2**30)
        x, y, test_x, test_y = required(pack, path, "x_train", "y_train", "x_test", "y_test")
        if x.shape[1:] != (32, 32, 3) or test_x.shape[1:] != (32, 32, 3):
            raise DataError(f"{path}: pictures must be N×32×32×3, got {x.shape} and {test_x.shape}")
        names = pack.get("fine_label_names")
        if names is not None and tuple(names.tolist()) != self.class_names:
            raise DataError(f"{path}: altered: fine_label_names are not CIFAR's, in CIFAR's order")
        return [
            (channels_first(x, path, "x_train"), class_labels(y, path, "y_train")),
            (channels_first(test_x, path, "x_test"), class_labels(test_y, path, "y_test")),
        ]


def _read_binary(path: Path, label_bytes: int) -> _Part:
    """Read images from CIFAR's binary format: `label_bytes`, then 3072 bytes for the red, green and blue planes."""
    record = label_bytes + _PICTURE
    content = read(path, limit=_WHOLE[0] * record)
    if not content or len(content) % record:
        raise DataError(f"{path}: truncated or altered: {len(content)} bytes are no multiple of {record}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, record)
    pictures = rows[:, label_bytes:].reshape(-1, 3, 32, 32).copy()
    return pictures, rows[:, label_bytes - 1].astype(np.int64)


def _layouts(batches: dict[str, str], pickled: str, binary: str, pack: str) -> tuple[Layout, ...]:
    return (
        Layout(place=pickled, names=tuple(batches), format="batches"),
        Layout(place=binary, names=tuple(f"{name}.bin" for name in batches), format="binary"),
        Layout(place="", names=(pack,), format="pack"),
    )


def _remote(name: str, md5: str, unpacks: str) -> Remote:
    return Remote(name=name, hash=f"md5:{md5}", urls=(f"{_URL}/{name}",), place="", unpacks=unpacks)


_BATCHES_10 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
_BATCHES_100 = {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}


@dataclass(frozen=True, kw_only=True)
class Cifar10(_Cifar):
    """CIFAR-10: 50000 training and 10000 test colour images, 3×32×32, in ten classes."""

    reference = "Krizhevsky 2009, CIFAR-10"
    kind = "image"
    private = False
    class_names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    layouts = _layouts(_BATCHES_10, "cifar-10-batches-py", "cifar-10-batches-bin", "cifar10.npz")
    batches = _BATCHES_10
    label = "labels"
    label_bytes = 1
    remotes = (_remote("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py"),)


@dataclass(frozen=True, kw_only=True)
class Cifar10First(Cifar10):
    """The first 10000 training and 1000 test images of CIFAR-10, equal for every copy of the data set. The benchmark's
    published results use this data set."""

    def load(self, folders: tuple[Path, ...]) -> Raw:
        raw = Cifar10.load(self, folders)
        training, test = len(raw.train_labels[: _FIRST[0]]), len(raw.test_labels[: _FIRST[1]])
        return replace(
            raw,
            train_inputs=raw.train_inputs[:training],
            train_labels=raw.train_labels[:training],
            test_inputs=raw.test_inputs[:test],
            test_labels=raw.test_labels[:test],
            subset=subset((training, test), _FIRST),
        )


_FINE = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel "
    "can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur "
    "dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion "
    "lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree "
    "pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea "
    "seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank "
    "telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)  # names of the 100 fine labels, in their order


@dataclass(frozen=True, kw_only=True)
class Cifar100(_Cifar):
    """CIFAR-100: 50000 training and 10000 test colour images, 3×32×32, with the 100 fine labels."""

    reference = "Krizhevsky 2009, CIFAR-100 (fine labels)"
    kind = "image"
    private = False
    class_names = tuple(_FINE.split())
    layouts = _layouts(_BATCHES_100, "cifar-100-python", "cifar-100-binary", "cifar100.npz")
    batches = _BATCHES_100
    label = "fine_labels"
    label_bytes = 2  # coarse, then fine
    remotes = (_remote("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python"),)
