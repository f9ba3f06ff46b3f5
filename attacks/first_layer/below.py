"""Convolutions below a fully connected layer, whose inputs are features of images."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.trip import Tensors

_CHUNK = 128  # images in a pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Below:
    """The convolutions (with ReLU and pooling) before the first fully connected layer of a model. Attacks on the first
    fully connected layer recover an image's features, the inputs of this layer; this class computes the features of
    images, so that a search can find the image."""

    model: nn.Module
    """The whole model, in eval mode."""
    weights: Tensors
    """The model's weights, name → (*shape)."""
    convolutions: tuple[str, ...]
    """Paths of the convolutions, from the image up."""
    layer: str
    """Path of the fully connected layer."""
    shape: tuple[int, ...]
    """Shape of an image."""

    def features(self, images: Tensor) -> Tensor:
        """Return the features of `images` (image, *value or value): (image, feature), differentiable by the images."""
        return self._inputs(self.layer, self.weights, images)

    def features_of_all(self, images: Tensor) -> Tensor:
        """Compute the features (inputs of the fully connected layer) for many `images` (image, *value), in chunks that
        fit into memory: (image, feature) in float64 on the CPU."""
        with torch.no_grad():
            return torch.cat([self.features(part).double().cpu() for part in images.split(_CHUNK)])

    def opened(self, public: Tensor) -> "Below":
        """Choose larger biases for these convolutions, for a server that sends them to clients: every ReLU then stays
        open (input above 0) and loses no information. Features become maxima (by pooling) of linear functions, from
        which a search recovers the image. Return the convolutions with these biases.

        - `public` (image, *shape): public images; their largest value in each channel determines the biases."""
        weights = dict(self.weights)
        for path in self.convolutions:
            with torch.no_grad():
                parts = [self._inputs(path, weights, part).amax((0, 2, 3)) for part in public.split(_CHUNK)]
            largest = torch.stack(parts).amax(0).clamp_min(0)
            kernel = weights[f"{path}.weight"]
            lowest = kernel.clamp_max(0) * largest[: kernel.shape[1], None, None]
            weights[f"{path}.bias"] = -lowest.sum((1, 2, 3))
        return replace(self, weights=weights)

    def _inputs(self, path: str, weights: Tensors, images: Tensor) -> Tensor:
        found: list[Tensor] = []
        handle = self.model.get_submodule(path).register_forward_pre_hook(lambda layer, given: found.append(given[0]))
        try:
            like = next(iter(weights.values()))
            functional_call(self.model, dict(weights), (images.to(like).reshape(-1, *self.shape),))
        finally:
            handle.remove()
        return found[0]
