"""The published suites: fixed matrices, and whether a run of one can be ranked.

A suite that has a version is frozen: its attacks, budgets and conditions, under one protocol.  A stronger attack makes
the next version, or stands beside it as `extra`, so that rows of one version stay comparable.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import PROTOCOL, __version__
from bench.matrix.document import PRESETS

SUITES = ("smoke", "standard", "extra")
VERSIONS = {"standard": "standard-v1"}


def title(name: str) -> str:
    """A suite's name with its version."""
    return VERSIONS.get(name, name)


def ranking(name: str, path: Path, overrides: Sequence[str] = (), folder: Path = PRESETS) -> dict[str, Any]:
    """Whether a run of suite `name` from the matrix at `path` is ranked, as JSON types: run as it was shipped, so that
    its figures compare with those of other people's runs.

    `overrides` are the options that change the suite's configuration.  `why_not` is empty where the run is ranked.
    """
    why = [f"{option} changes the suite's configuration" for option in overrides]
    shipped = f"{name}.toml"
    if path.resolve() != (folder / shipped).resolve():
        why.insert(0, f"the matrix is not the shipped {shipped}")
    return {"suite": title(name), "protocol": PROTOCOL, "bench": __version__, "ranked": not why, "why_not": why}


def ranking_line(ranking: dict[str, Any]) -> str:
    """What `ranking` gives, on one line."""
    verdict = "ranked" if ranking["ranked"] else f"unranked: {'; '.join(ranking['why_not'])}"
    return f"suite {ranking['suite']}, protocol {ranking['protocol']}: {verdict}"
