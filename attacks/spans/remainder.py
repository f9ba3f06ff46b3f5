"""A reading's rest after known texts' gradients are subtracted, and the weights behind this rest."""

import itertools
from dataclasses import dataclass, replace

import torch

from bench.attacks.spans.layers import LayeredModel
from bench.trip import Reading, StepRule, Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """A reading's (observed update's) information about unknown texts."""

    net: LayeredModel
    """The model at the weights in the local step with unknown texts."""
    first: LayeredModel
    """The model at the reading's weights."""
    sent: Tensors
    """The reading as a gradient, name → (*shape)."""
    rest: Tensors
    """The reading without known texts' gradients, name → (*shape)."""
    count: int
    """Number of examples behind the reading."""
    classes: int
    """Number of classes."""
    gone: frozenset[tuple[int, ...]] = frozenset()
    """Known texts (token ids), whose gradients are subtracted."""
    kept: tuple[tuple[int, ...], ...] = ()
    """Known texts (token ids) whose gradients could not be subtracted."""
    steps: int = 1
    """Number of local steps behind the reading."""
    rate: float = 0.0
    """Learning rate in these steps."""
    ends: frozenset[int] = frozenset()
    """Numbers of known texts at which the next step's weights follow."""
    drifted: bool = False
    """True: the test for single tokens has a tolerance for later steps' texts."""

    @classmethod
    def of(cls, net: LayeredModel, reading: Reading, gradients: Tensors) -> "Remainder":
        """Begin with a reading, without known texts.

        - `net`: the model at the reading's weights.
        - `reading`: counts examples, classes and local steps, and has the learning rate.
        - `gradients`: a single reading as a gradient, name → (*shape)."""
        return cls(
            net=net,
            first=net,
            sent=gradients,
            rest=gradients,
            count=reading.examples,
            classes=reading.classes,
            steps=reading.steps,
            rate=reading.rate,
            ends=_ends(reading),
        )

    @property
    def limit(self) -> int:
        """The rest's largest possible rank: all positions in unknown texts."""
        return (self.count - len(self.gone)) * self.net.positions

    @property
    def room(self) -> int:
        """Texts to subtract at these weights, at most: this local step's unknown texts."""
        return min(end for end in (*self.ends, self.count) if end > len(self.gone)) - len(self.gone)

    @property
    def last(self) -> LayeredModel | None:
        """The model at the weights after all local steps; None if the test for single tokens needs no tolerance."""
        return self.first.moved(self.sent, self.steps * self.rate) if self.drifted and self.later > 1 else None

    @property
    def later(self) -> int:
        """Local steps with unknown texts."""
        return self.steps - sum(end <= len(self.gone) for end in self.ends)

    def advanced(self) -> "Remainder":
        """Return the same reading at the next local step's weights, if all texts in this step are known."""
        if len(self.gone) not in self.ends:
            return self
        known = {name: value - self.rest[name] for name, value in self.sent.items()}
        return replace(self, net=self.first.moved(known, self.steps * self.rate))

    def remains(self) -> float:
        """Return the rest's length, relative to the reading's."""
        sent, rest = (torch.cat([value.flatten() for value in each.values()]).norm() for each in (self.sent, self.rest))
        return float(rest / sent)

    def seen(self, layers: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        """Return the `layers` (paths, by common input) with a gradient in the rest: LoRA's matrix A has none as long
        as B is zero."""
        return tuple(paths for paths in layers if any(bool(self.rest[f"{path}.weight"].any()) for path in paths))


def _ends(reading: Reading) -> frozenset[int]:
    """Return the numbers of texts after which a further local step begins, if its weights follow from earlier texts'
    gradients; otherwise an empty set."""
    plain = reading.senders == 1 and not reading.ragged and not reading.momentum and not reading.weight_decay
    if not plain or reading.rule not in (None, StepRule()):
        return frozenset()
    return frozenset(itertools.accumulate(reading.batches[:-1]))
