"""A record's figures as people read them: shares with intervals, a bound where it is one, no NaN."""

from collections.abc import Mapping, Sequence
from typing import Any

_BARS = "▁▂▃▄▅▆▇█"


def percent(share: float | None) -> str:
    """A share for people: 66.7 %; a dash where there is none."""
    return "–" if share is None else f"{100 * share:.1f} %"


def interval(summary: Mapping[str, Any], name: str) -> str:
    """A share with its interval, out of a record's summary: 66.7 % [20.8, 93.9]."""
    low, high = summary.get(f"{name}_low"), summary.get(f"{name}_high")
    ends = "" if low is None or high is None else f" [{100 * low:.1f}, {100 * high:.1f}]"
    return percent(summary.get(name)) + ends


def asr(summary: Mapping[str, Any]) -> str:
    """The attack success rate with its interval, "≥" where it is a lower bound."""
    return ("≥ " if summary.get("lower_bound") else "") + interval(summary, "asr")


def figure(value: float | None, unit: str = "") -> str:
    """A number to three digits with its unit; a dash where there is none."""
    return "–" if value is None else f"{value:.3g}{unit}"


def sparkline(shares: Sequence[float | None]) -> str:
    """Shares from 0 to 1 as bars of text, one each; a dot where there is none."""
    top = len(_BARS) - 1
    return "".join("·" if share is None else _BARS[round(min(max(share, 0), 1) * top)] for share in shares)
