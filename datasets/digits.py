"""Handwritten digits at 8×8 pixels, from scikit-learn: small, and no file needed."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.datasets.base import Dataset, Raw, held_out


@dataclass(frozen=True, kw_only=True)
class Digits(Dataset):
    """1347/450 grey pictures 1×8×8 of ten digits; the source's levels 0..16 become 0..255."""

    reference = "Alpaydin and Kaynak 1998, Optical Recognition of Handwritten Digits"
    kind = "image"
    private = False

    def load(self, folders: tuple[Path, ...]) -> Raw:
        from sklearn.datasets import load_digits  # a second that other data sets need not pay

        del folders
        bunch = load_digits()
        pictures = np.round(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
        labels = np.asarray(bunch.target, np.int64)
        return held_out("digits", pictures, labels, "0123456789")
