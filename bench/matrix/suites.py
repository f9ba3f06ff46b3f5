"""The published suites: fixed matrices, and the rule for a ranked run.

A suite with a version never changes: attacks, budgets and conditions under a protocol.  A stronger attack goes into the
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
    """Return, as JSON types, whether a run of suite `name` from the matrix at `path` is ranked.

    A ranked run uses bench's matrix and no `overrides` (options which change the configuration); `why_not` is then
    empty.
    """
    why = [f"{option} changes the suite's configuration" for option in overrides]
    shipped = f"{name}.toml"
    if path.resolve() != (folder / shipped).resolve():
        why.insert(0, f"the matrix is not the shipped {shipped}")
    return {"suite": title(name), "protocol": PROTOCOL, "bench": __version__, "ranked": not why, "why_not": why}


def ranking_line(ranking: dict[str, Any]) -> str:
    verdict = "ranked" if ranking["ranked"] else f"unranked: {'; '.join(ranking['why_not'])}"
    return f"suite {ranking['suite']}, protocol {ranking['protocol']}: {verdict}"
