"""Search spaces x = mean + A u with prior -log p(u) = ½‖u‖², where A Aᵀ is the covariance of public examples.

A value with little variation among public examples moves little in these variables, so a solver reaches probable
examples first. Spaces map the last axis, the values of an example, and keep earlier axes."""

import hashlib
import math
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from bench.trip import Reading

_HELD_OUT = 0.2  # of the public examples, to choose among covariances
_DENSE = 1024  # values, at most, for a full covariance
_SHARES = (1.0, 0.6, 0.3, 0.1, 0.03)  # of the target in a shrunk covariance
_JITTER = 1e-6  # variance added to every value
_LEAST_DEVIATION = 1e-3  # of a frequency
_KEPT = 12  # fitted spaces
LEAST_OF_CLASS = 10  # public examples of a class, for a space of this class


class Space(Protocol):
    """Search space: a map between the variables u (..., value) that a solver changes and the inputs x (..., value) of
    candidate examples."""

    def inputs(self, u: Tensor) -> Tensor:
        """Map a solver's variables `u` (..., value) to the inputs x of candidate examples (..., value)."""
        ...

    def variables(self, x: Tensor) -> Tensor:
        """Map inputs of candidate examples `x` (..., value) to a solver's variables u (..., value), the inverse of
        `inputs`."""
        ...

    def with_energy(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs (..., value) for variables `u` (..., value), and the prior's -log p(u), (...), up to a
        constant; 0 in a space without prior."""


@dataclass(frozen=True, slots=True)
class Diagonal:
    """Search space that scales each input value: inputs x = `lengths`·u for search variables u, without prior."""

    lengths: Tensor
    """Factor from each variable to its input value (value,)."""

    def inputs(self, u: Tensor) -> Tensor:
        return u * self.lengths.to(u)

    def variables(self, x: Tensor) -> Tensor:
        return x / self.lengths.to(x)

    def with_energy(self, u: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs(u), u.new_zeros(u.shape[:-1])


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Search space for images whose statistics are the same at all positions: a Gaussian prior with a variance per
    cosine frequency, and a covariance of colour channels."""

    mean: Tensor
    """Mean of public images (channel, height, width)."""
    channels: Tensor
    """Principal colours as rows of a matrix (channel, channel)."""
    deviation: Tensor
    """Standard deviation for each principal colour and frequency (channel, height, width)."""
    down: Tensor
    """Cosine transform of columns (height, height), as from `cosines`."""
    across: Tensor
    """Cosine transform of rows (width, width), as from `cosines`."""

    def inputs(self, u: Tensor) -> Tensor:
        scaled = u.unflatten(-1, self.mean.shape) * self.deviation.to(u)
        places = self.down.to(u).T @ scaled @ self.across.to(u)
        return (self._colours(places, self.channels.T) + self.mean.to(u)).flatten(-3)

    def variables(self, x: Tensor) -> Tensor:
        colours = self._colours(x.unflatten(-1, self.mean.shape) - self.mean.to(x), self.channels)
        return (self.down.to(x) @ colours @ self.across.to(x).T / self.deviation.to(x)).flatten(-3)

    def with_energy(self, u: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs(u), 0.5 * (u * u).sum(-1)

    def transposed(self, gradient: Tensor) -> Tensor:
        """Apply the chain rule to a loss: turn its derivative by the inputs x into its derivative by the search
        variables u. With x = mean + A u, the result is Aᵀ · gradient. `gradient` and result are (..., value)."""
        colours = self._colours(gradient.unflatten(-1, self.mean.shape), self.channels)
        return (self.down.to(gradient) @ colours @ self.across.to(gradient).T * self.deviation.to(gradient)).flatten(-3)

    @staticmethod
    def _colours(x: Tensor, matrix: Tensor) -> Tensor:
        return torch.einsum("dc,...chw->...dhw", matrix.to(x), x)


@dataclass(frozen=True, slots=True)
class Dense:
    """Gaussian search space with a full covariance: inputs x = `mean` + `factor` u for search variables u."""

    mean: Tensor
    """Mean of the public examples (value,)."""
    factor: Tensor
    """Cholesky factor of the covariance (value, value)."""

    def inputs(self, u: Tensor) -> Tensor:
        return u @ self.factor.to(u).T + self.mean.to(u)

    def variables(self, x: Tensor) -> Tensor:
        flat = (x - self.mean.to(x)).reshape(-1, x.shape[-1])
        u: Tensor = torch.linalg.solve_triangular(self.factor.to(x), flat.T, upper=False)
        return u.T.reshape(x.shape)

    def with_energy(self, u: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs(u), 0.5 * (u * u).sum(-1)

    def transposed(self, gradient: Tensor) -> Tensor:
        return gradient @ self.factor.to(gradient)


Gaussian = Spectrum | Dense


@cache
def cosines(size: int) -> Tensor:
    """Return the matrix (frequency, position) that transforms `size` values to cosine frequencies: the orthonormal
    discrete cosine transform (type II), in float64. Priors on images use it for rows and columns."""
    places = torch.arange(size, dtype=torch.float64)
    matrix = torch.cos(math.pi / size * (places + 0.5) * places[:, None]) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix


def public_space(reading: Reading, label: int | None = None) -> Gaussian:
    """Fit a search space (x = mean + A u, with a Gaussian prior on the variables u) to public examples.

    - `reading`: the attacked readings, with the public examples; the space has their dtype and device.
    - `label`: restricts the fit to public examples of this class, and the target of the shrinkage is then the
      covariance of all classes. Held-out examples of the class choose the shrinkage, or the space of all classes; a
      class with fewer than 10 examples gets the space of all classes. None takes all classes.

    The space depends on the data:

    - Images above 1024 values get a `Spectrum`.
    - Smaller images get a full covariance shrunk towards the `Spectrum`, or the `Spectrum` itself if held-out public
      examples are then likelier.
    - Tables get a full covariance shrunk towards its diagonal."""
    like = next(iter(reading.values.values()))
    chosen = _kept_fit(reading.public_inputs, reading.public_labels, reading.kind.spatial, label)
    return replace(chosen, **{item.name: getattr(chosen, item.name).to(like) for item in fields(chosen)})


# The cells of a run share their public examples, and a fit takes longer than a short search.
_fits: dict[tuple[bytes, bytes, tuple[int, ...], torch.dtype, bool, int | None], Gaussian] = {}


def _kept_fit(public: Tensor, labels: Tensor, images: bool, label: int | None) -> Gaussian:
    examples, classes = (
        hashlib.sha256(value.cpu().contiguous().numpy().tobytes()).digest() for value in (public, labels)
    )
    key = (examples, classes, tuple(public.shape), public.dtype, images, label)
    chosen = _fits.pop(key, None)
    if chosen is None:
        exact = public.double().cpu()
        if label is None:
            chosen = _fit(exact, images)
        else:
            own = exact[labels.cpu() == label]
            chosen = _fit_of_class(own, _kept_fit(public, labels, images, None), images)
    _fits[key] = chosen
    if len(_fits) > _KEPT:
        del _fits[next(iter(_fits))]
    return chosen


def _fit(public: Tensor, images: bool) -> Gaussian:
    if images and public[0].numel() > _DENSE:
        return spectrum(public)
    fitted, unseen = _halves(public)
    moments = _moments(fitted, images)
    choices: list[tuple[float | None, Gaussian]] = [(None, spectrum(fitted))] if images else []
    choices += [(share, _shrunk(moments, share)) for share in _SHARES]
    share, _ = max(choices, key=lambda choice: _log_likelihood(choice[1], unseen))
    return spectrum(public) if share is None else dense(public, share, images)


def _fit_of_class(own: Tensor, pooled: Gaussian, images: bool) -> Gaussian:
    """Fit a space to a class's examples `own` (example, *shape); `pooled` is the space of all classes."""
    if len(own) < LEAST_OF_CLASS:
        return pooled
    columns = linear_part(pooled) if own[0].numel() <= _DENSE else None

    def spaces(examples: Tensor) -> list[Gaussian]:
        if columns is None:
            return [pooled, spectrum(examples)] if images else [pooled]
        mean, covariance, _ = _moments(examples, images=False)
        return [pooled, *(_shrunk((mean, covariance, columns.T @ columns), share) for share in _SHARES)]

    fitted, unseen = _halves(own)
    scores = [_log_likelihood(space, unseen) for space in spaces(fitted)]
    return spaces(own)[max(range(len(scores)), key=scores.__getitem__)]


def _halves(public: Tensor) -> tuple[Tensor, Tensor]:
    """Return the examples to fit, (example, *shape), and the held-out examples, (example, value)."""
    held = max(1, round(_HELD_OUT * len(public)))
    return public[:-held], public[-held:].flatten(1)


def spectrum(public: Tensor) -> Spectrum:
    """Fit a Gaussian prior over cosine frequencies (`Spectrum`) to images and their mirror images. Variances are
    smoothed over neighbouring frequencies. `public` are the images (example, channel, height, width)."""
    mean = public.mean(0)
    centred = public - mean
    centred = torch.cat([centred, centred.flip(-1)])
    covariance = torch.einsum("nchw,ndhw->cd", centred, centred) / centred[:, 0].numel()
    channels = torch.linalg.eigh(covariance).eigenvectors.T
    down, across = (cosines(size).to(public) for size in public.shape[-2:])
    variances = (down @ torch.einsum("dc,nchw->ndhw", channels, centred) @ across.T).square().mean(0)
    logs = variances.clamp_min(1e-12).log()[None]
    smooth = torch.nn.functional.avg_pool2d(torch.nn.functional.pad(logs, (1, 1, 1, 1), mode="replicate"), 3, 1)
    deviation = torch.maximum(smooth[0].exp(), variances).sqrt().clamp_min(_LEAST_DEVIATION)
    return Spectrum(mean, channels, deviation, down, across)


def dense(public: Tensor, share: float, images: bool) -> Dense:
    """Fit a Gaussian search space with a full covariance (`Dense`) to public examples. The covariance is (1 - `share`)
    · C + `share` · T with the examples' covariance C and a smoother covariance T.

    - `public` (example, *shape): the examples.
    - `share`: weight of T, in [0, 1].
    - `images`: True takes for T a covariance by cosine frequency (`Spectrum`); False (tables) takes C's diagonal."""
    return _shrunk(_moments(public, images), share)


def _moments(public: Tensor, images: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean (value,), covariance C and target T (both (value, value)) of `public` examples (example, *shape). The
    covariance of `Dense` is shrunk from C towards T (`_shrunk`). If `images` is True, T is the covariance A Aᵀ of the
    examples' `Spectrum`; otherwise (tables) T is C's diagonal."""
    flat = public.flatten(1)
    mean = flat.mean(0)
    centred = flat - mean
    covariance = centred.T @ centred / len(flat)
    if images:
        columns = linear_part(spectrum(public))
        return mean, covariance, columns.T @ columns
    return mean, covariance, covariance.diagonal().diag()


def linear_part(space: Gaussian) -> Tensor:
    """Return a search space's linear map as a matrix Aᵀ (variable, value). The inputs are x = mean + A u for variables
    u; row i is ∂x/∂u_i. The matrix converts covariances and curvatures. `space`: the search space."""
    eye = torch.eye(space.mean.numel()).to(space.mean)
    return space.inputs(eye) - space.mean.flatten()


def _shrunk(moments: tuple[Tensor, Tensor, Tensor], share: float) -> Dense:
    mean, covariance, target = moments
    mixed = (1 - share) * covariance + share * target
    mixed.diagonal().add_(_JITTER)
    return Dense(mean, torch.linalg.cholesky(mixed))


def _log_likelihood(space: Gaussian, x: Tensor) -> float:
    deviations = space.deviation if isinstance(space, Spectrum) else space.factor.diagonal()
    _, energy = space.with_energy(space.variables(x))
    return float(-energy.mean() - deviations.log().sum())
