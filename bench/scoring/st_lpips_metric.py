"""ST-LPIPS (Ghildyal & Liu 2022), a perceptual distance that forgives small shifts, if its package is installed.

ST-LPIPS is another metric than LPIPS, with other values.  The package serves as a file of weights only: its modules
import IPython and torchsummary."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.scoring import weights
from bench.scoring.weights import Distance, Learned

PACKAGE = "stlpips_pytorch"
WEIGHTS = "weights/vST0.0/alex_shift_tolerant.pth"  # trunk and weights of the channels
SHA256 = "b356b382f96010f77d085ee8343ecd9fd322d0a56e8de2b2d0549fafcad8b9ee"
SMALLEST = 64  # pixels: the side of the images in the metric's training
_REMEDY = f"pip install '{PACKAGE}==0.0.2'"


def load(path: Path | None = None, *, sha256: str = SHA256) -> tuple[Learned | None, str | None]:
    """Load the metric ST-LPIPS (version ST0.0, AlexNet). Return (metric, None), or (None, reason) if the metric is not
    available.

    - `path`: file with the weights; None: the file in the installed package.
    - `sha256`: required beginning of the file's SHA-256, because other weights give another metric."""
    path = path or _installed()
    if path is None or not path.is_file():
        return None, f"no package {PACKAGE}; {_REMEDY}"
    return weights.load(path, sha256, _REMEDY, _distance)


def _installed() -> Path | None:
    """Return the path of the package's weights without an import of the package; None if it is not installed."""
    spec = find_spec(PACKAGE)
    return Path(spec.origin).parent / WEIGHTS if spec is not None and spec.origin else None


def _distance(state: dict[str, Any]) -> Distance:
    """Build the distance: squared differences of normalised features, weighted by channel, averaged over places and
    summed over five layers."""
    channels = [state[f"lin{layer}.model.1.weight"] for layer in range(5)]

    def distance(truth: Tensor, guess: Tensor) -> Tensor:
        layers = zip(channels, _features(state, truth), _features(state, guess), strict=True)
        parts = [(weight * (a - b).square()).sum(1).mean((1, 2)) for weight, a, b in layers]
        return torch.stack(parts).sum(0)

    return distance


def _features(state: dict[str, Any], images: Tensor) -> list[Tensor]:
    """Return the features of `images` in five layers, each of length 1 at each place. The trunk is AlexNet with a first
    convolution of stride 1 and blurs as the only steps that leave out places."""

    def convolved(values: Tensor, name: str, padding: int) -> Tensor:
        return F.conv2d(values, state[f"net.{name}.weight"], state[f"net.{name}.bias"], padding=padding)

    def blurred(values: Tensor, name: str) -> Tensor:
        padded = F.pad(values, (2, 2, 2, 2), mode="reflect")
        return F.conv2d(padded, state[f"net.{name}.filt"], stride=2, groups=values.shape[1])

    scaled = (_enlarged(images) - state["scaling_layer.shift"]) / state["scaling_layer.scale"]
    first = F.relu(blurred(convolved(scaled, "slice1.0", 2), "slice1.1"))
    second = F.relu(convolved(blurred(F.max_pool2d(first, 3, 1), "slice2.4"), "slice2.5", 2))
    third = F.relu(convolved(blurred(F.max_pool2d(second, 3, 1), "slice3.8"), "slice3.9", 1))
    fourth = F.relu(convolved(third, "slice4.11", 1))
    fifth = F.relu(convolved(fourth, "slice5.13", 1))
    return [F.normalize(each, dim=1, eps=1e-10) for each in (first, second, third, fourth, fifth)]


def _enlarged(images: Tensor) -> Tensor:
    """Enlarge images with a side below `SMALLEST`, bilinearly, until the shorter side has this length. Figures for
    enlarged images cannot be compared with figures for larger images."""
    height, width = images.shape[-2:]
    if min(height, width) >= SMALLEST:
        return images
    factor = SMALLEST / min(height, width)
    size = (round(height * factor), round(width * factor))
    return F.interpolate(images, size, mode="bilinear", align_corners=False)
