"""Independent component analysis of a row space: separate its rows into single examples.

FastICA (Hyvärinen & Oja 2000) separates differences of neighbouring pixels, which are sparse and far from Gaussian. A
maximum likelihood fit without FastICA's decorrelation (Pham & Garat 1997) follows: over few pixels true examples are
correlated, so decorrelation causes an error, which grows with the batch."""

import warnings
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from bench.attacks.first_layer.layer import RowSpace
from bench.trip import Reading

PUBLIC = 2000  # public examples for the size of differences
_FAINT = 0.05  # of the largest deviation: lower places are rounding
_WIDTH = 0.5  # of the Cauchy density, in deviations of a source
_ITERATIONS = 200

Floats = NDArray[np.float64]
# sources → -log density, and its slope
_Density = Callable[[Floats], tuple[Floats, Floats]]


def independent(space: RowSpace, reading: Reading, draw: np.random.Generator, *, refine: bool) -> Tensor | None:
    """Recover the examples in the row space of the first layer's gradient by independent component analysis: true
    examples are statistically more independent than mixtures. Return a matrix (rank, rank) that combines the rows of
    `space` into examples, each followed by bias entry 1. Return None if too few pixels (columns) vary.

    - `space`: the row space of the attacked gradient.
    - `reading`: the attacked readings; they give public examples and the shape of an example.
    - `draw`: generator of FastICA's random start.
    - `refine`: True adds a maximum likelihood fit after FastICA."""
    observed = _sources(space, reading)
    size = space.rank
    if size == 1:
        return space.scaled(torch.ones(1, 1, dtype=torch.float64))
    if observed.shape[1] < size or np.linalg.matrix_rank(observed, tol=1e-9 * np.linalg.norm(observed)) < size:
        return None
    ica = FastICA(whiten="unit-variance", max_iter=400, tol=1e-5, w_init=draw.standard_normal((size, size)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the likelihood continues
        ica.fit(observed.T)
    unmixing: Floats = ica.components_
    if refine:
        # log cosh has few optima; then the Cauchy density, sharper, and exact if differences are zero
        for density in (_log_cosh, _cauchy):
            unmixing = _likeliest(unmixing, observed, density)
    return space.scaled(torch.from_numpy(unmixing))


def _sources(space: RowSpace, reading: Reading) -> Floats:
    """Return the samples to separate, (rank, sample), computed linearly from the rows of `space`. For images, a sample
    is a difference of neighbouring pixels with decorrelated colours. For tables, a sample is a centred column. Each
    sample is divided by its standard deviation among public examples."""
    public = reading.public_inputs[:PUBLIC].double().cpu()
    if not reading.kind.spatial:
        mean = public.mean(0).flatten()
        rows, usual = space.right - space.bias[:, None] * mean, public.flatten(1) - mean
    else:
        usual = _differences(public)
        colours = torch.einsum("ncp,ndp->cd", usual, usual) / usual[:, 0].numel()
        variance, axes = torch.linalg.eigh(colours)
        axes = axes / variance.clamp_min(1e-6 * float(variance.max())).sqrt()
        rows, usual = (
            torch.einsum("ncp,cd->ndp", x, axes).flatten(1)
            for x in (_differences(space.right.reshape(-1, *reading.shape)), usual)
        )
    deviation = usual.std(0)
    shown = deviation > _FAINT * deviation.max()
    sources: Floats = (rows[:, shown] / deviation[shown]).numpy()
    return sources


def _differences(x: Tensor) -> Tensor:
    return torch.cat([x.diff(dim=2).flatten(2), x.diff(dim=3).flatten(2)], 2)


def _likeliest(unmixing: Floats, observed: Floats, density: _Density) -> Floats:
    """Return the matrix W near `unmixing` (rank, rank) with the greatest likelihood of `observed` (rank, sample). The
    log likelihood is log|det W| + mean over samples Σ log density(W · observed). `density` returns minus the log
    density, and its slope. The rows of unmixing · observed are first scaled to deviation 1."""
    sources = unmixing @ observed
    scale = np.sqrt((sources**2).mean(1, keepdims=True))
    sources = sources / scale
    size, places = sources.shape

    def loss(flat: Floats) -> tuple[float, Floats]:
        mixture = flat.reshape(size, size)
        value, slope = density(mixture @ sources)
        sign, logarithm = np.linalg.slogdet(mixture)
        if sign == 0:
            return np.inf, np.zeros_like(flat)
        return value.sum() / places - logarithm, (slope @ sources.T / places - np.linalg.inv(mixture).T).ravel()

    best = minimize(
        loss, np.eye(size).ravel(), jac=True, method="L-BFGS-B", options={"maxiter": _ITERATIONS, "maxcor": 20}
    )
    result: Floats = best.x.reshape(size, size) @ (unmixing / scale)
    return result


def _log_cosh(x: Floats) -> tuple[Floats, Floats]:
    """Return -log of a smoothed Laplace density, and its slope."""
    size = np.abs(x)
    return size + np.log1p(np.exp(-2 * size)), np.tanh(x)


def _cauchy(x: Floats) -> tuple[Floats, Floats]:
    square = x * x
    return np.log1p(square / _WIDTH**2), 2 * x / (_WIDTH**2 + square)
