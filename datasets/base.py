"""What a data set is, once loaded: splits that never mix, values in [0, 1], a content hash."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bench import rng
from bench.datasets.files import Remote
from bench.errors import DataError
from bench.record.metrics import DataKind

Pixels = NDArray[np.uint8]
Rows = NDArray[np.float32]
# Shares of the training part, in this order (MNIST: 50 000, 5000, 2000, 3000).
SPLITS = (("training", 5 / 6), ("public", 1 / 12), ("tuning", 1 / 30), ("gallery", 1 / 20))


@dataclass(frozen=True, slots=True)
class Split:
    """Examples (example, *shape): uint8 pictures or float32 rows in [0, 1], and labels (example,)."""

    inputs: Pixels | Rows
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def floats(self, index: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.float32]:
        """The chosen examples as float32 in [0, 1]."""
        chosen = self.inputs[index]
        scale = np.float32(255 if chosen.dtype == np.uint8 else 1)
        return np.divide(chosen, scale, dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Columns of a table that belong together: one numeric column, or a one-hot categorical group."""

    name: str
    columns: tuple[int, ...]
    categorical: bool
    mean: float = 0.0  # of a numeric column on the training split; RMSE is standardised by these
    deviation: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """What a loader returns, in the source's order: training and test parts, and what they are.

    Pictures are uint8 (example, channel, height, width); rows float32 (example, feature) in [0, 1].
    `subset` says what is there where it is not the whole data set; `sources` are the files it was read from.
    `together` training examples in a row are copies of one original and are never split.
    """

    train_inputs: Pixels | Rows
    train_labels: NDArray[np.int64]
    test_inputs: Pixels | Rows
    test_labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    groups: tuple[Group, ...] = ()
    subset: str | None = None
    sources: tuple[Path, ...] = ()
    together: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A loaded data set: five splits by key, and what is known of it in public.

    Victims come from `training`, accuracy from `test`; `public` serves priors and starts, `tuning`
    budgets, `gallery` identification.
    """

    name: str
    kind: DataKind
    shape: tuple[int, ...]
    classes: int
    class_names: tuple[str, ...]
    groups: tuple[Group, ...]
    subset: str | None
    private: bool
    sha256: str
    training: Split
    test: Split
    public: Split
    tuning: Split
    gallery: Split

    @property
    def nbytes(self) -> int:
        """Memory that its splits take."""
        splits = (self.training, self.test, self.public, self.tuning, self.gallery)
        return sum(split.inputs.nbytes + split.labels.nbytes for split in splits)


class Dataset(ABC):
    """A loader.  Concrete loaders are frozen dataclasses whose class attributes are literals.

    `remotes` are the files that `bench data fetch` gets; none where there is nothing to fetch.
    """

    reference: ClassVar[str]
    kind: ClassVar[DataKind]
    private: ClassVar[bool] = True  # public data say so; a user's own data are private by default
    remotes: ClassVar[tuple[Remote, ...]] = ()

    @abstractmethod
    def load(self, folders: tuple[Path, ...]) -> Raw:
        """Read the source files below the first of `folders` that has them all.

        Raises `DataError` naming the file that is missing (`MissingDataError`), truncated or altered.
        """


def hold_out(count: int, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training and test positions of a source without a split: ⌈count/4⌉ to test, ordered by key.

    The share and its rounding are scikit-learn's default, as in Fed-αCDP's table of data sets: Cancer
    426/143, LFW 2267/756, Adult 36631/12211.
    """
    order = rng.generator(0, "hold-out", name, count).permutation(count)
    test = -(-count // 4)
    return order[test:], order[:test]


def held_out(
    name: str, inputs: Pixels | Rows, labels: NDArray[np.int64], class_names: Sequence[str], **rest: Any
) -> Raw:
    """A source without a split, divided by `hold_out`; `rest` are further fields of `Raw`."""
    train, test = hold_out(len(labels), name)
    return Raw(
        train_inputs=inputs[train],
        train_labels=labels[train],
        test_inputs=inputs[test],
        test_labels=labels[test],
        class_names=tuple(class_names),
        **rest,
    )


def content_hash(raw: Raw) -> str:
    """SHA-256 over arrays, shapes, dtypes and class names: the data, not their files."""
    digest = hashlib.sha256()
    for array in (raw.train_inputs, raw.train_labels, raw.test_inputs, raw.test_labels):
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    digest.update("\0".join(raw.class_names).encode())
    return digest.hexdigest()


def split(raw: Raw, *, name: str, kind: DataKind, private: bool) -> Data:
    """Check the values and split once, by a key that is the data's content: no run's seed moves it."""
    _checked(raw, name)
    sha256 = content_hash(raw)
    sources = rng.generator(0, "split", sha256).permutation(len(raw.train_labels) // raw.together)
    bounds = np.round(np.cumsum([share for _, share in SPLITS]) * len(sources)).astype(int)
    order = (sources[:, None] * raw.together + np.arange(raw.together)).ravel()
    parts = np.split(order, bounds[:-1] * raw.together)
    splits = {
        part_name: Split(raw.train_inputs[part], raw.train_labels[part])
        for (part_name, _), part in zip(SPLITS, parts, strict=True)
    }
    return Data(
        name=name,
        kind=kind,
        shape=tuple(raw.train_inputs.shape[1:]),
        classes=len(raw.class_names),
        class_names=raw.class_names,
        groups=raw.groups,
        subset=raw.subset,
        private=private,
        sha256=sha256,
        test=Split(raw.test_inputs, raw.test_labels),
        **splits,
    )


def _checked(raw: Raw, name: str) -> None:
    for part, inputs, labels in (
        ("training", raw.train_inputs, raw.train_labels),
        ("test", raw.test_inputs, raw.test_labels),
    ):
        if len(inputs) != len(labels) or not len(labels):
            raise DataError(f"{name}: {part} has {len(inputs)} examples and {len(labels)} labels")
        if inputs.dtype != np.uint8 and not bool(np.all((inputs >= 0) & (inputs <= 1))):
            raise DataError(
                f"{name}: {part} values must lie in [0, 1], got {np.min(inputs)} to {np.max(inputs)}; "
                "scale them before packing"
            )
        if labels.min() < 0 or labels.max() >= len(raw.class_names):
            raise DataError(
                f"{name}: {part} labels must lie in 0..{len(raw.class_names) - 1}, got {labels.min()} to {labels.max()}"
            )
