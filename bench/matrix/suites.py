"""The benchmark's suites: matrices which never change, and the rule for a ranked run.

A suite's version fixes attacks, budgets and conditions under an evaluation protocol.  A stronger attack goes into the
next version, or into the suite `extra`, so that rows with equal version stay comparable.  The suite `attacks` fixes
conditions and budgets; its rows are attacks."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import PROTOCOL, __version__
from bench.errors import MatrixError
from bench.matrix.document import PRESETS, document, located
from bench.matrix.messages import Errors

TRADEOFF = "standard"  # accuracy at equal leakage (`bench calibrate`), not a matrix of fixed cells
ATTACKS = "attacks"  # the suite whose rows are attacks
SUITES = ("smoke", "standard", "extra", ATTACKS)  # as matrices declare them
VERSIONS = {"standard": "standard-v1", ATTACKS: "attacks-v1"}
MATRICES = {VERSIONS["standard"]: "standard"}  # suite → its matrix, if the names differ
OF_DEFENSES = ("smoke", *MATRICES, "extra")  # suites whose rows are defenses, with fixed cells


def title(name: str) -> str:
    """Return the public name of the suite `name`, with its version if it has one, such as `standard-v1`."""
    return VERSIONS.get(name, name)


def suite_of(source: str | Path, folder: Path = PRESETS) -> str | None:
    """Return the name of the suite (a fixed set of experiments) that the matrix file `source` declares; None without a
    suite, or if the file cannot be read. `source` is a file, or the name of a preset in `folder`."""
    errors = Errors(str(source))
    try:
        name = document(located(source, errors, folder), errors).get("suite")
    except MatrixError:
        return None
    return name if name in SUITES else None


def draw_key(matrix: Path, seed: int) -> str:
    """Return the key of a second sample of attacked examples (`AttackCell.victims`): `seed`, and a hash over the file
    `matrix` and the seed. The user chooses the seed after the attack is written, so that the attack cannot be tuned to
    these examples."""
    digest = hashlib.sha256(f"{seed}\n".encode() + matrix.read_bytes()).hexdigest()
    return f"{seed}-{digest[:16]}"


def ranking(name: str, path: Path, overrides: Sequence[str] = (), folder: Path = PRESETS) -> dict[str, Any]:
    """Return a summary of the run of a suite (a fixed set of experiments) as JSON types: whether the run is ranked
    (unmodified), the reasons if not, and versions.

    - `name`: name of the suite.
    - `path`: the run's matrix file, which must be the suite's file in `folder`.
    - `overrides`: command-line options that change the configurations; a ranked run has none."""
    why = [f"{option} changes the suite's configuration" for option in overrides]
    shipped = f"{name}.toml"
    if path.resolve() != (folder / shipped).resolve():
        why.insert(0, f"the matrix is not the shipped {shipped}")
    return {"suite": title(name), "protocol": PROTOCOL, "bench": __version__, "ranked": not why, "why_not": why}


def ranking_line(ranking: dict[str, Any]) -> str:
    """Return the summary `ranking` of a suite's run as a line of text: ranked, or unranked with the reasons."""
    verdict = "ranked" if ranking["ranked"] else f"unranked: {'; '.join(ranking['why_not'])}"
    return f"suite {ranking['suite']}, protocol {ranking['protocol']}: {verdict}"
