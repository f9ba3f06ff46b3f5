"""Moments accountant: Rényi differential privacy (RDP), summed over steps of the Poisson-subsampled Gaussian."""

import math
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from scipy.special import gammaln

# The orders behind Fed-αCDP's figures (the defaults in TensorFlow Privacy at the time).
ORDERS: tuple[float, ...] = (
    1.25,
    1.5,
    1.75,
    2.0,
    2.25,
    2.5,
    3.0,
    3.5,
    4.0,
    4.5,
    *map(float, range(5, 64)),
    128.0,
    256.0,
    512.0,
)
_MANY, _MESH = 200, 0.02
_LARGE = 600.0  # exponents up to which double precision holds the exponential


def epsilon(counts: Mapping[float, float], delta: float, *, q: float, old: bool) -> float:
    """Return an upper bound on ε at δ = `delta` for a sequence of Gaussian steps on Poisson samples, by Rényi
    differential privacy (RDP).

    - `counts`: noise multiplier σ (noise deviation over sensitivity) → number of steps.
    - `q`: sampling rate, the probability that a step uses a given example or client.
    - `old`: conversion from RDP. True takes the minimum over orders α of RDP + ln(1/δ)/(α - 1), as the moments
      accountant. False takes Canonne, Kamath & Steinke 2020, proposition 12, which is never larger."""
    if len(counts) > _MANY and min(counts) > 0:
        return converted(_interpolated(counts, q), delta, old=old)
    total = sum((count * rdp(q, sigma) for sigma, count in counts.items()), np.zeros(len(ORDERS)))
    return converted(total, delta, old=old)


def _interpolated(counts: Mapping[float, float], q: float) -> NDArray[np.float64]:
    """Return the RDP summed over steps with thousands of distinct σ, by a cubic spline of ln RDP over ln σ. `counts`
    maps σ to its number of steps, and `q` is the sampling rate. The spline is right to seven digits up to order 63
    (tests/test_accounting.py)."""
    at = np.log(np.array(list(counts)))
    first, last = math.floor(at.min() / _MESH) - 2, math.ceil(at.max() / _MESH) + 2
    nodes = _MESH * np.arange(first, last + 1)
    logs = np.log(np.stack([rdp(q, float(np.exp(node))) for node in nodes]))
    curves: NDArray[np.float64] = np.exp(CubicSpline(nodes, logs)(at))
    return np.asarray(np.array(list(counts.values())) @ curves, np.float64)


def converted(total: NDArray[np.float64], delta: float, *, old: bool) -> float:
    """Last step of accounting by Rényi differential privacy (RDP): convert the steps' summed RDP to ε at δ = `delta`.

    - `total` (order,): RDP of all steps together, at each order α in `ORDERS`.
    - `old`: True takes the moments accountant's conversion, min over orders α of RDP + ln(1/δ)/(α - 1). False takes
      Canonne, Kamath & Steinke 2020, proposition 12, which is never larger."""
    orders = np.array(ORDERS)
    of_order = total + math.log(1 / delta) / (orders - 1)
    if not old:
        of_order = of_order + np.log1p(-1 / orders) - np.log(orders) / (orders - 1)
    return float(max(0.0, np.min(of_order)))


@cache
def _rdp(q: float, sigma: float) -> tuple[float, ...]:
    return tuple(_at_order(q, sigma, order) for order in ORDERS)


def rdp(q: float, sigma: float) -> NDArray[np.float64]:
    """Return the Rényi differential privacy of a Gaussian step on a Poisson sample, (order,), at the orders α in
    `ORDERS`, if a row (an example or a client) is added or removed. `q` is the sampling rate, `sigma` the noise
    multiplier σ (noise deviation over sensitivity). q = 1 gives the plain Gaussian's α/2σ², and σ = 0 gives infinity.
    Source: Mironov, Talwar & Zhang 2019."""
    return np.array(_rdp(q, sigma))


def _at_order(q: float, sigma: float, order: float) -> float:
    if q == 0:
        return 0.0
    if sigma == 0:
        return math.inf
    if q == 1:
        return order / (2 * sigma**2)
    log_a = _whole(q, sigma, int(order)) if order.is_integer() else _fractional(q, sigma, order)
    return log_a / (order - 1)


def _whole(q: float, sigma: float, order: int) -> float:
    """Return the log moment for an integer order α: ln Σ_k C(α, k) (1 - q)^(α - k) q^k exp((k² - k)/2σ²). C(α, k) is
    the binomial coefficient, q the sampling rate and σ the noise multiplier (Mironov, Talwar & Zhang 2019, section
    3.3)."""
    k = np.arange(order + 1)
    logs = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    logs = logs + k * math.log(q) + (order - k) * math.log1p(-q) + (k * k - k) / (2 * sigma**2)
    return float(np.logaddexp.reduce(logs))


def _fractional(q: float, sigma: float, order: float) -> float:
    """Return the log moment for any order α: ln E_{x ~ N(0, σ²)} (1 - q + q·exp((2x - 1)/2σ²))^α. q is the sampling
    rate and σ the noise multiplier. The trapezoid rule converges geometrically here. The rule sums the expectation
    minus 1, to keep digits of small values, or the expectation's logarithm if it overflows."""
    x = np.linspace(-14 * sigma, order + 14 * sigma, 40_001)
    log_ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * sigma**2))
    log_density = -(x**2) / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi))
    if order * log_ratio.max() > _LARGE:
        return float(np.logaddexp.reduce(log_density + order * log_ratio) + math.log(x[1] - x[0]))
    return float(np.log1p(np.trapezoid(np.exp(log_density) * np.expm1(order * log_ratio), x)))


def multiplicities(sigmas: Sequence[float], each: int) -> dict[float, int]:
    """Count the steps with equal noise, in the form that accountants take: noise multiplier → number of steps.

    - `sigmas`: noise multipliers for successive rounds or local steps.
    - `each`: number of steps for an entry of `sigmas`."""
    counts: dict[float, int] = {}
    for sigma in sigmas:
        counts[sigma] = counts.get(sigma, 0) + each
    return counts


def grouped(counts: Mapping[float, float]) -> dict[float, float]:
    """Reduce `counts`, noise multiplier → number of steps, to at most 200 multipliers, for the speed of an accountant.
    Adjacent multipliers form a group: the smallest multiplier gets all steps of its group, so ε is never too small."""
    ordered = sorted(counts)
    size = -(-len(ordered) // _MANY)
    return {
        ordered[start]: sum(counts[sigma] for sigma in ordered[start : start + size])
        for start in range(0, len(ordered), size)
    }
