"""Format figures as text, equal in all output forms; None becomes a dash."""

from math import inf, isfinite

from bench.record.metrics import Metric

NONE = "–"
ALL = 0.995  # a ceiling at or above this share bounds no attacker


def share(value: float | None, places: int = 0) -> str:
    """Format a share, `value` in [0, 1], in percent with `places` decimals, such as 68 %; None becomes a dash. Below 1
    % and above 99 %, a further decimal avoids rounding to 0 or 100."""
    if value is None or not isfinite(value):
        return NONE
    percent = 100 * value
    inside = 0 < abs(percent) < 1 or 99 < abs(percent) < 100
    return f"{percent:.{max(places, 1 if inside else 0)}f} %".replace("-", "−")


def fine(value: float | None) -> str:
    """Format `value`, a share in [0, 1] that may be small, such as a chance level: 13 %, 3.1 %, 0.04 %; None becomes a
    dash."""
    return share(value, 0 if value is None or value >= 0.1 else 1 if value >= 0.01 else 2)


def interval(ends: tuple[float, float] | None) -> str:
    """Format the `ends` (low, high) of a share's 95 % interval, both in [0, 1], in percent: 52–81 %; None becomes a
    dash."""
    if ends is None:
        return NONE
    low, high = (share(end) for end in ends)
    return f"{low.removesuffix(' %')}–{high}" if not low.startswith("−") else f"{low} to {high}"


def rate(asr: float | None, *, lower_bound: bool) -> str:
    """Format the attack success rate `asr` in [0, 1] in percent, such as ≥ 68 % with `lower_bound`; None becomes a
    dash."""
    return ("≥ " if lower_bound and asr is not None else "") + share(asr)


def figure(metric: Metric, value: float | None) -> str:
    """Format the `value` of `metric` (such as PSNR) with the metric's unit, such as 0.145, 31 dB or 92 %; None and
    infinity become a dash."""
    if metric.percent:
        return share(value)
    unit = f" {metric.unit}" if metric.unit else ""
    if value is None or not isfinite(value):
        return NONE + unit
    return f"{value:.{metric.decimals}f}{unit}"


def epsilon(value: float | None) -> str:
    """Format ε, `value`, with two digits, as a whole number from 100, and by magnitude from 1000: 0.97, 1.3, 423, 3e5.
    None and infinity become a dash."""
    if value is not None and 1000 <= value < inf:
        return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
    return formatted(value, ".0f" if value is not None and value >= 99.5 else ".2g")


def formatted(value: float | None, form: str = "g") -> str:
    """Format a figure `value` by the Python format `form`, such as `.3g`; None, NaN and infinity become a dash."""
    return NONE if value is None or not isfinite(value) else format(value, form)


def bracketed(share: float, low: float, high: float) -> str:
    """Format a `share` with the ends `low` and `high` of its interval, all in [0, 1], in percent but without the
    percent sign: `2.9 [1.7–5.0]`."""
    return f"{100 * share:.1f} [{100 * low:.1f}–{100 * high:.1f}]"
