"""By dp-accounting: the Poisson-subsampled Gaussian, tight, and clients drawn without replacement."""

import math
from collections.abc import Mapping

from bench.defenses.accounting.rdp import grouped


def available() -> bool:
    """Whether dp-accounting is installed; without it ε is filled in later, from the record."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        return False
    return True


def epsilon(counts: Mapping[float, float], delta: float, *, q: float) -> float:
    """ε of `counts` steps (whole numbers) at each multiplier σ, at sampling rate `q`, neighbours by adding or removing
    one.  An upper bound: losses are rounded up to a grid, and of more than 200 multipliers neighbouring ones count as
    the smallest of them."""
    import dp_accounting
    from dp_accounting import pld

    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for sigma, count in grouped(counts).items():
        step = dp_accounting.GaussianDpEvent(sigma)
        event = step if q == 1 else dp_accounting.PoissonSampledDpEvent(q, step)
        accountant.compose(event, int(count))
    return float(accountant.get_epsilon(delta))


def without_replacement(counts: Mapping[float, float], delta: float, *, per_round: int, clients: int) -> float:
    """ε of so many rounds at each noise multiplier, neighbours by replacing one of N clients, of whom K are drawn
    without replacement in each round: the Rényi bound of Wang, Balle & Kasiviswanathan 2019 (theorem 9; for the
    Gaussian as dp-accounting has it)."""
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
