"""The table of metrics: how far one reconstructed example is from its truth, and what each figure means.

A metric is a function in `bench.scoring` (most in `metrics`), a row here, and a field of `ExampleScore`.  The summary,
the worst case, the board, the page, CSV, `bench show` and the check of submissions (`bench.submission.figures`) read
this table.
"""

from dataclasses import dataclass
from math import inf
from typing import Literal

from bench.kinds.base import Kind
from bench.kinds.images import IMAGE
from bench.kinds.tables import TABLE

# Candidates that the attack `gallery` names of a single example: what so many attackers together may say.
NAMED_LIST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """`name` is the field of `ExampleScore`; `better` says which way is nearer to the truth.

    `label`, `unit` and `decimals` are for tables; `percent` figures are shares.  `kinds` are the data that have it.
    `compared` metrics are kept for each example of the records that a board holds in memory (`bench.record.compact`),
    so that it can show the worst case.
    """

    name: str
    label: str
    better: Literal["higher", "lower"]
    unit: str = ""
    decimals: int = 3
    percent: bool = False
    kinds: tuple[Kind, ...] = (IMAGE, TABLE)
    compared: bool = False

    @property
    def failed(self) -> float:
        """What an example that failed counts as in a median: worse than any number."""
        return -inf if self.better == "higher" else inf


RMSE = Metric(name="rmse", label="RMSE", better="lower", compared=True)
RMSE_UNCLIPPED = Metric(name="rmse_unclipped", label="RMSE unclipped", better="lower")
PSNR_DB = Metric(name="psnr_db", label="PSNR", better="higher", unit="dB", decimals=0, compared=True)
SSIM = Metric(name="ssim", label="SSIM", better="higher", kinds=(IMAGE,), compared=True)
LPIPS = Metric(name="lpips", label="LPIPS", better="lower", kinds=(IMAGE,), compared=True)
NUMERIC_RMSE = Metric(name="numeric_rmse", label="numeric RMSE", better="lower", kinds=(TABLE,))
GROUPS_RIGHT = Metric(name="groups_right", label="groups right", better="higher", percent=True, kinds=(TABLE,))
OVER_PRIOR_DB = Metric(name="over_prior_db", label="over prior", better="higher", unit="dB", decimals=1)

METRICS = (RMSE, RMSE_UNCLIPPED, PSNR_DB, SSIM, LPIPS, NUMERIC_RMSE, GROUPS_RIGHT, OVER_PRIOR_DB)
COMPARED = tuple(metric for metric in METRICS if metric.compared)


def named(name: str) -> Metric:
    """The metric of this name."""
    return next(metric for metric in METRICS if metric.name == name)


def of_kind(kind: Kind) -> tuple[Metric, ...]:
    """The metrics of a kind of data."""
    return tuple(metric for metric in METRICS if kind in metric.kinds)
