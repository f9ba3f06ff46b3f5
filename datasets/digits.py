"""Handwritten digits at 8×8 pixels, from scikit-learn: small, and no file needed."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from bench.datasets.base import Dataset, Raw, held_out
from bench.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Digits(Dataset):
    """scikit-learn's handwritten digits: 1347 training and 450 test grey images, 1×8×8, in ten classes; the source's
    levels 0..16 become 0..255."""

    reference = "Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits"
    kind = "image"
    private = False

    def load(self, folders: tuple[Path, ...]) -> Raw:
        table = np.loadtxt(_file(), delimiter=",")
        pictures = np.round(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
        return held_out("digits", pictures, table[:, -1].astype(np.int64), "0123456789")


def _file() -> Path:
    """Find the data file of scikit-learn without an import of scikit-learn, which would cost each process nearly a
    second."""
    spec = find_spec("sklearn")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            return path
    raise DataError("digits: scikit-learn has no table of them; install it as constraints.txt names it")
