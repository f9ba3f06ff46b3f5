"""The attack: the middle of the value range for every picture, a floor that any attack should beat."""

from dataclasses import dataclass

import torch

from bench.attacks.base import Attack
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction, Status


@dataclass(frozen=True, kw_only=True)
class GreyGuess(Attack):
    """Guesses grey, whatever the reading says; spends no evaluation and names no label."""

    reference = "none: a floor"
    knowledge = ("plain",)

    def reconstruct(self, reading: Reading, budget: Budget, key: Key) -> Reconstruction:
        del budget, key
        count = len(reading)
        grey = sum(reading.value_range) / 2
        none = torch.zeros(count, dtype=torch.long)
        ok: Status = "ok"
        return Reconstruction(
            inputs=torch.full((count, reading.examples, *reading.shape), grey),
            labels=torch.full((count, reading.examples), -1),
            loss=torch.zeros(count),
            evaluations=none,
            outer=none,
            restarts=none,
            status=(ok,) * count,
        )
