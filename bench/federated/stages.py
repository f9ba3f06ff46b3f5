"""A defense's stages, applied in order at one place of the training."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.defenses.base import Context, Defense, Setting, Stateful, Transform
from bench.federated.draws import KeyedDraws
from bench.points import STAGES, Stage
from bench.rng import Field

Tensors = Mapping[str, Tensor]
State = dict[str, Tensor]
# (stage, position) → state: of the server, or with a leading axis over all N clients
States = Mapping[tuple[Stage, int], State]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Where in the training we are: round t, local step, and the draw's seed and number."""

    seed: int
    draw: int
    round: int
    step: int = 0
    observation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """A defense's transforms in its setting, with the state of those that have one."""

    setting: Setting
    transforms: Mapping[Stage, tuple[Transform, ...]]
    states: States

    def has(self, stage: Stage) -> bool:
        return bool(self.transforms.get(stage))

    def apply(
        self, stage: Stage, tensors: Tensors, moment: Moment, clients: tuple[int, ...] = ()
    ) -> tuple[dict[str, Tensor], "Stages"]:
        """The tensors after one stage, and the stages with their states moved on.

        Leading axes: (client, example) at `example`, (client,) up to `server`, none at `aggregate`.
        """
        found, states = dict(tensors), dict(self.states)
        rows, lead = _rows(stage, found, clients)
        ordinal = 0
        for position, transform in enumerate(self.transforms.get(stage, ())):
            fields: tuple[Field, ...] = (
                moment.draw, moment.round, moment.step, stage, ordinal, moment.observation,
            )  # fmt: skip
            context = Context(
                lead=lead, stage=stage, round=moment.round, step=moment.step, setting=self.setting,
                draws=KeyedDraws(seed=moment.seed, fields=fields, rows=rows),
            )  # fmt: skip
            ordinal += transform.random
            if not isinstance(transform, Stateful):
                found = transform.apply(found, context)
                continue
            state = states[stage, position]
            if transform.owner == "server":
                found, states[stage, position] = transform.update(found, state, context)
                continue
            at = torch.tensor(clients)
            found, moved = transform.update(found, {k: v[at] for k, v in state.items()}, context)
            states[stage, position] = {k: v.index_copy(0, at, moved[k]) for k, v in state.items()}
        return found, replace(self, states=states)


def stages(defense: Defense, setting: Setting, shapes: Mapping[str, tuple[int, ...]]) -> Stages:
    """A defense's stages before round 0; raises ValueError for a stage that there is not."""
    chosen = {stage: tuple(items) for stage, items in defense.transforms(setting).items()}
    for stage in chosen:
        if stage not in STAGES:
            raise ValueError(f"unknown stage {stage!r}; there are {', '.join(STAGES)}")
    states: dict[tuple[Stage, int], State] = {}
    for stage, items in chosen.items():
        for position, item in enumerate(items):
            if isinstance(item, Stateful):
                one = item.initial(shapes)
                states[stage, position] = (
                    one
                    if item.owner == "server"
                    else {k: v.expand(setting.clients, *v.shape).clone() for k, v in one.items()}
                )
    return Stages(setting=setting, transforms=chosen, states=states)


def _rows(
    stage: Stage, tensors: Tensors, clients: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], ...], int]:
    if stage == "aggregate":
        return ((),), 0
    if stage == "example":
        batch = next(iter(tensors.values())).shape[1]
        return tuple((client, example) for client in clients for example in range(batch)), 2
    return tuple((client,) for client in clients), 1
