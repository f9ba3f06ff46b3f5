"""Tight accounting: privacy loss distributions of the Poisson-subsampled Gaussian, by dp-accounting."""

from collections.abc import Mapping

_GROUPS = 200


def available() -> bool:
    """Whether dp-accounting is installed: on a bare machine ε is filled in later, from the record."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        return False
    return True


def epsilon(spent: Mapping[float, float], delta: float, *, q: float) -> float:
    """ε of steps at sampling rate `q`, neighbours by adding or removing one; `spent` says how many steps at
    each multiplier σ (whole numbers).  An upper bound: losses are rounded up to a grid, and of more than
    200 multipliers neighbours count as the smallest of them."""
    import dp_accounting
    from dp_accounting import pld

    accountant = pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for sigma, count in _grouped(spent).items():
        one = dp_accounting.GaussianDpEvent(sigma)
        event = one if q == 1 else dp_accounting.PoissonSampledDpEvent(q, one)
        accountant.compose(event, int(count))
    return float(accountant.get_epsilon(delta))


def _grouped(spent: Mapping[float, float]) -> dict[float, float]:
    ordered = sorted(spent)
    size = -(-len(ordered) // _GROUPS)
    return {
        ordered[start]: sum(spent[sigma] for sigma in ordered[start : start + size])
        for start in range(0, len(ordered), size)
    }
