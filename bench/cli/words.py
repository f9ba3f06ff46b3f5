"""Format durations and suggestions as text."""

from collections.abc import Iterable
from difflib import get_close_matches


def meant(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return a question for an error message that suggests the name in `known` nearest to the mistyped `name`; if no
    name is near, return the text `otherwise`."""
    near = get_close_matches(name[:100], list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else otherwise


def duration(seconds: float) -> str:
    """Return a duration in `seconds` as text, such as 40 s, 12 min or 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def estimate(seconds: float, span: tuple[float, float] | None, jobs: int) -> str:
    """Return a text on the wall time to expect for CPU `seconds` on `jobs` workers. `span` holds the least and most CPU
    seconds that similar published runs took; None leaves them out."""
    if span is None:
        return duration(seconds / jobs)
    least, most = (duration(end / jobs) for end in span)
    return f"{duration(seconds / jobs)} (published defenses: {least} to {most})"


def seconds(text: str) -> float:
    """Return the number of seconds in the duration `text`, such as `90`, `90s`, `30m` or `2h`; raises `ValueError` for
    other text."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "s")
    time = float(number) * _UNITS[unit]
    if not 0 < time < float("inf"):
        raise ValueError(text)
    return time


_UNITS = {"s": 1, "m": 60, "h": 3600}
