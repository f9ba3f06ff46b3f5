"""A family's strength: the parameter that a user raises for more protection, with its range."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints


@dataclass(frozen=True, slots=True)
class Strength:
    """Declaration of the parameter that sets a defense's amount of protection, with its weak and strong ends, for
    searches over strength. A value's *position* in [0, 1] is 0 at `weak` and 1 at `strong`. `weak` may be larger than
    `strong`, as for the share of coordinates that a client keeps."""

    parameter: str
    """Name of the parameter."""
    weak: float
    """Weakest value, with which the defense changes an update least."""
    strong: float
    """Strongest value, with which the defense changes an update most."""
    scale: Literal["log", "log-rest"] = "log"
    """`log`: equal steps in the position multiply the value x by equal factors. `log-rest`, for shares: equal steps
    multiply `whole` - x by equal factors."""
    whole: float = 1.0
    """The value x at which nothing of the update would be left, for the scale `log-rest`: 1 for a share, 100 for a
    percentage."""

    def __post_init__(self) -> None:
        if self.weak == self.strong:
            raise ValueError(f"strength {self.parameter}: weak and strong are equal ({self.weak:g})")
        for end in (self.weak, self.strong):
            if not (math.isfinite(end) and self.scaled(end) > 0):
                bound = "above 0" if self.scale == "log" else f"below {self.whole:g}"
                raise ValueError(f"strength {self.parameter}: an end must be {bound}, got {end:g}")

    def value(self, position: float) -> float:
        """Return the parameter's value at a `position` in [0, 1], from weak to strong."""
        weak, strong = self._ends
        return self.scaled(math.exp(weak + position * (strong - weak)))

    def position(self, value: float) -> float:
        """Return the position of a parameter's `value`: 0 for the weak end, 1 for the strong end, below 0 or above 1
        outside the range. The position is infinite for values without logarithm: 0 on the scale `log`, 1 on the scale
        `log-rest`."""
        weak, strong = self._ends
        scaled = self.scaled(value)
        return ((math.log(scaled) if scaled > 0 else -math.inf) - weak) / (strong - weak)

    def words(self) -> str:
        """Return the parameter with its range as text for a table, such as `sigma from 0.01 (weak) to 100 (strong)`."""
        return f"{self.parameter} from {self.weak:g} (weak) to {self.strong:g} (strong)"

    @property
    def _ends(self) -> tuple[float, float]:
        return math.log(self.scaled(self.weak)), math.log(self.scaled(self.strong))

    def scaled(self, value: float) -> float:
        """Transform a parameter's value to the scale on which positions are logarithmic: x = `value` for the scale
        `log`, and `whole` - x for the scale `log-rest` (shares near the whole). Equal steps in the position multiply
        the result by equal factors."""
        return value if self.scale == "log" else self.whole - value


def at_strength(defense: Any, position: float) -> Any:
    """Return a copy of `defense` with its strength parameter set to the value at `position` in [0, 1] (weak to strong);
    whole-number parameters are rounded.

    Raises `ValueError` if the class declares no strength, or if the parameter is missing or takes no number."""
    strength = type(defense).strength
    if strength is None:
        raise ValueError(f"{type(defense).__name__} declares no strength")
    kind = _number(type(defense), strength.parameter)
    value = strength.value(position)
    return dataclasses.replace(defense, **{strength.parameter: round(value) if kind is int else value})


def _number(defense: type, parameter: str) -> type:
    hint = get_type_hints(defense).get(parameter)
    for kind in (int, float):
        if kind in (hint, *get_args(hint)):
            return kind
    raise ValueError(f"strength {parameter}: {defense.__name__} has no numeric parameter of this name")
