"""The table of metrics, which measure the distance between a reconstructed example and the true example.

A new metric needs a function in `bench.scoring.metrics`, a line here, and a field in `ExampleScore`.  Summary, board,
page, CSV, `bench show`, `[[published]]` and the submission check read this table."""

from dataclasses import dataclass
from math import inf
from typing import Literal

from bench.kinds.base import Kind
from bench.kinds.images import IMAGE
from bench.kinds.tables import TABLE
from bench.kinds.texts import TEXT

# Candidates that the attack `gallery` names of a single example: what so many attackers together may say.
NAMED_LIST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric of reconstructions, such as PSNR: its name, direction, unit and range, by which tables format and
    compare the values."""

    name: str
    """Name of the field in `ExampleScore`."""
    label: str
    """Name in tables."""
    better: Literal["higher", "lower"]
    """Whether a higher or a lower value means more similar examples."""
    unit: str = ""
    """Unit in tables."""
    decimals: int = 3
    """Number of decimals in tables."""
    percent: bool = False
    """Whether tables show a percentage."""
    kinds: tuple[Kind, ...] = (IMAGE, TABLE)
    """Kinds of data (image, table, text) with this metric."""
    compared: bool = False
    """True if a board compares attacks by this metric for each example, and takes the worst."""
    optional: bool = False
    """True if tables leave the metric out where no row has a value."""
    least: float = -1e3
    """Least value accepted from a paper (`[[published]]`)."""
    most: float = 1e3
    """Greatest value accepted from a paper."""

    @property
    def failed(self) -> float:
        """Value that a failed example (without reconstruction) gets in a median, worse than any number: minus infinity
        if higher values mean more similar examples, otherwise infinity."""
        return -inf if self.better == "higher" else inf


RMSE = Metric(name="rmse", label="RMSE", better="lower", compared=True, least=0, most=10)
RMSE_UNCLIPPED = Metric(name="rmse_unclipped", label="RMSE unclipped", better="lower", least=0)
PSNR_DB = Metric(name="psnr_db", label="PSNR", better="higher", unit="dB", decimals=0, compared=True)
SSIM = Metric(name="ssim", label="SSIM", better="higher", kinds=(IMAGE,), compared=True, least=-1, most=1)
LPIPS = Metric(name="lpips", label="LPIPS", better="lower", kinds=(IMAGE,), compared=True, least=0)
# of another network than LPIPS: the two are never compared
ST_LPIPS = Metric(
    name="st_lpips", label="ST-LPIPS", better="lower", kinds=(IMAGE,), compared=True, optional=True, least=0
)
NUMERIC_RMSE = Metric(name="numeric_rmse", label="numeric RMSE", better="lower", kinds=(TABLE,), least=0)
GROUPS_RIGHT = Metric(
    name="groups_right", label="groups right", better="higher", percent=True, kinds=(TABLE,), least=0, most=1
)
TOKENS_RIGHT = Metric(
    name="tokens_right", label="tokens in place", better="higher", percent=True, kinds=(TEXT,), least=0, most=1
)
TOKEN_RECALL = Metric(
    name="token_recall", label="token recall", better="higher", percent=True, kinds=(TEXT,), least=0, most=1
)
TOKEN_PRECISION = Metric(
    name="token_precision", label="token precision", better="higher", percent=True, kinds=(TEXT,), least=0, most=1
)
ROUGE_1 = Metric(name="rouge_1", label="ROUGE-1", better="higher", percent=True, kinds=(TEXT,), least=0, most=1)
ROUGE_2 = Metric(name="rouge_2", label="ROUGE-2", better="higher", percent=True, kinds=(TEXT,), least=0, most=1)
OVER_PRIOR_TOKENS = Metric(
    name="over_prior_tokens", label="over prior", better="higher", percent=True, kinds=(TEXT,), least=-1, most=1
)
OVER_PRIOR_DB = Metric(name="over_prior_db", label="over prior", better="higher", unit="dB", decimals=1)

METRICS = (
    RMSE,
    RMSE_UNCLIPPED,
    PSNR_DB,
    SSIM,
    LPIPS,
    ST_LPIPS,
    NUMERIC_RMSE,
    GROUPS_RIGHT,
    OVER_PRIOR_DB,
    TOKENS_RIGHT,
    TOKEN_RECALL,
    TOKEN_PRECISION,
    ROUGE_1,
    ROUGE_2,
    OVER_PRIOR_TOKENS,
)
COMPARED = tuple(metric for metric in METRICS if metric.compared)
LEARNED = (LPIPS, ST_LPIPS)  # by trained networks, whose weights a machine may lack


def named(name: str) -> Metric:
    """Return the metric with the field name `name`, such as `psnr_db`."""
    return next(metric for metric in METRICS if metric.name == name)


def of_kind(kind: Kind) -> tuple[Metric, ...]:
    """Return the metrics for the `kind` of data, in the order of tables."""
    return tuple(metric for metric in METRICS if kind in metric.kinds)
