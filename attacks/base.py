"""Base class for attacks: an attack turns readings (observed updates) into reconstructions and never sees the truth."""

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
    """Base class for attacks. Subclasses are frozen dataclasses, whose fields are the attack's parameters."""

    reference: ClassVar[str]
    """Paper that describes the attack."""
    knowledge: ClassVar[tuple[str, ...]] = ("plain",)
    """Levels of knowledge that the attack can use: "plain", "adaptive" or "black-box"."""
    takes: ClassVar[tuple[str, ...]] = ("image", "table")
    """Names of the data kinds (`bench.kinds`) accepted by the attack."""
    iterative: ClassVar[bool] = True
    """True if the attack spends evaluations from its budget, False for closed forms."""
    most_examples: ClassVar[int] = 16
    """The attack accepts readings with at most this number of examples behind each."""
    mergeable: ClassVar[bool] = False
    """True if readings from several experiment cells may form a single batch."""

    takes_mates: ClassVar[bool] = False
    """True if the attack uses known examples behind a reading (the grant `mates`)."""

    def refuses(self, reading: Reading) -> str | None:
        """Return the reason, in a few words, why the attack cannot take this reading, or None if the attack can."""
        del reading
        return None

    @abstractmethod
    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        """Reconstruct the examples behind every reading in the batch. `budget.evaluations` limits the objective
        evaluations per reading. Random numbers come from `key.generator(purpose, index, …)`, such as
        `key.generator("start", index, example, restart)`. `index` is the reading's number in `reading.indices`, not its
        position in the batch: so a result does not depend on the other readings."""

    def objective(self, reading: Reading) -> Objective | None:
        """Return the attack's distance function, or None if the attack has no such function. The function takes
        candidates' inputs and label probabilities. It returns a distance per reading, without a prior."""
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
    """Build the reconstruction of an attack without iterations: its evaluations, outer steps and restarts are 0.

    `inputs` (reading, example, *shape). `labels` (reading, example); None gives -1, an unknown label. `loss`
    (reading,); None gives 0. `status`: a word per reading; None gives "ok". `more`: further fields of `Reconstruction`.
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
