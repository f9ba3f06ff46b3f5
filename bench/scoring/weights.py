"""Learned metrics: distances between images by a trained network, whose weights are a file on this machine."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bench.kinds.base import Floats
from bench.kinds.unit import clipped, within_range

_CHUNK = 16  # images of 224 pixels need half a GB
# (reading, example, channel, height, width) twice → (reading, example), 0 for equal examples
Learned = Callable[[ArrayLike, ArrayLike], Floats]
# (image, 3, height, width) in [-1, 1] twice → (image,)
Distance = Callable[[Tensor, Tensor], Tensor]


def load(
    path: Path, sha256: str, remedy: str, build: Callable[[dict[str, Any]], Distance]
) -> tuple[Learned | None, str | None]:
    """Load the network behind a learned metric from a weights file, after a check of the file's hash. Return (metric,
    None), or (None, reason) if the metric is not available.

    - `path`: file with the weights (a torch state dict).
    - `sha256`: required beginning of the file's SHA-256, because other weights give another metric.
    - `remedy`: step in words that brings the right file.
    - `build`: function from the weights to the network's distance.

    The reason names no folder, because it is published in records."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not digest.startswith(sha256):
        return None, f"{path.name}: its sha256 starts with {digest[:8]}, expected {sha256[:8]}; {remedy}"
    try:
        return _measure(build(torch.load(path, map_location="cpu", weights_only=True))), None
    except ImportError as error:
        return None, f"the package {error.name} cannot be imported ({error}); install it"
    except Exception as error:
        return None, f"{path.name} does not hold this metric's weights ({type(error).__name__}); {remedy}"


def _measure(distance: Distance) -> Learned:
    def learned(truth: ArrayLike, guess: ArrayLike) -> Floats:
        """Return the distance of each example between `truth` and the clipped `guess`, both (reading, example, channel,
        height, width): (reading, example). NaN for a guess with NaN, and for other than 1 or 3 channels."""
        true, found = within_range(truth), clipped(guess)
        lead = true.shape[:2]
        if true.shape[2] not in (1, 3):
            return np.full(lead, np.nan)
        rows = [distance(_colours(a), _colours(b)) for a, b in zip(_chunks(true), _chunks(found), strict=True)]
        values: Floats = torch.cat(rows).double().numpy().reshape(lead)
        values[np.isnan(found).reshape(*lead, -1).any(axis=-1)] = np.nan
        return values

    return learned


def _chunks(images: Floats) -> list[Floats]:
    flat = images.reshape(-1, *images.shape[2:])
    return [flat[start : start + _CHUNK] for start in range(0, len(flat), _CHUNK)]


def _colours(images: Floats) -> Tensor:
    """Convert to three channels in [-1, 1]; a grey channel is repeated."""
    colours = np.broadcast_to(images, (len(images), 3, *images.shape[2:]))
    return torch.from_numpy(np.ascontiguousarray(2 * colours - 1, np.float32))
