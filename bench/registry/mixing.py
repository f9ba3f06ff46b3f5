"""Cells with mixed examples: the defense claims stage `input`, and a batch has at least two examples.

Read from the class literal `stages`, so scoring and checking load no plug-in.
"""

from bench.cell import AttackCell
from bench.points import POINTS, Scope
from bench.registry.claimed import stages

EITHER = "its defense mixes examples before their gradient: one leaks if either of its originals comes back"


def mixes(cell: AttackCell) -> bool:
    """Whether an example may be mixed with the next one of its batch; no for a defense that is not here."""
    return cell.federated.batch > 1 and "input" in stages(cell.defense.name)


def mixes_alone(cell: AttackCell) -> bool:
    """Whether it is mixed, and nothing else is done to it or its gradient."""
    return mixes(cell) and set(stages(cell.defense.name)) == {"input"}


def originals(cell: AttackCell) -> int:
    """Of how many examples a reading of one example may be: 2 where it may be mixed, else 1.  A reading of whole
    batches holds all of its originals."""
    known = POINTS.get(cell.point)
    return 2 if known is not None and known.scope is Scope.EXAMPLE and mixes(cell) else 1
