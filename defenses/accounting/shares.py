"""Noise variances for NISS, in units of a client's noise variance σ_i².

ρ is σ_r², the variance of the factor on a received share; q the share of colluding neighbours; v the number of shares
and neighbours per client; K the number of clients in a round."""

import math

import numpy as np


def upload_variance(rho: float, q: float = 0.0) -> float:
    """Return the noise variance on a single upload for a server with colluders: (1 - q)(2 + ρ) + qρ, ρ = `rho`. The
    formula is derived from NISS §V-B; at q = 0 it is the noise in NISS's algorithm."""
    return (1 - q) * (2 + rho) + q * rho


def aggregate_variance(rho: float) -> float:
    """Return ρ, the noise variance on the sum of uploads, per client (NISS theorem 2); without shares it would be 1."""
    return rho


def least_factor_variance(q: float) -> float:
    """Return max(0, 2q - 1), the least ρ for noise variance 1 on a single upload (NISS theorem 3)."""
    return max(0.0, 2 * q - 1)


def conditional_variance(rho: float, *, clients: int, shares: int, q: float = 0.0) -> float:
    """Return the noise variance on an upload if the noise of all other clients is known. This attacker is the adversary
    in differential privacy. The variance is the rest after the best linear estimate. ρ is `rho`, K `clients`, v
    `shares`. Honest clients form a ring with (1 - q)·K members and (1 - q)·v neighbours on each side; neighbouring
    uploads correlate by -1/v. The matrix is circulant, with variance 1/mean(1/λ) over its eigenvalues λ. At ρ = 0 the
    result is 0."""
    honest, near = round((1 - q) * clients), round((1 - q) * shares)
    if honest < 1:
        return upload_variance(rho, q)
    offsets = np.arange(1, near + 1)
    angles = 2 * math.pi * np.arange(honest)[:, None] * offsets / honest
    eigenvalues = (2 * near + shares * rho) / shares - 2 * np.cos(angles).sum(1) / shares
    least = float(eigenvalues.min())
    return 0.0 if least <= 1e-12 else float(1 / np.mean(1 / eigenvalues))
