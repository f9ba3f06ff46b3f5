"""LPIPS (Zhang et al. 2018), if its AlexNet weights are on this machine; they are never downloaded."""

import hashlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from bench.kinds.base import Floats, Kind
from bench.kinds.unit import clipped, within_range
from bench.record.metrics import LPIPS

TRUNK = "alexnet-owt-7be5be79.pth"
TRUNK_PREFIX = "7be5be79"  # start of the file's SHA-256, also in its name
SMALLEST = 31  # pixels: a smaller side leaves AlexNet's second pooling nothing to pool
_CHUNK = 64
# (reading, example, channel, height, width) twice → (reading, example), 0 for equal examples
Lpips = Callable[[ArrayLike, ArrayLike], Floats]


def trunk_path() -> Path:
    """Return the path of AlexNet's weights: $BENCH_LPIPS_TRUNK, or by default a file in torch's cache ($TORCH_HOME)."""
    named = os.environ.get("BENCH_LPIPS_TRUNK")
    return Path(named) if named else Path(torch.hub.get_dir()) / "checkpoints" / TRUNK


def load(path: Path | None = None, *, prefix: str = TRUNK_PREFIX) -> tuple[Lpips | None, str | None]:
    """Load the metric LPIPS (version 0.1, AlexNet). Return (metric, None), or (None, reason) if the metric is not
    available.

    - `path`: file with AlexNet's weights; None: `trunk_path()`.
    - `prefix`: required beginning of the file's SHA-256, because other weights give another metric.

    The reason names no folder, because it is published in records."""
    path = path or trunk_path()
    if not path.is_file():
        return (None, f"no AlexNet weights; put {TRUNK} into torch's hub/checkpoints, or name it in BENCH_LPIPS_TRUNK")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not digest.startswith(prefix):
        return None, f"{path.name} is not {TRUNK}: its sha256 starts with {digest[:8]}, expected {prefix}"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        return _measure(_network(state)), None
    except ImportError as error:
        return None, f"the lpips package cannot be imported ({error}); install it"
    except Exception as error:
        return None, f"{path.name} does not hold AlexNet's weights ({type(error).__name__}); get {TRUNK} anew"


def lpips_for(kind: Kind) -> tuple[Lpips | None, str | None]:
    """Return (LPIPS metric, None) if the `kind` of data is images and the metric is available; otherwise (None,
    reason)."""
    return load() if kind in LPIPS.kinds else (None, "images alone have it")


def _network(state: dict[str, Any]) -> torch.nn.Module:
    """Build the `lpips` package's network with AlexNet's weights; the names `features.N.*` become `sliceK.N.*`."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        # The package asks torchvision in a deprecated way, and draws weights that are replaced below.
        warnings.simplefilter("ignore")
        import lpips

        network: torch.nn.Module = lpips.LPIPS(net="alex", version="0.1", pnet_rand=True, verbose=False)
    trunk: torch.nn.Module = network.get_submodule("net")
    trunk.load_state_dict({name: state[f"features.{name.split('.', 1)[1]}"] for name in trunk.state_dict()})
    return network.eval().requires_grad_(False)


def _measure(network: torch.nn.Module) -> Lpips:
    def lpips(truth: ArrayLike, guess: ArrayLike) -> Floats:
        """Return the perceptual distance LPIPS of each example between `truth` and the clipped `guess`, both (reading,
        example, *shape): (reading, example). NaN for a guess with NaN."""
        true, found = within_range(truth), clipped(guess)
        lead = true.shape[:2]
        rows = [
            network(_prepared(a), _prepared(b)).flatten() for a, b in zip(_chunks(true), _chunks(found), strict=True)
        ]
        values: Floats = torch.cat(rows).double().numpy().reshape(lead)
        values[np.isnan(found).reshape(*lead, -1).any(axis=-1)] = np.nan
        return values

    return lpips


def _chunks(pictures: Floats) -> list[Floats]:
    flat = pictures.reshape(-1, *pictures.shape[2:])
    return [flat[start : start + _CHUNK] for start in range(0, len(flat), _CHUNK)]


def _prepared(pictures: Floats) -> torch.Tensor:
    """Convert to three channels in [-1, 1]; enlarge images that are too small for AlexNet by a whole factor. The
    smallest sufficient factor (28 → 56, 8 → 32) repeats pixels without interpolation. Figures for enlarged images
    cannot be compared with figures for larger images."""
    factor = -(-SMALLEST // min(pictures.shape[-2:]))
    large = pictures.repeat(factor, axis=-2).repeat(factor, axis=-1)
    colours = np.broadcast_to(large, (len(large), 3, *large.shape[2:])) if large.shape[1] == 1 else large
    return torch.from_numpy(np.ascontiguousarray(2 * colours - 1, np.float32))
