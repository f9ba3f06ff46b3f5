"""The learned metrics of a kind of data, as far as this machine has their weights."""

from bench.kinds.base import Kind
from bench.record.metrics import LPIPS, ST_LPIPS
from bench.scoring import lpips_metric, st_lpips_metric
from bench.scoring.weights import Learned


def learned_for(kind: Kind) -> tuple[dict[str, Learned], dict[str, str]]:
    """Load the learned metrics (distances by a trained network, such as LPIPS) for a `kind` of data. Return (metrics,
    absent): the available metrics by name, and for each other learned metric the reason of its absence."""
    metrics, absent = {}, {}
    for metric, load in ((LPIPS, lpips_metric.load), (ST_LPIPS, st_lpips_metric.load)):
        learned, reason = load() if kind in metric.kinds else (None, "images alone have it")
        if learned is not None:
            metrics[metric.name] = learned
        if reason is not None:
            absent[metric.name] = reason
    return metrics, absent
