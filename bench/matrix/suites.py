"""The benchmark's suites: matrices which never change, and the rule for a ranked run.

A suite's version fixes attacks, budgets and conditions under an evaluation protocol.  A stronger attack goes into the
next version, or into the suite `extra`, so that rows with equal version stay comparable.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import PROTOCOL, __version__
from bench.matrix.document import PRESETS

SUITES = ("smoke", "standard", "extra")
VERSIONS = {"standard": "standard-v1"}


def title(name: str) -> str:
    return VERSIONS.get(name, name)


def ranking(name: str, path: Path, overrides: Sequence[str] = (), folder: Path = PRESETS) -> dict[str, Any]:
    """Return whether a run of suite `name` is ranked, the reasons against, and versions, as JSON types.

    A run is ranked if `path` is the suite's matrix in `folder`, and `overrides` (command-line options which change
    cells) is empty.
    """
    why = [f"{option} changes the suite's configuration" for option in overrides]
    shipped = f"{name}.toml"
    if path.resolve() != (folder / shipped).resolve():
        why.insert(0, f"the matrix is not the shipped {shipped}")
    return {"suite": title(name), "protocol": PROTOCOL, "bench": __version__, "ranked": not why, "why_not": why}


def ranking_line(ranking: dict[str, Any]) -> str:
    verdict = "ranked" if ranking["ranked"] else f"unranked: {'; '.join(ranking['why_not'])}"
    return f"suite {ranking['suite']}, protocol {ranking['protocol']}: {verdict}"
