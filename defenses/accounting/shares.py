"""Noise variances for NISS, in units of a client's noise variance σ_i².

ρ is σ_r², the variance of the factor on a received share; q the share of colluding neighbours; v the number of shares
and neighbours per client; K the number of clients in a round."""

import math

import numpy as np


def upload_variance(rho: float, q: float = 0.0) -> float:
    """Return the noise variance on a single upload in the defense NISS: (1 - q)(2 + ρ) + qρ, in units of a client's
    noise variance. Derived from NISS §V-B; the value at q = 0 is the noise in NISS's algorithm.

    - `rho`: ρ, variance of the random factor on a received noise share.
    - `q`: share of a client's neighbours that collude with the server."""
    return (1 - q) * (2 + rho) + q * rho


def aggregate_variance(rho: float) -> float:
    """Return the noise variance on the sum of uploads in the defense NISS, per client and in units of a client's noise
    variance. The value equals `rho`, the variance of the random factor on a received noise share (NISS, theorem 2);
    without the exchange of shares the value would be 1."""
    return rho


def least_factor_variance(q: float) -> float:
    """Return max(0, 2q - 1), the least ρ with which a single upload in the defense NISS has at least a client's own
    noise variance (NISS, theorem 3). ρ is the variance of the random factor on a received noise share; `q` is the share
    of a client's neighbours that collude with the server."""
    return max(0.0, 2 * q - 1)


def conditional_variance(rho: float, *, clients: int, shares: int, q: float = 0.0) -> float:
    """Return the noise variance left on an upload in the defense NISS, for an adversary with the noise of all other
    clients. Differential privacy assumes this adversary, who subtracts the best linear estimate. The unit is a client's
    noise variance.

    - `rho`: ρ, variance of the random factor on a received noise share. At ρ = 0 the result is 0.
    - `clients`: K, number of clients in a round.
    - `shares`: v, number of shares and neighbours per client.
    - `q`: share of a client's neighbours that collude with the server.

    Honest clients form a ring with (1 - q)·K members and (1 - q)·v neighbours on each side; neighbouring uploads
    correlate by -1/v. The covariance is circulant, so the variance is 1/mean(1/λ) over its eigenvalues λ."""
    honest, near = round((1 - q) * clients), round((1 - q) * shares)
    if honest < 1:
        return upload_variance(rho, q)
    offsets = np.arange(1, near + 1)
    angles = 2 * math.pi * np.arange(honest)[:, None] * offsets / honest
    eigenvalues = (2 * near + shares * rho) / shares - 2 * np.cos(angles).sum(1) / shares
    least = float(eigenvalues.min())
    return 0.0 if least <= 1e-12 else float(1 / np.mean(1 / eigenvalues))
