"""Curvature of the matching distance for images, with few parameters.

An image (channel, height, width) is divided into square tiles; a phase is a channel and a position within a tile. A
convolutional net treats all tiles nearly alike if the tile's side is a multiple of the net's strides. The curvature of
the matching distance is then nearly block-diagonal: a matrix over phases for each cosine frequency over tiles. This
matrix has frequency · phase² numbers in place of value², so few examples determine it."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from bench.attacks.search.space import Gaussian, cosines, linear_part

_SIDES = (4, 2, 3, 5)  # pixels, first choice first; 4 is the total stride of most nets for small images


@dataclass(frozen=True, slots=True)
class Tiles:
    """Transform for images in which the matching distance's curvature is nearly block-diagonal: a cosine transform over
    square tiles, separately for each phase. A phase is a channel and a position within a tile. The transform is
    orthonormal."""

    shape: tuple[int, int, int]
    """Shape of an image (channel, height, width)."""
    side: int
    """Height and width of a tile, in pixels; divides height and width of the image."""

    def spectra(self, x: Tensor) -> Tensor:
        """Transform images `x` (image, value) to cosine spectra over tiles, in which the curvature of a matching
        distance has few parameters: (frequency, image, phase), with a phase for each channel and position within a
        tile."""
        channels, height, width = self.shape
        side, count = self.side, len(x)
        tiles = x.reshape(count, channels, height // side, side, width // side, side).permute(2, 4, 0, 1, 3, 5)
        flat = tiles.reshape(height * width // side**2, -1)
        return (self._frequencies(x) @ flat).reshape(len(flat), count, channels * side**2)

    def images(self, spectra: Tensor) -> Tensor:
        """Transform cosine `spectra` over tiles (frequency, image, phase) back to images (image, value), with a phase
        for each channel and position within a tile."""
        channels, height, width = self.shape
        side, count = self.side, spectra.shape[1]
        flat = self._frequencies(spectra).T @ spectra.reshape(len(spectra), -1)
        tiles = flat.reshape(height // side, width // side, count, channels, side, side)
        return tiles.permute(2, 3, 0, 4, 1, 5).reshape(count, -1)

    def _frequencies(self, like: Tensor) -> Tensor:
        _, height, width = self.shape
        return _cosines_of(height // self.side, width // self.side).to(like)


@cache
def _cosines_of(down: int, across: int) -> Tensor:
    return torch.kron(cosines(down), cosines(across))


def tiles_of(shape: tuple[int, ...]) -> Tiles | None:
    """Choose square tiles for images of `shape` (channel, height, width). Return None if no side of 2 to 5 pixels
    divides height and width."""
    channels, height, width = shape
    sides = [side for side in _SIDES if height % side == 0 and width % side == 0 and max(height, width) > side]
    return Tiles((channels, height, width), sides[0]) if sides else None


def block_covariance(tiles: Tiles, x: Tensor) -> Tensor:
    """Estimate a covariance of images with few parameters: a matrix over phases (channel and position within a tile)
    for each cosine frequency over tiles, (frequency, phase, phase) in float64. Covariances between different
    frequencies are left out.

    - `tiles`: division of an image into square tiles.
    - `x` (image, value): images with mean 0."""
    spectra = tiles.spectra(x).double()
    return spectra.mT @ spectra / len(x)


def in_variables(space: Gaussian, blocks: Tensor, tiles: Tiles, like: Tensor) -> Tensor:
    """Convert a block-diagonal curvature of the matching distance from input values to the variables of a search space:
    (variable, variable).

    - `space`: the search space.
    - `blocks` (frequency, phase, phase): the curvature in input values, a matrix for each cosine frequency over the
      `tiles` of an image. A phase is a channel and a position within a tile.
    - `like`: tensor that gives dtype and device."""
    values, vectors = torch.linalg.eigh(blocks)
    root = ((vectors * values.clamp_min(0).sqrt()[:, None]) @ vectors.mT).to(like)
    rows: Tensor = (tiles.spectra(linear_part(space).to(like)) @ root).transpose(1, 2).flatten(0, 1)
    return rows.T @ rows
