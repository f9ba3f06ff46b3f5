"""A record's provenance: hashes of code and weights, and in a cascade the numbers of the readings to attack."""

from dataclasses import replace
from pathlib import Path

from bench.cell import AttackCell, CheckpointWeights, TrainingCell, Weights
from bench.errors import BenchError, NotApplicable
from bench.record import fingerprint
from bench.record.cascade import left
from bench.record.checkpoints import locate, training_id
from bench.record.schema import Provenance


def provenance(cell: AttackCell | TrainingCell, run: Path) -> Provenance:
    """Return the provenance of a cell (an experiment), by which an old record is recognised as outdated: hashes of code
    and weights, and in a cascade (attacks one after the other) the readings to attack. It is the provenance that the
    record would have if the cell ran now in the run folder `run`."""
    code = fingerprint.of_cell(cell)
    if not isinstance(cell, AttackCell):
        return code
    if cell.after:
        try:
            code = replace(code, left=left(cell, run))
        except BenchError:  # earlier cells in the cascade have not run
            code = replace(code, left=())
    if training_id(cell) is None:
        return code
    try:
        weights = _checkpoints(run, cell.weights)
    except (BenchError, NotApplicable) as reason:
        weights = str(reason)
    return replace(code, weights=weights)


def _checkpoints(run: Path, weights: Weights) -> str | None:
    """Return the hash of the weights, of several rounds the hashes in a row."""
    if not isinstance(weights, CheckpointWeights):
        return locate(run, weights).sha256
    return " ".join(str(locate(run, each).sha256) for each in weights.single)
