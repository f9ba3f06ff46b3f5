"""Weakened defenses for `bench gate --prove`, which tests that the gate detects a weaker defense.

The module is a plug-in, `--plugin bench.contracts.plants`, with a single defense `weakened`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from torch import Tensor

from bench.defenses.accounting.mechanism import Mechanism, Reports
from bench.defenses.base import Context, Defense, Draws, Setting, StageTransforms, State, Tensors, Transform
from bench.parameters import parameter
from bench.points import STAGES
from bench.registry import entries as registry

Plant = Literal["noise halved", "stage skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weakened(Defense):
    """A registered defense with a planted fault, to test that the gate notices: its normal draws are halved, or its
    last stage is left out.

    The claimed ε does not change, as after a fault in the code."""

    reference = "none: a planted fault"
    stages = STAGES

    of: str = parameter("none", "name of the weakened defense", source="ours")
    params: str = parameter("{}", "the defense's parameters as JSON", source="ours")
    plant: Plant = parameter("noise halved", "weakening", source="ours")

    def transforms(self, setting: Setting) -> StageTransforms:
        whole = self._whole().transforms(setting)
        if self.plant == "noise halved":
            return {stage: tuple(map(_halved, transforms)) for stage, transforms in whole.items()}
        acting = [stage for stage in STAGES if whole.get(stage)]
        return {stage: transforms for stage, transforms in whole.items() if stage not in acting[-1:]}

    def mechanism(self, setting: Setting) -> Mechanism | Reports | None:
        return self._whole().mechanism(setting)

    def _whole(self) -> Defense:
        defense: Defense = registry.instance("defenses", self.of, json.loads(self.params))
        return defense


@dataclass(frozen=True, slots=True)
class _Halved:
    """Draws with half the deviation; uniform draws stay."""

    whole: Draws

    def normal(self, name: str, like: Tensor) -> Tensor:
        return self.whole.normal(name, like) / 2

    def uniform(self, name: str, like: Tensor) -> Tensor:
        return self.whole.uniform(name, like)


def _halved(transform: Transform) -> Transform:
    """Return the transform with halved normal draws, and with all else unchanged: an instance of a subclass."""
    kind = type(transform)

    def update(self: Transform, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        return kind.update(self, tensors, state, replace(context, draws=_Halved(context.draws)))

    made: Any = object.__new__(type(f"Halved{kind.__name__}", (kind,), {"__slots__": (), "update": update}))
    for item in fields(transform):  # type: ignore[arg-type]  # every transform is a dataclass
        object.__setattr__(made, item.name, getattr(transform, item.name))
    weaker: Transform = made
    return weaker


def weakened(name: str, params: Mapping[str, Any], plant: Plant) -> dict[str, Any]:
    """Return the entry of a matrix file, as a TOML table, for the defense `name` with its parameters `params`, weakened
    by `plant` (such as `noise halved`)."""
    return {"name": "weakened", "of": name, "params": json.dumps(params, sort_keys=True), "plant": plant}
