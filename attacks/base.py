"""What an attack is: readings in, reconstructions out, nothing of the truth in between."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor

from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction

# inputs (reading, picture, *shape), labels one-hot or soft (reading, picture, class) → (reading,)
Objective = Callable[[Tensor, Tensor], Tensor]


class Attack(ABC):
    """An attacker.  Concrete ones are frozen dataclasses: a choice of parts and numbers."""

    reference: ClassVar[str]
    knowledge: ClassVar[tuple[str, ...]] = ("plain",)
    iterative: ClassVar[bool] = True  # whether it spends evaluations; priors and label readers do not

    def refuses(self, reading: Reading) -> str | None:
        """Why it cannot take this reading, in a few words, or None."""
        del reading
        return None

    @abstractmethod
    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        """Attack every reading at once, within `budget` evaluations each.

        Randomness comes from `key.generator("start", index, picture, restart)` with the reading's
        own index, so that a reading gets what it would get alone.
        """

    def objective(self, reading: Reading) -> Objective | None:
        """The matching distance alone, without prior, or None for attacks that match nothing."""
        del reading
        return None
