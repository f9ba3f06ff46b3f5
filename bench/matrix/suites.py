"""The published suites: fixed matrices, and whether a run of one can be ranked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import PROTOCOL, __version__
from bench.matrix.border import Border
from bench.matrix.document import PRESETS
from bench.matrix.faults import nearest, quoted

SUITES = ("smoke", "standard", "plus")


def suite(border: Border, raw: Any) -> str | None:
    """The name that a matrix gives at `suite`, or None, with a fault where there is no such suite."""
    if raw is None or (isinstance(raw, str) and raw in SUITES):
        return raw
    if isinstance(raw, str):
        border.faults.add("suite", f"unknown suite {quoted(raw)}", nearest(raw, SUITES))
    else:
        border.bad("suite", "the name of a suite", raw, f'suite = "{SUITES[0]}"')
    return None


def ranking(name: str, path: Path, overrides: Sequence[str] = (), folder: Path = PRESETS) -> dict[str, Any]:
    """What a run of suite `name` from the matrix at `path` says of itself, as JSON types.

    `overrides` are the options that change what the suite asks.  `why_not` is empty where the run is ranked.
    """
    why = [f"{option} changes what the suite asks" for option in overrides]
    shipped = f"{name}.toml"
    if path.resolve() != (folder / shipped).resolve():
        why.insert(0, f"the matrix is not the shipped {shipped}")
    return {
        "suite": name, "protocol": PROTOCOL, "bench": __version__, "ranked": not why, "why_not": why,
    }  # fmt: skip


def said(found: dict[str, Any]) -> str:
    """One line on what `ranking` found."""
    verdict = "ranked" if found["ranked"] else f"unranked: {'; '.join(found['why_not'])}"
    return f"suite {found['suite']}, protocol {found['protocol']}: {verdict}"
