"""Contracts for data sets: values, counts, classes, content hash, order, disjoint splits."""

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.contracts.base import DECLARED, Contract, ContractSkipped, require
from bench.datasets.base import Data, Dataset, Raw, content_hash, split
from bench.kinds.base import Kind
from bench.kinds.known import KINDS, named

PARTS = ("training", "public", "tuning", "gallery")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDataset:
    """A data set with its loaded examples, on which contracts (tests of a data set's promises) run."""

    dataset: Dataset
    """The tested data set, as registered."""
    raw: Raw
    """Examples and labels from the first load."""
    again: Callable[[], Raw]
    """Function that loads the data a second time."""

    def parts(self) -> list[tuple[str, NDArray[Any], NDArray[np.int64]]]:
        """Return (name, inputs, labels) for the source's training part and its test part: inputs (example, *shape),
        class numbers (example,)."""
        return [
            ("training", self.raw.train_inputs, self.raw.train_labels),
            ("test", self.raw.test_inputs, self.raw.test_labels),
        ]

    def data(self) -> Data:
        """Return the loaded data set in the form in which experiments use it, with its splits: training, public,
        tuning, gallery and test."""
        raw = replace(self.raw, kind=self.kind.name)
        return split(raw, name=type(self.dataset).__name__, private=self.dataset.private)

    @property
    def kind(self) -> Kind:
        """The declared kind of data; raises `BenchError` for an unknown name."""
        return named(self.raw.kind or self.dataset.kind)


def values(loaded: LoadedDataset) -> None:
    """Check that all input values are allowed by the declared kind of data (such as images), and take at most four
    bytes each. Raises `ContractBroken` otherwise."""
    for part, inputs, _ in loaded.parts():
        fault = loaded.kind.values.fault(inputs)
        require(fault is None, f"{part}: {fault}")
        require(inputs.itemsize <= 4, f"{part}: {inputs.dtype} values; four bytes at most expected, e.g. float32")


def counts(loaded: LoadedDataset) -> None:
    """Check that there are as many labels as examples, that all examples have the same shape, and that no split is
    empty. Raises `ContractBroken` otherwise."""
    shapes = {inputs.shape[1:] for _, inputs, _ in loaded.parts()}
    require(len(shapes) == 1, f"training and test differ in shape: {sorted(shapes)}")
    for part, inputs, labels in loaded.parts():
        require(len(inputs) == len(labels) > 0, f"{part}: {len(inputs)} examples and {len(labels)} labels")
        require(labels.dtype == np.int64, f"{part}: labels are {labels.dtype}, int64 expected")
    splits = loaded.data()
    for part in (*PARTS, "test"):
        require(len(getattr(splits, part)) > 0, f"split {part} is empty")


def classes(loaded: LoadedDataset) -> None:
    """Check that labels run from 0 to the number of class names minus 1, that each class has a training example, and
    that names are distinct. Raises `ContractBroken` otherwise."""
    names = loaded.raw.class_names
    different = len(set(names)) == len(names) > 1
    require(different, f"class names must be two or more and all different, got {names}")
    for part, _, labels in loaded.parts():
        low, high = int(labels.min()), int(labels.max())
        require(0 <= low <= high < len(names), f"{part}: labels {low} to {high} for {len(names)} classes")
    absent = sorted(set(range(len(names))) - set(np.unique(loaded.raw.train_labels).tolist()))
    require(not absent, f"no training example of class {', '.join(names[label] for label in absent)}")


def content(loaded: LoadedDataset) -> None:
    """Check that two loads of the data set have equal content hashes. Raises `ContractBroken` otherwise."""
    again, first = content_hash(loaded.again()), content_hash(loaded.raw)
    require(first == again, f"two loads hash to {first[:12]} and {again[:12]}")


def order(loaded: LoadedDataset) -> None:
    """Check that two loads of the data set give equal examples in equal order, under any global random seed. Raises
    `ContractBroken` otherwise."""
    again = loaded.again()
    for part in ("train_inputs", "train_labels", "test_inputs", "test_labels"):
        same = np.array_equal(getattr(loaded.raw, part), getattr(again, part))
        require(same, f"{part} comes in another order, or is another, when loaded again")


def reload(load: Callable[[], Raw]) -> Callable[[], Raw]:
    """Return a function that loads a data set a second time, to compare both results. Its first call runs `load` under
    other global random seeds; further calls return the same result without loading."""

    @cache
    def again() -> Raw:
        legacy, plain = np.random.get_state(), random.getstate()
        try:
            np.random.seed(1)
            random.seed(1)
            return load()
        finally:
            np.random.set_state(legacy)
            random.setstate(plain)

    return again


def disjoint(loaded: LoadedDataset) -> None:
    """Check that the splits (training, public, tuning, gallery) together hold each example of the source's training
    part exactly once, and that the test split is the source's test part. Raises `ContractBroken` otherwise."""
    splits = loaded.data()
    source = _examples(loaded.raw.train_inputs, loaded.raw.train_labels)
    used: Counter[bytes] = Counter()
    for part in PARTS:
        chosen = getattr(splits, part)
        used += _examples(chosen.inputs, chosen.labels)
    mixed = sum((used - source).values())
    require(not mixed, f"{mixed} examples are in two splits, or are not the source's")
    lost = sum((source - used).values())
    require(not lost, f"{lost} examples are in no split")
    test = _examples(splits.test.inputs, splits.test.labels)
    source_test = _examples(loaded.raw.test_inputs, loaded.raw.test_labels)
    require(test == source_test, "the test split is not the source's test part")


def columns(loaded: LoadedDataset) -> None:
    """Check a table's columns: each column is in exactly one group (feature), categories are one-hot (or all zero), and
    numeric columns have positive standard deviations. Raises `ContractBroken` otherwise."""
    if not loaded.kind.columns:
        raise ContractSkipped(f"{loaded.kind.plural} have no columns")
    groups, rows = loaded.raw.groups, loaded.raw.train_inputs
    held = sorted(column for group in groups for column in group.columns)
    once = held == list(range(rows.shape[1]))
    require(once, f"groups hold {len(held)} columns of {rows.shape[1]}, or one twice")
    for group in groups:
        chosen = rows[:, list(group.columns)]
        if group.categorical:
            hot = bool(np.all((chosen == 0) | (chosen == 1)) and np.all(chosen.sum(1) <= 1))
            require(hot, f"group {group.name} is not one-hot")
        else:
            require(len(group.columns) == 1, f"numeric group {group.name} has {len(group.columns)} columns")
            require(group.deviation > 0, f"group {group.name} has deviation {group.deviation}")


def kind(loaded: LoadedDataset) -> None:
    """Check that the data set declares a known kind of data (such as images), and that its examples have the axes of
    this kind. Raises `ContractBroken` otherwise."""
    says = loaded.raw.kind or loaded.dataset.kind
    require(says in KINDS, f"kind is {says!r}; {' or '.join(KINDS)} expected")
    for part, inputs, _ in loaded.parts():
        axes = inputs.ndim == 1 + len(KINDS[says].axes)
        require(axes, f"{part}: shape {inputs.shape}; {KINDS[says].article} has the axes {KINDS[says].shape_text}")


def _examples(inputs: NDArray[Any], labels: NDArray[np.int64]) -> "Counter[bytes]":
    rows = zip(inputs, labels.astype("<i8"), strict=True)
    return Counter(hashlib.blake2b(row.tobytes(), digest_size=16, salt=label.tobytes()).digest() for row, label in rows)


CONTRACTS = (
    DECLARED,
    Contract("kind", "declares its kind of data, and has its axes", kind),
    Contract("values", "values of its kind: uint8, or float32 in [0, 1]", values),
    Contract("counts", "as many labels as examples, no split empty", counts),
    Contract("classes", "every label has a name, every name an example", classes),
    Contract("content", "the same content hash each time", content),
    Contract("order", "the same order each time", order),
    Contract("splits", "splits are disjoint and complete", disjoint),
    Contract("columns", "a table's groups hold each column once", columns),
)
