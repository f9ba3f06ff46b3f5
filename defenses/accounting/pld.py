"""ε from the library dp-accounting: Poisson-subsampled Gaussian steps, and clients drawn without replacement."""

import math
from collections.abc import Mapping

from bench.defenses.accounting.rdp import grouped


def available() -> bool:
    """Return whether the optional library dp-accounting is installed, which computes the tightest ε for Poisson
    sampling. Without the library, a record lacks this ε, which can later be computed from the record."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        return False
    return True


def epsilon(counts: Mapping[float, float], delta: float, *, q: float) -> float:
    """Return an upper bound on ε at δ = `delta` for a sequence of Gaussian steps, each on a Poisson sample of the rows
    (examples or clients). Neighbouring data sets differ by an added or removed row.

    - `counts`: noise multiplier σ (noise deviation over sensitivity) → number of steps. Above 200 multipliers, adjacent
      multipliers are grouped; the smallest counts for its group.
    - `q`: sampling rate, a row's probability to be in a sample.

    The library dp-accounting adds the steps' privacy losses, rounded up to a grid."""
    import dp_accounting
    from dp_accounting import pld

    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for sigma, count in grouped(counts).items():
        step = dp_accounting.GaussianDpEvent(sigma)
        event = step if q == 1 else dp_accounting.PoissonSampledDpEvent(q, step)
        accountant.compose(event, int(count))
    return float(accountant.get_epsilon(delta))


def without_replacement(counts: Mapping[float, float], delta: float, *, per_round: int, clients: int) -> float:
    """Return an upper bound on ε at δ = `delta` of a training with Gaussian noise in each round. Each round draws
    `per_round` of `clients` clients without replacement; neighbouring data sets differ by a replaced client.

    - `counts`: noise multiplier (noise deviation over sensitivity) → number of rounds.

    The bound is the Rényi bound by Wang, Balle & Kasiviswanathan 2019 (theorem 9; for the Gaussian, as in
    dp-accounting)."""
    import dp_accounting
    from dp_accounting import rdp

    if min(counts) <= 0:
        return math.inf
    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    for multiplier, count in grouped(counts).items():
        step = dp_accounting.GaussianDpEvent(multiplier)
        drawn = dp_accounting.SampledWithoutReplacementDpEvent(clients, per_round, step)
        accountant.compose(step if per_round == clients else drawn, int(count))
    return float(accountant.get_epsilon(delta))
