"""LPIPS (Zhang et al. 2018), if its AlexNet weights are on this machine; they are never downloaded."""

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.scoring import weights
from bench.scoring.weights import Distance, Learned

TRUNK = "alexnet-owt-7be5be79.pth"
TRUNK_PREFIX = "7be5be79"  # start of the file's SHA-256, also in its name
SMALLEST = 31  # pixels: a smaller side leaves AlexNet's second pooling nothing to pool


def trunk_path() -> Path:
    """Return the path of the file with AlexNet's weights, which the metric LPIPS needs: $BENCH_LPIPS_TRUNK, or by
    default a file in torch's cache ($TORCH_HOME)."""
    named = os.environ.get("BENCH_LPIPS_TRUNK")
    return Path(named) if named else Path(torch.hub.get_dir()) / "checkpoints" / TRUNK


def load(path: Path | None = None, *, prefix: str = TRUNK_PREFIX) -> tuple[Learned | None, str | None]:
    """Load the metric LPIPS (version 0.1, AlexNet). Return (metric, None), or (None, reason) if the metric is not
    available.

    - `path`: file with AlexNet's weights; None: `trunk_path()`.
    - `prefix`: required beginning of the file's SHA-256, because other weights give another metric."""
    path = path or trunk_path()
    if not path.is_file():
        return (None, f"no AlexNet weights; put {TRUNK} into torch's hub/checkpoints, or name it in BENCH_LPIPS_TRUNK")
    return weights.load(path, prefix, f"get {TRUNK} anew", _distance)


def _distance(state: dict[str, Any]) -> Distance:
    """Build the `lpips` package's network with AlexNet's weights; the names `features.N.*` become `sliceK.N.*`."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        # The package asks torchvision in a deprecated way, and draws weights that are replaced below.
        warnings.simplefilter("ignore")
        import lpips

        network: torch.nn.Module = lpips.LPIPS(net="alex", version="0.1", pnet_rand=True, verbose=False)
    trunk: torch.nn.Module = network.get_submodule("net")
    trunk.load_state_dict({name: state[f"features.{name.split('.', 1)[1]}"] for name in trunk.state_dict()})
    network.eval().requires_grad_(False)

    def distance(truth: Tensor, guess: Tensor) -> Tensor:
        values: Tensor = network(_enlarged(truth), _enlarged(guess)).flatten()
        return values

    return distance


def _enlarged(images: Tensor) -> Tensor:
    """Enlarge images that are too small for AlexNet by a whole factor. The smallest sufficient factor (28 → 56, 8 → 32)
    repeats pixels without interpolation. Figures for enlarged images cannot be compared with figures for larger
    images."""
    factor = -(-SMALLEST // min(images.shape[-2:]))
    return images.repeat_interleave(factor, -2).repeat_interleave(factor, -1)
