"""The published suites: fixed matrices, and whether a run of one can be ranked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import PROTOCOL, __version__
from bench.matrix.document import PRESETS

SUITES = ("smoke", "standard", "plus")


def ranking(name: str, path: Path, overrides: Sequence[str] = (), folder: Path = PRESETS) -> dict[str, Any]:
    """Whether a run of suite `name` from the matrix at `path` is ranked, as JSON types: run as it was shipped, so that
    its figures compare with those of other people's runs.

    `overrides` are the options that change the suite's configuration.  `why_not` is empty where the run is ranked.
    """
    why = [f"{option} changes the suite's configuration" for option in overrides]
    shipped = f"{name}.toml"
    if path.resolve() != (folder / shipped).resolve():
        why.insert(0, f"the matrix is not the shipped {shipped}")
    return {
        "suite": name, "protocol": PROTOCOL, "bench": __version__, "ranked": not why, "why_not": why,
    }  # fmt: skip


def ranking_line(ranking: dict[str, Any]) -> str:
    """What `ranking` gives, on one line."""
    verdict = "ranked" if ranking["ranked"] else f"unranked: {'; '.join(ranking['why_not'])}"
    return f"suite {ranking['suite']}, protocol {ranking['protocol']}: {verdict}"
