"""Base class for attacks: an attack turns readings (observed updates) into reconstructions and never sees the truth."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction, Server, Status, Tensors

# inputs (reading, example, *shape), label probabilities (reading, example, class) → (reading,)
Objective = Callable[[Tensor, Tensor], Tensor]


class Attack(ABC):
    """Base class for attacks, which turn readings (observed updates) into reconstructed examples. Each subclass is a
    frozen dataclass; its fields are the attack's parameters."""

    reference: ClassVar[str]
    """Paper that describes the attack."""
    knowledge: ClassVar[tuple[str, ...]] = ("plain",)
    """Levels of knowledge about the defense that the attack can use: "plain" (none), "adaptive" (the defense's public
    description) or "black-box" (a simulator)."""
    takes: ClassVar[tuple[str, ...]] = ("image", "table")
    """Kinds of data that the attack accepts, "image", "table" or "text"."""
    iterative: ClassVar[bool] = True
    """True if the attack minimises step by step and spends the budget's evaluations; False for a closed form."""
    reading_seconds: ClassVar[float] = 0.0
    """Core seconds per reading of a closed form."""
    most_examples: ClassVar[int] = 16
    """Largest number of examples behind a reading that the attack accepts."""
    mergeable: ClassVar[bool] = False
    """True if the bench may pass the readings of several cells (experiment configurations) to the attack as a single
    batch."""

    takes_mates: ClassVar[bool] = False
    """True if the attack uses known examples behind a reading (the grant `mates`)."""
    takes_rounds: ClassVar[bool] = False
    """True if the attack combines observations from several rounds of a training (`Reading.descriptions`)."""
    servers: ClassVar[tuple[str, ...]] = ("listen",)
    """Threat levels (the grant `server`) under which the attack runs, least first: "listen" (the server sends honest
    weights), "weights" (the server sends weights chosen by the method `craft`), "inconsistent" (the server sends these
    weights to the victim, and zeros to all other clients) or "layers" (weights for all clients, with layers inserted
    before the model)."""

    def craft(self, server: Server, key: Key) -> Tensors | None:
        """Choose the weights that a malicious server sends to the clients, to make the readings (observed updates) leak
        more: name → (*shape), named and shaped as `server.weights`. Called before the round under every grant `server`
        but `"listen"`: once per cell (experiment), under `"rounds"` before each round. Under `"inconsistent"` only the
        victim receives the weights.

        - `server`: the server's knowledge before the round: model, honest weights, public examples.
        - `key`: source for all random numbers.

        None: the attack chooses no weights."""
        return None

    def refuses(self, reading: Reading) -> str | None:
        """Return the reason, in a few words, why the attack cannot run on the batch `reading`; None if it can."""
        return None

    @abstractmethod
    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        """Reconstruct the examples behind every reading (observed update) in a batch; return them with the attack's
        final losses and its numbers of evaluations.

        - `reading`: the attacked readings, with the model, the weights and all else that the attacker knows.
        - `budget`: limits, such as `budget.evaluations`, the evaluations of the objective allowed per reading.
        - `key`: source for all random numbers, as in `key.generator("start", index, example, restart)`. `index` is the
          reading's number in `reading.indices`, not the position in the batch: so a result does not depend on the other
          readings."""

    def objective(self, reading: Reading) -> Objective | None:
        """Return the distance function that the attack minimises for the batch `reading`, or None if the attack has
        none. The bench checks with the function whether the true examples have a smaller distance than public examples.

        The function takes candidates' inputs (reading, example, *shape) and label probabilities (reading, example,
        class). It returns a distance per reading (reading,), without a prior term."""
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

    - `reading`: the attacked batch of readings.
    - `inputs` (reading, example, *shape): reconstructed inputs.
    - `labels` (reading, example): class numbers; None gives -1, an unknown label.
    - `loss` (reading,): final value of the attack's objective; None gives 0.
    - `status`: "ok", "diverged" or "nan" for each reading; None gives "ok".
    - `more`: further fields of `Reconstruction`."""
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
