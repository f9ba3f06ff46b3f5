"""Upper bound on the share of examples that any attacker recognises in a reading (an observed update), given a proved
ε.

The bound also holds for an attacker with further knowledge."""

from math import exp, sqrt

from scipy.special import betainc, ndtr, ndtri

from bench.epsilon import Epsilon

_SURE = 1e-3  # probability below which a share above its ceiling refutes the ceiling
_LARGE = 700.0  # exponents up to which double precision holds the exponential


def ceiling(figure: Epsilon | None, chance: float) -> float | None:
    """Return an upper bound, in [0, 1], on the share of examples that any attacker can recognise in a reading (an
    observed update); None if no bound is proved. An example is recognised if the attacker picks it among
    candidates, by a reconstruction or otherwise.

    - `figure`: ε at the attacker's interception point; None: no ε.
    - `chance`: κ, the success rate of a blind guess without the reading; for lists of k guesses, k times the rate of a
      single guess.

    Formulas:

    - Gaussian noise: Φ(Φ⁻¹(κ) + μ√u). Φ is the standard normal distribution function, and u the number of releases that
      use the row (an example's gradient or a client's update). μ is the reading's change if the row becomes zero, in
      standard deviations of the noise.
    - Pure ε (δ = 0): min(e^ε κ, 1 - e^-ε (1 - κ)).

    Sources: Balle, Cherubin & Hayes 2022; Hayes, Mahloujifar & Balle 2023; Kaissis et al. 2023."""
    if figure is None or figure.epsilon is None:
        return None
    if chance >= 1:
        return 1.0
    if figure.multiplier is None:
        if figure.delta:
            return None
        grown = exp(figure.epsilon) * chance if figure.epsilon < _LARGE else 1.0
        return min(1.0, grown, 1 - exp(-figure.epsilon) * (1 - chance))
    # A release of a sum: a replaced row moves the sum by up to twice the norm of a removed row.
    removed = figure.removed_multiplier or 2 * min(figure.multiplier)
    return float(ndtr(ndtri(chance) + sqrt(figure.steps) / removed))


def exceeded(share: float, trials: float, limit: float | None) -> bool:
    """Return whether a measured `share` of successes among `trials` independent trials refutes the upper bound `limit`
    on the success rate. The bound is refuted if at least this many successes have a probability below 0.001 for a
    success rate of `limit` (binomial test). A bound of None is never refuted."""
    if limit is None or limit >= 1 or not share:
        return False
    hits = share * trials
    return bool(betainc(hits, trials - hits + 1, limit) < _SURE)
