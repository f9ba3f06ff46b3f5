"""The most that any attacker recognises behind a proved ε: of an example, in a reading, whatever he knows besides.

κ  what blind guesses reach     μ  what one row moves, over the noise     u  uses of the row in a reading
"""

from math import exp, sqrt

from scipy.special import betainc, ndtr, ndtri

from bench.epsilon import Epsilon

_SURE = 1e-3  # of a measured share above its ceiling by chance
_LARGE = 700.0  # exponents up to which double precision holds the exponential


def ceiling(figure: Epsilon | None, chance: float) -> float | None:
    """The share of examples that any attacker recognises at most, in [0, 1]; None where nothing is proved.

    `figure` is the ε at the tap, `chance` κ, the most that guesses reach which saw nothing: a list of k guesses has k
    times one's.  A Gaussian release, neighbours with this row's gradient zero: Φ(Φ⁻¹(κ) + μ√u); a pure ε:
    min(e^ε κ, 1 - e^-ε (1 - κ)) (Balle, Cherubin & Hayes 2022; Hayes, Mahloujifar & Balle 2023; Kaissis et al. 2023).
    """
    if figure is None or figure.epsilon is None:
        return None
    if chance >= 1:
        return 1.0
    if figure.multiplier is None:
        if figure.delta:
            return None
        grown = exp(figure.epsilon) * chance if figure.epsilon < _LARGE else 1.0
        return min(1.0, grown, 1 - exp(-figure.epsilon) * (1 - chance))
    replaced = min(figure.multiplier)  # noise over what replacing a row moves, twice what leaving it out does
    return float(ndtr(ndtri(chance) + sqrt(figure.steps) / (2 * replaced)))


def exceeded(share: float, trials: float, limit: float | None) -> bool:
    """Whether so large a share of independent trials refutes the ceiling: P(at least as many | ceiling) < 0.001, by the
    binomial law."""
    if limit is None or limit >= 1 or not share:
        return False
    hits = share * trials
    return bool(betainc(hits, trials - hits + 1, limit) < _SURE)
