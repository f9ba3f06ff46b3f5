"""Bayesian differential privacy (BDP, Triastcyn & Faltings 2019): ε for data similar to the sampled rows.

    λ    order, an integer           q    probability that the differing row takes part in a round
    x    (‖g - g'‖/s)², per sampled row: squared distance between a round's mean with and without the row, over the
         noise deviation on the mean
    δ'   probability that the estimate for a round's cost is too low

(ε, δ)-BDP bounds the privacy loss over the mechanism *and* the random differing row.  BDP is weaker than DP: an
atypical row has no guarantee."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp, stdtrit

Floats = NDArray[np.float64]
Formula = Literal["code", "paper"]
ORDERS = (*range(1, 33), 40, 48, 64, 96, 128, 256, 511)
LEAST_SAMPLES = 3


def log_moments(x: Sequence[float] | Floats, *, q: float, formula: Formula = "code") -> Floats:
    """First step to Bayesian ε: bound the privacy loss of a round by its log moments, for each row (an example or a
    client) and order λ: (row, λ). The orders are the integers in `ORDERS`. The value is ln E_k exp(k(k - 1)x/2) with k
    ~ Bin(λ + 1, q): the cost c^L of Triastcyn & Faltings 2019, theorem 3. `cost` averages the result over rows.

    - `x` (row,): squared distance between the round's mean with and without the row, over the squared noise deviation.
    - `q`: probability that a row takes part in a round.
    - `formula`: "code" takes c^L only, as the author's code (where c^R equals c^L). "paper" takes the larger of c^L and
      the printed c^R, ln E exp(k(k + 1)x/2), k ~ Bin(λ, q), a loose bound without amplification by sampling."""
    x = np.asarray(x, np.float64)
    moments = _log_mean(x, q, shift=1, sign=-1)
    return moments if formula == "code" else np.maximum(moments, _log_mean(x, q, shift=0, sign=1))


def cost(moments: Floats, *, estimator: float, rounds: int = 1) -> Floats:
    """Second step to Bayesian ε: estimate a round's privacy cost c(λ) at each order λ from a sample of rows (examples
    or clients): (λ,). The cost is the log of an upper bound on the mean of exp(moment) over all rows, by Student's t at
    confidence 1 - δ' (Triastcyn & Faltings 2019, eq. 5). `epsilon` converts the sum over rounds.

    - `moments` (row, λ): log moments of the sampled rows, from `log_moments`.
    - `estimator`: δ', probability that the estimate is too low.
    - `rounds`: T, number of rounds. For T > 1, Hölder's inequality corrects for dependent rounds: the cost is (1/T)·ln
      E exp(T·moment).

    The bound assumes nearly normal values: with a few dominant rows the estimate is too low more often than δ'. Raises
    `ValueError` for fewer than three rows, whose deviation is unreliable."""
    count = len(moments)
    if count < LEAST_SAMPLES:
        raise ValueError(f"a cost needs {LEAST_SAMPLES} sampled rows, got {count}")
    moments = rounds * moments
    top = moments.max(0)
    values = np.exp(moments - top)  # each order's rows, in units of the order's largest row
    bound = values.mean(0) - stdtrit(count - 1, estimator) / math.sqrt(count - 1) * values.std(0)
    result: Floats = (top + np.log(bound)) / rounds
    return result


def epsilon(total: Floats, delta: float, *, estimator: float, estimates: int) -> float | None:
    """Return Bayesian ε of a training at δ = `delta`: the minimum over orders λ of (c(λ) - ln(δ - estimates·δ'))/λ
    (Triastcyn & Faltings 2019, corollary 1). None if no order gives a finite ε.

    - `total` (λ,): privacy costs c(λ) summed over rounds, for each order λ in `ORDERS`.
    - `estimates`, `estimator`: number of estimated costs, and δ', the probability that an estimate is too low. δ
      includes these failures; the result is None if the failures use up δ."""
    remaining = delta - estimates * estimator
    if remaining <= 0:
        return None
    of_order = (total - math.log(remaining)) / np.array(ORDERS)
    best = float(np.min(np.where(np.isfinite(of_order), of_order, np.inf)))
    return max(0.0, best) if math.isfinite(best) else None


def _log_mean(x: Floats, q: float, *, shift: int, sign: int) -> Floats:
    orders = np.array(ORDERS)[:, None] + shift
    k = np.arange(ORDERS[-1] + shift + 1)[None]
    with np.errstate(divide="ignore", invalid="ignore"):
        powers = np.where(k > 0, k * np.log(q), 0.0) + np.where(
            orders > k, (orders - k) * np.log1p(-q) if q < 1 else -np.inf, 0.0
        )
        chances = gammaln(orders + 1) - gammaln(k + 1) - gammaln(np.maximum(orders - k, 0) + 1) + powers
    chances = np.where(k <= orders, chances, -np.inf)
    exponents = (k[0] * k[0] + sign * k[0]) / 2 * x[:, None]
    means: Floats = logsumexp(chances[None] + exponents[:, None], axis=-1)
    return means
