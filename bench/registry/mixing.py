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
    """Return whether mixing of examples (as in mixup) is the only effect of the defense in `cell` (the experiment): its
    random draws then add no noise to the update. False if the defense does not mix."""
    return mixes(cell) and set(stages(cell.defense.name)) == {"input"}


def originals(cell: AttackCell) -> int:
    """Return the number of true examples that a reconstruction may show: 2 if the reading (observed update) is of a
    single example and the defense in `cell` (the experiment) mixes each example with another example, otherwise 1. A
    reading of a whole batch already has all examples of the mixtures as victims, so the number is 1."""
    known = POINTS.get(cell.point)
    return 2 if known is not None and known.scope is Scope.EXAMPLE and mixes(cell) else 1
