"""Report of an assessment as a single offline page, next to its pictures."""

import json
from pathlib import Path

from bench.assess.result import TITLES, Assessment
from bench.leaderboard.forms import offline
from bench.record.files import write_atomically

FILE, JSON = "report.html", "report.json"


def write(folder: Path, result: Assessment) -> Path:
    """Write the report `result` of an assessment into `folder`, as an HTML page and as JSON; return the page's path.
    The folder must already hold the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    text = offline.render(
        offline.environment(),
        "assess.html",
        images="'self' file:",
        title="Assessment of a client",
        result=result,
        titles=TITLES,
        percent=percent,
        sentence=_sentence,
    )
    write_atomically(folder / JSON, (json.dumps(result.json(), indent=1, allow_nan=False) + "\n").encode())
    write_atomically(folder / FILE, text.encode())
    return folder / FILE


def percent(share: float | None) -> str:
    """Return a `share` in [0, 1] as text, a percentage; a dash for None."""
    if share is None:
        return "–"
    return f"{100 * share:.0f} %" if share in (0, 1) or share >= 0.1 else f"{100 * share:.1f} %"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
