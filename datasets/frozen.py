"""Features of images from a frozen network of torchvision, pretrained on ImageNet."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bench.errors import DataError

_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's channels
Network = Literal["resnet50", "mobilenet_v2"]
_HEAD: dict[Network, str] = {"resnet50": "fc", "mobilenet_v2": "classifier"}
Images = NDArray[np.uint8]


def features(
    network: Network,
    weights: Path,
    parts: Iterable[Iterable[Images]],
    *,
    side: int | None = None,
    blocks: int | None = None,
) -> list[NDArray[np.float32]]:
    """Compute features of images by a network: the inputs of its head (last layer), at least 0, or the outputs of an
    earlier block. Return an array (image, feature) for each of `parts`. A single thread is used, because the number of
    threads changes the last bits.

    - `network`: torchvision's name of the network.
    - `weights`: file of the network's weights.
    - `parts`: data set parts; each part is an iterator of chunks of images (image, 3, height, width).
    - `side`: height and width in pixels to which images are resized; None: no change.
    - `blocks`: number of MobileNetV2's first blocks that compute the features; None: all layers before the head.

    Raises `DataError` if the file does not hold the network's weights."""
    import torch
    from torchvision.models import get_model

    module = get_model(network)
    try:
        module.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    except Exception as error:  # a wrong file raises many types
        raise DataError(f"{weights}: no weights of torchvision's {network} ({type(error).__name__})") from None
    if blocks is None:
        setattr(module, _HEAD[network], torch.nn.Identity())
    else:
        module = torch.nn.Sequential(module.get_submodule("features")[:blocks], torch.nn.Flatten())
    module.eval()
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (_MEAN, _DEVIATION))

    def inputs(chunk: Images) -> torch.Tensor:
        images = torch.from_numpy(chunk).float() / 255
        if side is not None:
            images = torch.nn.functional.interpolate(images, (side, side), mode="bilinear", align_corners=False)
        return (images - mean) / deviation

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            return [torch.cat([module(inputs(chunk)) for chunk in chunks]).numpy() for chunks in parts]
    finally:
        torch.set_num_threads(threads)
