"""Cells with mixed examples: the defense's `stages` include `input`, and a batch has at least two examples.

`stages` is read from the source text, so scores and checks load no plug-in."""

from bench.cell import AttackCell
from bench.points import POINTS, Scope
from bench.registry.claimed import stages


def mixes(cell: AttackCell) -> bool:
    """Return whether the defense in `cell` (the experiment) may mix each example with another example of its batch, as
    mixup does; False for an unknown defense."""
    return cell.federated.batch > 1 and "input" in stages(cell.defense.name)


def mixes_alone(cell: AttackCell) -> bool:
    """Return whether mixing of examples is the only effect of the defense in `cell` (the experiment); False if the
    defense does not mix."""
    return mixes(cell) and set(stages(cell.defense.name)) == {"input"}


def originals(cell: AttackCell) -> int:
    """Return the number of true examples that may be mixed in a reading (observed update) of a single example: 2 if the
    defense in `cell` (the experiment) mixes examples, otherwise 1. The number is also 1 for a reading of a whole batch,
    which contains all true examples."""
    known = POINTS.get(cell.point)
    return 2 if known is not None and known.scope is Scope.EXAMPLE and mixes(cell) else 1
