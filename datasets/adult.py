"""UCI Adult: a table with 105 features; the class is income above 50 000 or not."""

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.datasets.base import Dataset, Group, Raw, hold_out
from bench.datasets.files import Layout, Remote, check_md5, locate, read, subset
from bench.datasets.tables import numeric_groups, scale
from bench.errors import DataError

_WHOLE = (32561, 16281)
_MD5_TRAIN = "5d7c39d7b8804f071cdd1f2a7c460872"
_MD5_TEST = "35238206dfdf7f1fe215bbb874adecdc"
_FIRST_TEST_LINE = "|1x3 Cross validator"  # some copies lack it
_LIMIT = 8 * 2**20
_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
_CLASSES = ("<=50K", ">50K")
# The source's columns in its order, with the values that adult.names declares; numbers have none.
_DECLARED = {
    "age": "",
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
    "fnlwgt": "",
    "education": (
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters "
        "1st-4th 10th Doctorate 5th-6th Preschool"
    ),
    "education-num": "",
    "marital-status": (
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse"
    ),
    "occupation": (
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
        "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv "
        "Armed-Forces"
    ),
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "capital-gain": "",
    "capital-loss": "",
    "hours-per-week": "",
    "native-country": (
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan "
        "Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal "
        "Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua "
        "Scotland Thailand Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands"
    ),
}
_COLUMNS = {name: tuple(values.split()) for name, values in _DECLARED.items()}
_WIDTHS = [len(values) or 1 for values in _COLUMNS.values()]
_NUMERIC = tuple(name for name, values in _COLUMNS.items() if not values)
# Source column → its columns in the table of 105.
_PLACES = {
    name: tuple(range(end - width, end))
    for name, width, end in zip(_COLUMNS, _WIDTHS, accumulate(_WIDTHS), strict=True)
}


@dataclass(frozen=True, kw_only=True)
class Adult(Dataset):
    """UCI Adult: 36631 training and 12211 test examples with 105 features, 6 numbers in [0, 1] and 99 one-hot columns.
    The one-hot columns are 8 groups. Counts follow the paper Fed-αCDP: all 48842 examples, divided 75/25, with zeros in
    a group for a missing value ("?"). Without the examples that hold "?", 45222 would remain; "?" as a category would
    give 108 features."""

    reference = "Becker and Kohavi 1996, UCI Adult; Fed-αCDP Table II"
    kind = "table"
    private = False
    remotes = (
        Remote(name="adult.data", hash=f"md5:{_MD5_TRAIN}", urls=(f"{_URL}/adult.data",), place="adult"),
        Remote(name="adult.test", hash=f"md5:{_MD5_TEST}", urls=(f"{_URL}/adult.test",), place="adult"),
    )

    def load(self, folders: tuple[Path, ...]) -> Raw:
        names = ("adult.data", "adult.test"), ("adult-train.csv", "adult-test.csv")
        _, paths = locate(folders, [Layout(place="adult", names=pair) for pair in names])
        training = _rows(paths[0], whole=_WHOLE[0], known_md5=_MD5_TRAIN)
        testing = _rows(paths[1], whole=_WHOLE[1], known_md5=_MD5_TEST, first=_FIRST_TEST_LINE)
        rows = training + testing
        labels = np.array([_CLASSES.index(row[-1]) for row in rows], np.int64)
        train, test = hold_out(len(rows), "adult")
        table = _one_hot(rows)
        numeric = [_PLACES[name][0] for name in _NUMERIC]
        chosen = [list(_COLUMNS).index(name) for name in _NUMERIC]
        numbers = np.array([[float(row[i]) for i in chosen] for row in rows])  # (row, 6) in the source's units
        inputs, unseen = table[train], table[test]
        inputs[:, numeric], unseen[:, numeric] = scale(numbers[train], numbers[test])
        return Raw(
            train_inputs=inputs,
            train_labels=labels[train],
            test_inputs=unseen,
            test_labels=labels[test],
            class_names=_CLASSES,
            groups=_groups(inputs),
            sources=paths,
            subset=subset((len(training), len(testing)), _WHOLE, "rows, pooled"),
        )


def _rows(path: Path, *, whole: int, known_md5: str, first: str = "") -> list[list[str]]:
    """Read a file's lines, 14 values and a class each, and check them against the values declared in adult.names.
    `whole` is the number of lines of the complete file, whose checksum is `known_md5`; `first` is a first line without
    an example."""
    content = read(path, limit=_LIMIT)
    try:
        lines = content.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: altered ({error})") from None
    if lines[-2:] != ["", ""]:
        raise DataError(f"{path}: truncated: the source ends in an empty line")
    if first and lines[0] == first:
        lines = lines[1:]
    elif first:
        content = first.encode() + b"\n" + content
    rows = [line.removesuffix(".").split(", ") for line in lines[:-2]]
    for number, row in enumerate(rows, 1):
        _check(row, f"{path}: row {number}")
    if len(rows) == whole:
        check_md5(path, content, known_md5)
    return rows


def _check(row: list[str], where: str) -> None:
    if len(row) != len(_COLUMNS) + 1:
        raise DataError(f"{where}: truncated or altered: {len(row)} values, expected {len(_COLUMNS) + 1}")
    for value, (name, values) in zip(row, _COLUMNS.items(), strict=False):
        if not (value in values or value == "?" if values else value.isdigit()):
            raise DataError(f"{where}: altered: {name} is {value!r}")
    if row[-1] not in _CLASSES:
        raise DataError(f"{where}: altered: the class is {row[-1]!r}")


def _one_hot(rows: list[list[str]]) -> NDArray[np.float32]:
    """Return features (example, 105) with the one-hot groups filled; the numeric columns are still 0."""
    table = np.zeros((len(rows), sum(_WIDTHS)), np.float32)
    for i, (name, values) in enumerate(_COLUMNS.items()):
        place = dict(zip(values, _PLACES[name], strict=False))
        known = [(j, place[row[i]]) for j, row in enumerate(rows) if row[i] in place]
        if known:
            lines, columns = np.array(known).T
            table[lines, columns] = 1
    return table


def _groups(train: NDArray[np.float32]) -> tuple[Group, ...]:
    groups = numeric_groups(_NUMERIC, [_PLACES[name][0] for name in _NUMERIC], train)
    numeric = {group.name: group for group in groups}
    return tuple(
        numeric.get(name) or Group(name=name, columns=columns, categorical=True) for name, columns in _PLACES.items()
    )
