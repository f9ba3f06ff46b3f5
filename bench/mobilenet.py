"""MobileNetV2, pretrained on ImageNet (Sandler et al. 2018): torchvision's file of weights."""

from collections.abc import Sequence
from pathlib import Path

from bench.errors import DataError, MissingDataError
from bench.packaged import file_hash
from bench.record.files import require_plain

FILE = "mobilenet_v2-b0353104.pth"
"""Name of the file."""
URL = f"https://download.pytorch.org/models/{FILE}"
"""Address of the file."""
SHA256 = "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889"
"""Hash of the file; the name contains its beginning."""
BLOCKS = 18
"""Number of the network's blocks before the last: the features of `cifar10-mobilenet` with `cut=block`."""
CHANNELS, WIDTH = 320, 1280
"""Channels before and behind the last block, a 1 × 1 convolution."""
SIDE = 2
"""Height and width of both for images of 64 × 64 pixels."""
LARGEST = 3.0
"""Bound on the features before the last block: on CIFAR-10 they lie between -2.3 and 2.1."""


def find(folders: Sequence[Path]) -> Path:
    """Return the path of the checked file in the first of `folders` that has it, or in torchvision's own cache. Raises
    `MissingDataError` for an absent file, and `DataError` for another content."""
    import torch.hub

    searched = (*folders, Path(torch.hub.get_dir()) / "checkpoints")
    path = next((folder / FILE for folder in searched if (folder / FILE).exists()), None)
    if path is None:
        raise MissingDataError(f"not there: looked for {FILE} below {', '.join(map(str, searched))}")
    try:
        require_plain(path)
        actual = file_hash(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    if actual != SHA256:
        raise DataError(f"{path}: truncated or altered: sha256 {actual}, published is {SHA256}")
    return path
