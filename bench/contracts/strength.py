"""Contract for a declared strength: a stronger value moves the reading further from the undefended reading."""

from itertools import pairwise

from bench.contracts.base import ContractSkipped, require
from bench.contracts.trials import first_trial
from bench.defenses.base import Defense
from bench.defenses.strength import at_strength
from bench.points import GRADIENT_STAGES
from bench.rows import flattened

_POSITIONS = (0.0, 0.25, 0.5, 0.75, 1.0)
_DRAWS = 4  # of random numbers, whose squared distances are averaged
_SLACK = 0.97  # least factor from a distance to the next; averages over a gradient's coordinates scatter by 1 %
_LEAST = 1.2  # least factor from the weak end's distance to the strong end's


def strength(defense: Defense) -> None:
    """Check a defense's declared strength (the parameter for more or less protection). Five values from weak to strong
    are tested. Each must move the output at least as far from the undefended tensors as the weaker value before it, to
    3 %, and the strongest clearly further than the weakest. Raises `ContractBroken` otherwise.

    The distance is the squared norm of the change, divided by the squared norm of the undefended tensors. Other
    parameters have their defaults, if all have one."""
    declared = type(defense).strength
    if declared is None:
        raise ContractSkipped("it declares no strength")
    base = _with_defaults(defense)
    moved = [_moved(at_strength(base, position)) for position in _POSITIONS]
    ends = (
        f"the reading moves by {moved[0] ** 0.5:.3g} of its norm at {declared.weak:g} (weak) and by "
        f"{moved[-1] ** 0.5:.3g} at {declared.strong:g} (strong)"
    )
    require(moved[-1] >= moved[0], f"strength {declared.parameter} works backwards: {ends}; exchange weak and strong")
    for (first, before), (second, after) in pairwise(zip(_POSITIONS, moved, strict=True)):
        require(
            after >= _SLACK * before,
            f"strength {declared.parameter} is not monotone: the reading moves by {before**0.5:.3g} of its norm at "
            f"{declared.value(first):.3g} and by {after**0.5:.3g} at the stronger {declared.value(second):.3g}",
        )
    require(moved[-1] >= _LEAST * moved[0], f"strength {declared.parameter} changes little: {ends}; widen the range")


def _with_defaults(defense: Defense) -> Defense:
    try:
        return type(defense)()
    except (TypeError, ValueError):
        return defense


def _moved(defense: Defense) -> float:
    """Return the mean over draws of ‖defended - undefended‖² / ‖undefended‖², summed over stages with transforms."""
    _, trial = first_trial(defense)
    stages = [stage for stage in trial.wired if stage in GRADIENT_STAGES]
    if not stages:
        raise ContractSkipped("no stage of a gradient is wired")
    total = 0.0
    for stage in stages:
        before = flattened(trial.at(stage), 0)
        after = (flattened(trial.apply(stage, trial.at(stage), draw=draw), 0) for draw in range(_DRAWS))
        total += sum(float((value - before).square().sum() / before.square().sum()) for value in after) / _DRAWS
    return total
