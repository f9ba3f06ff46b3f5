"""Tight accounting: privacy loss distributions of the Poisson-subsampled Gaussian, by dp-accounting."""

from collections.abc import Mapping

_GROUPS = 200


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
    for sigma, count in _grouped(counts).items():
        step = dp_accounting.GaussianDpEvent(sigma)
        event = step if q == 1 else dp_accounting.PoissonSampledDpEvent(q, step)
        accountant.compose(event, int(count))
    return float(accountant.get_epsilon(delta))


def _grouped(counts: Mapping[float, float]) -> dict[float, float]:
    ordered = sorted(counts)
    size = -(-len(ordered) // _GROUPS)
    return {
        ordered[start]: sum(counts[sigma] for sigma in ordered[start : start + size])
        for start in range(0, len(ordered), size)
    }
