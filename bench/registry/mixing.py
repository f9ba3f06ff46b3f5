"""Detect cells with mixed examples: the defense claims stage `input`, and a batch has at least two examples.

The claim is read from the class literal `stages`, so scoring and checking load no plug-in.
"""

from bench.cell import AttackCell
from bench.points import POINTS, Scope
from bench.registry.claimed import stages


def mixes(cell: AttackCell) -> bool:
    """Return whether a defense may mix an example with the next example in its batch; False for an unknown defense."""
    return cell.federated.batch > 1 and "input" in stages(cell.defense.name)


def mixes_alone(cell: AttackCell) -> bool:
    """Return whether mixing is the defense's only effect on examples and gradients."""
    return mixes(cell) and set(stages(cell.defense.name)) == {"input"}


def originals(cell: AttackCell) -> int:
    """Return how many true examples are mixed in a single-example reading: 2 with mixing, otherwise 1.

    A whole batch's reading contains all its true examples anyway, so the result is 1.
    """
    known = POINTS.get(cell.point)
    return 2 if known is not None and known.scope is Scope.EXAMPLE and mixes(cell) else 1
