"""What would answer a cell in a run: the code of bench and of the cell's entries, and the weights by content."""

from dataclasses import replace
from pathlib import Path

from bench.cell import AttackCell, CheckpointWeights, TrainingCell
from bench.errors import BenchError, NotApplicable
from bench.record import fingerprint
from bench.record.checkpoints import checkpoint_sha256
from bench.record.schema import Provenance


def provenance(cell: AttackCell | TrainingCell, run: Path) -> Provenance:
    """The provenance that a record of this cell would have if it ran now."""
    code = fingerprint.of_cell(cell)
    if not (isinstance(cell, AttackCell) and isinstance(cell.weights, CheckpointWeights)):
        return code
    try:
        weights = checkpoint_sha256(run, cell.weights.training, cell.weights.round)
    except (BenchError, NotApplicable) as reason:
        weights = str(reason)
    return replace(code, weights=weights)
