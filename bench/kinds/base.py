"""A kind of data as a value: axes, numbers, success rule, renderer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]
Figures = Mapping[str, ArrayLike]  # metric → (reading, example), or a single figure; NaN: no figure
Array = TypeVar("Array", bound=Any)  # a numpy array or a torch tensor


class Values(Protocol):
    """Arithmetic on example values; `bench.kinds.unit` implements numbers in [0, 1]."""

    def floats(self, stored: NDArray[Any]) -> NDArray[np.float32]:
        """Stored values as float32, the input for models, attacks and scores."""

    def fault(self, stored: NDArray[Any]) -> str | None:
        """Reason to refuse a data set's stored values, or None."""

    def checked(self, truth: ArrayLike) -> Floats:
        """True values as float64.  Raises `ValueError` outside the range."""

    def cleaned(self, guess: ArrayLike) -> Floats:
        """Reconstructed values as float64, moved to the nearest possible value."""

    def apart(self, truth: ArrayLike, guess: ArrayLike) -> Floats:
        """Distance in each pair, (reading, example, *shape) twice → (reading, example)."""

    def distances(self, first: Floats, second: Floats) -> Floats:
        """All distances, (..., n, value) and (..., m, value) → (..., n, m), between 0 and 1."""

    def centre(self, examples: Array) -> Array:
        """Example nearest to all examples on average, (example, *shape) → (*shape)."""

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
        """Values drawn without knowledge of the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Success:
    """Success rule: an example leaked if near enough, and above the best prior-only guess by a margin."""

    words: str
    """The rule in messages."""
    reached: Callable[[Figures], Booleans]
    """Near enough, without regard to prior-only guesses."""
    closeness: str
    """Metric for the comparison with prior-only guesses; higher is nearer."""
    over: str
    """Metric for the margin: `closeness` minus the best prior-only guess's."""
    margin: float
    """Least `over`; not required for examples without prior-only guess."""
    strict: Callable[[Figures], Booleans] | None = None
    """Second, stricter threshold; None for kinds without a strict rate."""

    def leaked(self, figures: Figures) -> Booleans:
        """Leaked or not, for each example."""
        return self.reached(figures) & ~(np.asarray(figures[self.over], np.float64) < self.margin)

    def leaked_strictly(self, figures: Figures) -> Booleans | None:
        """Leaked or not by the stricter threshold; None for kinds without a strict rate."""
        return None if self.strict is None else self.leaked(figures) & self.strict(figures)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Kind:
    """A kind of data; `bench.kinds.known` lists all kinds."""

    name: str
    """Name in data sets, models, attacks and records."""
    article: str
    """Name with its article, for messages."""
    plural: str
    axes: tuple[str, ...]
    """Axis names for an example."""
    values: Values
    success: Success
    pixels: Callable[[NDArray[Any]], NDArray[Any]]
    """Renderer, (n, *shape) → (n, height, width, 3), colours in [0, 1]."""
    default_dataset: str
    """Data set without files, for contracts."""
    default_model: str
    shapes: tuple[tuple[int, ...], ...]
    """Example shapes for model contracts, ascending."""
    spatial: bool = False
    """The last two axes are height and width: neighbours resemble one another."""
    differentiable: bool = True
    """Real values: a loss has a derivative to them."""
    columns: bool = False
    """Each value is a named column: data sets declare groups of columns."""

    def __repr__(self) -> str:
        return f"Kind({self.name})"  # the same in every process: readings are hashed by it

    @property
    def shape_text(self) -> str:
        """Axes for messages, e.g. (channel, height, width)."""
        return f"({', '.join(self.axes)}{',' if len(self.axes) == 1 else ''})"

    def fault(self, stored: NDArray[Any]) -> str | None:
        """Reason to refuse stored examples (example, *shape) as this kind, or None."""
        if stored.ndim != 1 + len(self.axes):
            return f"{self.article} has the axes {self.shape_text}, these examples have shape {stored.shape[1:]}"
        return self.values.fault(stored)
