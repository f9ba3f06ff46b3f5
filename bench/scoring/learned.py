"""The learned metrics of a kind of data, as far as this machine has their weights."""

from bench.kinds.base import Kind
from bench.record.metrics import LPIPS, ST_LPIPS
from bench.scoring import lpips_metric, st_lpips_metric
from bench.scoring.weights import Learned


def learned_for(kind: Kind) -> tuple[dict[str, Learned], dict[str, str]]:
    """Return (metrics, absent): the available learned metrics for this `kind` of data by name, and a map from the name
    of each other learned metric to the reason."""
    metrics, absent = {}, {}
    for metric, load in ((LPIPS, lpips_metric.load), (ST_LPIPS, st_lpips_metric.load)):
        learned, reason = load() if kind in metric.kinds else (None, "images alone have it")
        if learned is not None:
            metrics[metric.name] = learned
        if reason is not None:
            absent[metric.name] = reason
    return metrics, absent
