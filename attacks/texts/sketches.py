"""Gradients of labelled texts as short vectors, kept for a search."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from bench.attacks.inverter.sketch import Sketch
from bench.attacks.texts.fit import Fit
from bench.gradients import group_gradients, one_hot
from bench.rng import Key
from bench.trip import Tensors

_VALUES = 4096  # of a vector
_AT_ONCE = 64  # gradients in memory
_MOST = 20_000  # vectors kept
_MEANS = 256  # means of random public gradients, compared with the reading's length
_RIDGE = 0.1  # of the public gradients' mean variance per direction

Entry = tuple[int, tuple[int, ...]]
"""A class number and a text's token ids."""


@dataclass(slots=True, kw_only=True)
class Sketches:
    """Short vectors in place of the gradients of labelled texts in a search, with stored results. A random hash
    shortens a gradient and keeps scalar products on average. Directions in which public texts differ much are then
    damped, so that these common differences do not hide others. Call the object with labelled texts to get their
    vectors (entry, value).

    A reading shorter than every mean of random public gradients was probably clipped per example. Each gradient then
    counts with length 1, and the reading's scale is unknown."""

    fit: Fit
    """Model and weights."""
    sketch: Sketch
    """Map from a gradient to a vector."""
    classes: int
    """Number of classes."""
    public: list[Entry]
    """Public texts, each with each class."""
    directions: Tensor
    """(direction, value): orthogonal directions that are shortened."""
    shortened: Tensor
    """(direction,): share of the length that a direction loses."""
    observed: Tensor
    """(value,): the observed gradient's vector; empty before `of_reading`."""
    clipped: bool = False
    """Whether each gradient counts with length 1."""
    _kept: dict[Entry, Tensor] = field(default_factory=dict)
    _lengths: dict[Entry, float] = field(default_factory=dict)  # of whole gradients

    @classmethod
    def of(cls, fit: Fit, key: Key) -> Self:
        """Prepare the map from gradients to short vectors, for all readings (observed updates) under the model and
        weights in `fit`, and compute the vectors of all public texts under every label. `key` draws the hash."""
        reading = fit.mismatch.reading
        shapes = {name: tuple(value.shape[1:]) for name, value in fit.observed.items()}
        texts = sorted({tuple(text) for text in reading.public_inputs.cpu().round().long().tolist()})
        made = cls(
            fit=fit,
            sketch=Sketch.of(shapes, key, _VALUES),
            classes=reading.classes,
            public=[(label, text) for label in range(reading.classes) for text in texts],
            directions=torch.zeros(0, 0),
            shortened=torch.zeros(0),
            observed=torch.zeros(0),
        )
        vectors, lengths = made._vectors(made.public)
        centred = vectors.unflatten(0, (reading.classes, -1))
        centred = (centred - centred.mean(1, keepdim=True)).flatten(0, 1)
        variances, directions = _principal(centred)
        ridge = (_RIDGE * variances.sum() / min(centred.shape)).clamp_min(torch.finfo(variances.dtype).tiny)
        made.directions, made.shortened = directions, 1 - (ridge / (variances + ridge)).sqrt()
        made._kept = dict(zip(made.public, made._short(vectors), strict=True))
        made._lengths = dict(zip(made.public, lengths, strict=True))
        return made

    def of_reading(self, observed: Tensors) -> Self:
        """Return the same map of gradients to vectors for the reading `observed`, name → (1, *shape)."""
        vector = self._short(self.sketch(observed).float().cpu())[0]
        kept = {entry: self._kept[entry] for entry in self.public}
        made = replace(self, observed=vector, clipped=False, _kept=kept, _lengths=dict(self._lengths))
        return replace(made, clipped=bool(vector.norm() < made.mean_lengths().min()))

    def mean_lengths(self) -> Tensor:
        """Return vector lengths for means over random public texts, as many as are behind the reading: (mean,)."""
        random, vectors = np.random.default_rng(0), self(self.public)
        drawn = torch.from_numpy(random.integers(len(vectors), size=(_MEANS, len(self.fit.targets))))
        return torch.stack([vectors[row].mean(0).norm() for row in drawn])

    def __call__(self, entries: list[Entry]) -> Tensor:
        """Return the vector of each entry's gradient, (entry, value)."""
        new = [entry for entry in dict.fromkeys(entries) if entry not in self._kept]
        if new:
            vectors, lengths = self._vectors(new)
            self._kept |= dict(zip(new, self._short(vectors), strict=True))
            self._lengths |= dict(zip(new, lengths, strict=True))
        vectors = torch.stack([self._kept[entry] for entry in entries])
        if not self.clipped:
            return vectors
        return vectors / torch.tensor([self._lengths[entry] for entry in entries])[:, None]

    def forget(self, needed: Iterable[Entry]) -> None:
        """Free memory if more than 20 000 vectors are stored: only the vectors of public texts and of the labelled
        texts `needed` are kept."""
        if len(self._kept) > _MOST:
            self._kept = {entry: self._kept[entry] for entry in (*self.public, *needed)}

    def _short(self, vectors: Tensor) -> Tensor:
        return vectors - ((vectors @ self.directions.mT) * self.shortened) @ self.directions

    def _vectors(self, entries: list[Entry]) -> tuple[Tensor, list[float]]:
        """Return a vector for each entry's gradient, (entry, value), and the gradients' lengths."""
        like, parts, lengths = self.fit.targets, [], list[float]()
        for start in range(0, len(entries), _AT_ONCE):
            some = entries[start : start + _AT_ONCE]
            texts = torch.tensor([text for _, text in some])[:, None].to(like)
            labels = one_hot(torch.tensor([label for label, _ in some]), self.classes, like.dtype)[:, None].to(like)
            gradients = group_gradients(self.fit.model, self.fit.weights, texts, labels)
            parts.append(self.sketch({name: gradients[name].cpu() for name in self.fit.observed}).float())
            squares = torch.stack([gradients[name].flatten(1).square().sum(1) for name in self.fit.observed]).sum(0)
            lengths += squares.sqrt().clamp_min(torch.finfo(squares.dtype).tiny).tolist()
        return torch.cat(parts), lengths


def _principal(centred: Tensor) -> tuple[Tensor, Tensor]:
    """Return the variances (direction,) and the directions (direction, value) of the rows in `centred` (row, value).
    Eigenvectors of the smaller matrix of scalar products cost a fifth of a singular value decomposition."""
    rows = centred.double()
    if len(rows) > rows.shape[1]:
        variances, vectors = torch.linalg.eigh(rows.mT @ rows / len(rows))
        return variances.clamp_min(0).to(centred), vectors.mT.to(centred)
    variances, vectors = torch.linalg.eigh(rows @ rows.mT / len(rows))
    some = variances > 1e-12 * variances[-1]
    directions = vectors[:, some].mT @ rows / (variances[some] * len(rows)).sqrt()[:, None]
    return variances[some].to(centred), directions.to(centred)
