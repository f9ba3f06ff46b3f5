"""Structured updates: clients train inside a random mask or a random low-rank space, and send its variables only."""

from dataclasses import dataclass
from typing import Literal

from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.strength import Strength
from bench.defenses.transforms.structure import TrainInside
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Structured(Defense):
    """Restrict every local step to few variables, so that a client's update has few numbers to send: a random subset of
    the coordinates (`mask`), or B in a weight's update A·B with a random A (`low-rank`). Each round draws the structure
    anew from a public seed. Pruning a finished update is different after several local steps: here each step sees
    weights that moved inside the structure.

    Departures: a round's clients share the structure, where the paper draws one for each client; A has orthonormal
    columns. The server, and an attacker, knows the structure. An example's gradient at type-2 is not restricted."""

    reference = "Konečný et al. 2016 (Federated learning: strategies for improving communication efficiency), §2"
    stages = ("step",)
    strength = Strength("kept", 1.0, 1e-3)

    structure: Literal["mask", "low-rank"] = parameter("mask", "restriction", source="Konečný et al. 2016 §2")
    kept: float = parameter(
        0.0625, "trained share of coordinates, or of a weight's rank", source="Konečný et al. 2016 §4", above=0, high=1
    )
    seed: int = parameter(0, "seed of the structures", source="ours", low=0)

    def transforms(self, setting: Setting) -> StageTransforms:
        return {"step": (TrainInside(structure=self.structure, kept=self.kept, seed=self.seed),)}
