"""Breast cancer (Wisconsin, diagnostic) from scikit-learn: a table with 30 measurements, no file needed."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.datasets.base import Dataset, Raw, hold_out
from bench.datasets.tables import numeric_groups, scale


@dataclass(frozen=True, kw_only=True)
class Cancer(Dataset):
    """Wisconsin breast cancer: a table with 426 training and 143 test examples, 30 numeric features, malignant or
    benign; as in the paper Fed-αCDP."""

    reference = "Street, Wolberg and Mangasarian 1993; Fed-αCDP Table II"
    kind = "table"
    private = False

    def load(self, folders: tuple[Path, ...]) -> Raw:
        from sklearn.datasets import load_breast_cancer  # the import takes a second, needed here only

        bunch = load_breast_cancer()
        names = tuple(str(name) for name in bunch.feature_names)
        labels = np.asarray(bunch.target, np.int64)
        train, test = hold_out(len(labels), "cancer")
        rows, unseen = scale(bunch.data[train], bunch.data[test])
        return Raw(
            train_inputs=rows,
            train_labels=labels[train],
            test_inputs=unseen,
            test_labels=labels[test],
            class_names=tuple(str(name) for name in bunch.target_names),
            groups=numeric_groups(names, range(len(names)), rows),
        )
