"""The compositions in Fed-αCDP's Table XI (base, advanced, the paper's zCDP), and the exact Gaussian mechanism."""

import math
from collections.abc import Mapping

from scipy.optimize import brentq
from scipy.special import log_ndtr

_LARGE = 700.0  # exponents up to which double precision holds the exponential
SERIES_ROUNDING = 3  # Fed-αCDP rounds a step's ε to this many digits before composition


def classic(sigma: float, delta: float) -> float:
    """Return ε at δ = `delta` for a single Gaussian noise step, by the classic formula √(2 ln(1.25/δ))/σ (Dwork & Roth
    2014, theorem A.1, proved only for ε < 1). `sigma` is the noise multiplier σ: noise deviation over sensitivity. The
    formula is its own inverse: with ε as the argument `sigma`, the result is the σ for this ε."""
    return math.sqrt(2 * math.log(1.25 / delta)) / sigma


def amplified(epsilon: float, q: float) -> float:
    """Return ε of a noise step on a random sample of rows (examples or clients), which is smaller than on all rows
    (amplification by sampling): ln(1 + q(e^ε - 1)). `epsilon` is the step's ε without sampling; `q` is the sampling
    rate, a row's probability to be in the sample."""
    if epsilon > _LARGE:
        return epsilon + math.log(q)
    return math.log1p(q * math.expm1(epsilon))


def _gain(epsilon: float) -> float:
    return math.expm1(epsilon) if epsilon <= _LARGE else math.inf


def of_paper(counts: Mapping[float, float], q: float, delta: float) -> dict[str, float]:
    """Return ε of a training by the compositions in Fed-αCDP's Table XI: name of the composition (`base`, `advanced`,
    `zCDP`) → ε.

    - `counts`: noise multiplier σ (noise deviation over sensitivity) → number of steps.
    - `q`: sampling rate, the probability that a step uses a given example or client.
    - `delta`: δ.

    The compositions, with ρ = Σ q²/σ² over the steps:

    - `base`: Σ ε.
    - `advanced`: √(2 ln(1/δ) Σ ε²) + Σ ε(e^ε - 1) (Dwork & Roth 2014, theorem 3.20). This bound needs another δ, in
      addition to the steps' δ.
    - `zCDP`: ρ + 2√(ρ ln(1/δ)). This ρ is twice that of a Gaussian mechanism, and no theorem proves the factor q²."""
    each = [
        (amplified(round(classic(sigma, delta), SERIES_ROUNDING), q), sigma, count) for sigma, count in counts.items()
    ]
    squares = sum(count * epsilon**2 for epsilon, _, count in each)
    rho = sum(count * q**2 / sigma**2 for _, sigma, count in each)
    return {
        "base": sum(count * epsilon for epsilon, _, count in each),
        "advanced": math.sqrt(2 * squares * math.log(1 / delta))
        + sum(count * epsilon * _gain(epsilon) for epsilon, _, count in each),
        "zCDP": rho + 2 * math.sqrt(rho * math.log(1 / delta)),
    }


def gaussian(multiplier: float, delta: float) -> float:
    """Return the least ε at δ = `delta` for a Gaussian mechanism. `multiplier` m is the noise deviation divided by the
    sensitivity. The formula is exact: δ(ε) = Φ(1/(2m) - εm) - e^ε Φ(-1/(2m) - εm) with the normal distribution function
    Φ (Balle & Wang 2018, theorem 8)."""
    if multiplier <= 0:
        return math.inf

    def excess(epsilon: float) -> float:
        first = float(log_ndtr(0.5 / multiplier - epsilon * multiplier))
        second = epsilon + float(log_ndtr(-0.5 / multiplier - epsilon * multiplier))
        gap = second - first
        return -math.inf if gap >= 0 else first + math.log1p(-math.exp(gap)) - math.log(delta)

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
    return float(brentq(lambda e: max(excess(e), -1e3), 0.0, high, xtol=1e-12))
