"""Variances for negated noise shares, in units of a client's noise variance σ_i²: plain numbers.

ρ  σ_r², variance of the factor on a received share     q  share of colluding neighbours
v  shares, and neighbours, per client                   K  clients in a round
"""

import math

import numpy as np


def upload_variance(rho: float, q: float = 0.0) -> float:
    """Noise on a single upload, read by a server with colluders: (1 - q)(2 + ρ) + qρ (NISS §V-B, derived; at q = 0 the
    noise in its algorithm)."""
    return (1 - q) * (2 + rho) + q * rho


def aggregate_variance(rho: float) -> float:
    """Noise on the sum of all uploads, per client: ρ (NISS theorem 2); plain noise has 1."""
    return rho


def least_factor_variance(q: float) -> float:
    """Least ρ with variance 1 on a single upload (NISS theorem 3): 2q - 1, at least 0."""
    return max(0.0, 2 * q - 1)


def conditional_variance(rho: float, *, clients: int, shares: int, q: float = 0.0) -> float:
    """Noise on an upload given all other clients' parameters, hence their noise (the adversary in differential
    privacy): variance after the best linear estimate.

    Honest clients form a ring with (1 - q)·K members and (1 - q)·v neighbours on each side; neighbouring uploads
    correlate by -1/v.  The matrix is circulant, with variance 1/mean(1/λ) over its eigenvalues λ.  ρ = 0: variance 0.
    """
    honest, near = round((1 - q) * clients), round((1 - q) * shares)
    if honest < 1:
        return upload_variance(rho, q)
    offsets = np.arange(1, near + 1)
    angles = 2 * math.pi * np.arange(honest)[:, None] * offsets / honest
    eigenvalues = (2 * near + shares * rho) / shares - 2 * np.cos(angles).sum(1) / shares
    least = float(eigenvalues.min())
    return 0.0 if least <= 1e-12 else float(1 / np.mean(1 / eigenvalues))
