"""A kind of data as a value: axes, arithmetic on example values, success rule, renderer."""

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
    """Operations on the example values of a kind of data (images, tables or texts): conversion, range check, distance,
    mean, random draw."""

    def floats(self, stored: NDArray[Any]) -> NDArray[np.float32]:
        """Convert `stored` values to float32, the input for models, attacks and scores."""

    def fault(self, stored: NDArray[Any]) -> str | None:
        """Return the reason why a data set's `stored` values are not allowed, such as values outside [0, 1]; None if
        they are allowed."""

    def checked(self, truth: ArrayLike) -> Floats:
        """Convert the values of true examples to float64 before scoring; raises `ValueError` for values outside the
        kind's range."""

    def cleaned(self, guess: ArrayLike) -> Floats:
        """Convert a reconstruction `guess` to allowed values before scoring: each value moves to the nearest allowed
        value, such as 1.2 to 1 in an image. The result is float64."""

    def apart(self, truth: ArrayLike, guess: ArrayLike) -> Floats:
        """Return the distance of each guess to its true example, such as the mean squared difference: (reading,
        example). `truth` and `guess` are (reading, example, *shape)."""

    def distances(self, first: Floats, second: Floats) -> Floats:
        """Return distances, such as mean squared differences, between the examples `first` (..., n, value) and `second`
        (..., m, value): (..., n, m), in [0, 1]."""

    def centre(self, examples: Array) -> Array:
        """Return the best constant guess for unknown `examples`, (example, *shape) → (*shape): the values with the
        least mean distance to all examples, such as their mean."""

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
        """Draw random example values of `shape` with the generator `random`, such as uniform numbers or token ids, as
        inputs for tests. The draw uses no knowledge of the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Success:
    """Rule that decides whether an example leaked: its reconstruction is near to the true example, and nearer by a
    margin than every prior-only guess (made without the gradient)."""

    words: str
    """The rule's text for messages."""
    reached: Callable[[Figures], Booleans]
    """Function from figures to a mask of reconstructions that are near enough to the true example, without regard to
    prior-only guesses."""
    closeness: str
    """Name of the metric compared with prior-only guesses; higher is nearer."""
    over: str
    """Name of the metric for the margin over prior-only guesses: `closeness` minus the highest `closeness` of a
    guess."""
    margin: float
    """Smallest value of the metric `over` for a leaked example; no margin is required without a prior-only guess."""
    strict: Callable[[Figures], Booleans] | None = None
    """Second, stricter threshold for the reconstruction; None for kinds without a strict rate."""
    strict_words: str = ""
    """Text of the stricter threshold for messages; empty for kinds without a strict rate."""

    def leaked(self, figures: Figures) -> Booleans:
        """Apply the rule to measured examples: return a mask of the leaked examples. `figures` are the metrics, name →
        values, and the mask has the shape of the values."""
        return self.reached(figures) & ~(np.asarray(figures[self.over], np.float64) < self.margin)

    def leaked_strictly(self, figures: Figures) -> Booleans | None:
        """Apply the rule with the stricter threshold: return a mask of the leaked examples, in the shape of the values.
        `figures` are the metrics, name → values. None if the kind of data has no stricter threshold."""
        return None if self.strict is None else self.leaked(figures) & self.strict(figures)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Kind:
    """A kind of data, such as images or tables, with all that differs between kinds: range and distance of values, the
    rule for a leaked example, pictures, and the default data set for tests. `bench.kinds.known` lists all kinds."""

    name: str
    """Name used in data sets, models, attacks and records."""
    article: str
    """Name with its article, for messages: "an image"."""
    plural: str
    """Plural name, for messages: "images"."""
    axes: tuple[str, ...]
    """Names of an example's axes, such as channel, height, width."""
    values: Values
    """Operations on example values: conversion, range check, distance, mean, random draw."""
    success: Success
    """Rule that decides whether an example leaked."""
    pixels: Callable[[NDArray[Any]], NDArray[Any]]
    """Function that draws examples: (n, *shape) → (n, height, width, 3), colours in [0, 1]."""
    default_dataset: str
    """Name of a data set that needs no files, for the tests of entries (contracts)."""
    default_model: str
    """Name of a model for `default_dataset`, for the tests of entries (contracts)."""
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of an example with which the tests of a model (its contracts) build the model, ascending."""
    spatial: bool = False
    """True if the last two axes are height and width, so that neighbours resemble each other."""
    differentiable: bool = True
    """True if values are real numbers, so that a loss has derivatives with respect to them."""
    columns: bool = False
    """True if each value is a named column; data sets then declare groups of columns."""

    def __repr__(self) -> str:
        return f"Kind({self.name})"  # equal in every process, because it enters a reading's hash

    @property
    def shape_text(self) -> str:
        """Names of an example's axes for messages, such as (channel, height, width)."""
        return f"({', '.join(self.axes)}{',' if len(self.axes) == 1 else ''})"

    def fault(self, stored: NDArray[Any]) -> str | None:
        """Return the reason why `stored` examples (example, *shape) are not of this kind; None if they are of this
        kind."""
        if stored.ndim != 1 + len(self.axes):
            return f"{self.article} has the axes {self.shape_text}, these examples have shape {stored.shape[1:]}"
        return self.values.fault(stored)
