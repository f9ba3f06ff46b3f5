"""Variances of negated noise shares, in units of a client's own noise σ_i²: numbers alone.

ρ  σ_r², variance of the factor on a received share     q  share of the neighbours who collude
v  shares, and so neighbours, of a client               K  clients of a round
"""

import math

import numpy as np


def upload_variance(rho: float, q: float = 0.0) -> float:
    """Of the noise on one upload read alone, by a server with colluders: (1 - q)(2 + ρ) + qρ (NISS §V-B, derived;
    at q = 0 the noise that its algorithm adds)."""
    return (1 - q) * (2 + rho) + q * rho


def aggregate_variance(rho: float) -> float:
    """Of the noise on the sum of all uploads, per client: ρ (NISS theorem 2); of plain noise it is 1."""
    return rho


def least_factor_variance(q: float) -> float:
    """The ρ at which an upload read alone keeps variance 1 (NISS theorem 3): 2q - 1, at least 0."""
    return max(0.0, 2 * q - 1)


def conditional_variance(rho: float, *, clients: int, shares: int, q: float = 0.0) -> float:
    """Of the noise on one upload to a server that knows all other clients' parameters, and so their noise (the
    adversary of differential privacy): the variance after the best linear estimate.

    Honest clients are a ring of (1 - q)·K with (1 - q)·v neighbours on each side, whose uploads correlate
    by -1/v: the matrix is circulant, and the variance 1/mean(1/λ) over its eigenvalues λ.  0 where ρ = 0.
    """
    honest, near = round((1 - q) * clients), round((1 - q) * shares)
    if honest < 1:
        return upload_variance(rho, q)
    offsets = np.arange(1, near + 1)
    angles = 2 * math.pi * np.arange(honest)[:, None] * offsets / honest
    eigenvalues = (2 * near + shares * rho) / shares - 2 * np.cos(angles).sum(1) / shares
    least = float(eigenvalues.min())
    return 0.0 if least <= 1e-12 else float(1 / np.mean(1 / eigenvalues))
