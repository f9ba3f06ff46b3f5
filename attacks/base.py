"""Base class for attacks: readings in, reconstructions out, never the truth."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction, Status

# inputs (reading, example, *shape), label probabilities (reading, example, class) → (reading,)
Objective = Callable[[Tensor, Tensor], Tensor]


class Attack(ABC):
    """An attack. Subclasses are frozen dataclasses: a choice among parts, with numbers."""

    reference: ClassVar[str]
    knowledge: ClassVar[tuple[str, ...]] = ("plain",)
    takes: ClassVar[tuple[str, ...]] = ("image", "table")
    """Names of the accepted kinds of data (`bench.kinds`)."""
    iterative: ClassVar[bool] = True
    """Whether the attack uses evaluations."""
    most_examples: ClassVar[int] = 16
    """Largest number of examples behind a reading."""
    mergeable: ClassVar[bool] = False
    """Whether readings from several cells may form a batch."""

    def refuses(self, reading: Reading) -> str | None:
        """Reason why the attack cannot take this reading, in a few words, or None."""
        del reading
        return None

    @abstractmethod
    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        """Attack every reading at once, within `budget` evaluations each.

        Randomness comes from `key.generator(WHAT, index, …)` with the reading's index and, if needed, example and
        restart: a reading has the same result by itself and in a batch.
        """

    def objective(self, reading: Reading) -> Objective | None:
        """Matching distance without prior, or None if the attack has no distance."""
        del reading
        return None


def closed_form(
    reading: Reading,
    inputs: Tensor,
    labels: Tensor | None = None,
    *,
    loss: Tensor | None = None,
    status: tuple[Status, ...] | None = None,
    **more: Any,
) -> Reconstruction:
    """Reconstruction of an attack without iterations: 0 evaluations, 0 outer steps, 0 restarts.

    `inputs` (reading, example, *shape); `labels` (reading, example), by default -1; `loss` (reading,), by default 0;
    `status` by default "ok"; `more` are further fields of `Reconstruction`.
    """
    ok: Status = "ok"
    zero = torch.zeros(len(reading), dtype=torch.long)
    return Reconstruction(
        inputs=inputs.clone(),
        labels=torch.full((len(reading), reading.examples), -1) if labels is None else labels,
        loss=torch.zeros(len(reading)) if loss is None else loss,
        evaluations=zero,
        outer=zero,
        restarts=zero,
        status=(ok,) * len(reading) if status is None else status,
        **more,
    )
