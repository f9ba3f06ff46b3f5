"""A defense's stages, applied in order at one place of the training."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.defenses.base import Context, Defense, Draws, Local, Setting, Stateful, Transform
from bench.federated.draws import KeyedDraws
from bench.points import STAGES, Point, Stage
from bench.rng import Field

Tensors = Mapping[str, Tensor]
State = dict[str, Tensor]
# (stage, position) → state: of the server, or with a leading axis over all N clients
States = Mapping[tuple[Stage, int], State]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Where in the training we are: round t, local step, the draw's seed and number, and the share of a client's
    neighbours who side with the reader."""

    seed: int
    draw: int
    round: int
    step: int = 0
    observation: int = 0
    colluders: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """A defense's transforms in its setting, with the state of those that have one.

    `members` names the clients whose states these are, in their order; None: all N.  Stages that are
    `observing` move their states on and leave the tensors as they are.
    """

    setting: Setting
    transforms: Mapping[Stage, tuple[Transform, ...]]
    states: States
    members: tuple[int, ...] | None = None
    observing: bool = False

    def has(self, stage: Stage) -> bool:
        return bool(self.transforms.get(stage))

    def unlinked(self, point: Point) -> bool:
        """Whether what `point` shows cannot be told apart by clients, coordinate by coordinate."""
        if point.unit == "sum":  # one vector, of nobody
            return False
        return any(t.unlinks for stage in STAGES if point.sees(stage) for t in self.transforms.get(stage, ()))

    @property
    def across(self) -> Stage | None:
        """The first stage at which clients' updates meet those of others of their round, before the mean."""
        return next(
            (stage for stage in STAGES if any(t.across for t in self.transforms.get(stage, ()))), None
        )

    def apply(
        self, stage: Stage, tensors: Tensors, moment: Moment, clients: tuple[int, ...] = (),
        draws: Draws | None = None, norms: Tensors | None = None, weights: Tensors | None = None,
        local: Local | None = None,
    ) -> tuple[dict[str, Tensor], "Stages"]:  # fmt: skip
        """The tensors after one stage, and the stages with their states moved on.

        Leading axes: (client, example) at `example`, (client,) up to `server`, none at `aggregate`.
        Without `draws` they are keyed row by row.  `norms`, `weights` and `local`: see `Context`.
        """
        found, states = dict(tensors), dict(self.states)
        rows, lead = _rows(stage, found, clients)
        at = self.places(clients)
        ordinal = 0
        for position, transform in enumerate(self.transforms.get(stage, ())):
            fields: tuple[Field, ...] = (
                moment.draw, moment.round, moment.step, stage, ordinal, moment.observation,
            )  # fmt: skip
            context = Context(
                lead=lead, stage=stage, round=moment.round, step=moment.step, setting=self.setting,
                draws=draws or KeyedDraws(seed=moment.seed, fields=fields, rows=rows), norms=norms,
                weights=weights, local=local, colluders=moment.colluders,
            )  # fmt: skip
            ordinal += transform.random
            if not isinstance(transform, Stateful):
                found = transform.apply(found, context)
                continue
            state = states[stage, position]
            if transform.owner == "server":
                found, states[stage, position] = transform.update(found, state, context)
                continue
            found, moved = transform.update(found, {k: v[at] for k, v in state.items()}, context)
            states[stage, position] = {k: v.index_copy(0, at, moved[k]) for k, v in state.items()}
        return dict(tensors) if self.observing else found, replace(self, states=states)

    def of(self, clients: tuple[int, ...]) -> "Stages":
        """The same stages with the states of these clients alone: what they do does not copy all N's."""
        at = self.places(clients)
        states = {
            place: {k: v[at] for k, v in state.items()} if self._of_clients(place) else state
            for place, state in self.states.items()
        }
        return replace(self, states=states, members=clients)

    def joined(self, parts: "tuple[Stages, ...]") -> "Stages":
        """These stages with the states that each part's clients came to."""
        states = {place: dict(state) for place, state in self.states.items()}
        for place in (place for place in states if self._of_clients(place)):
            at = self.places(tuple(c for part in parts for c in part.members or ()))
            for key, value in states[place].items():
                moved = torch.cat([part.states[place][key] for part in parts])
                states[place][key] = value.index_copy(0, at, moved)
        return replace(self, states=states)

    def _of_clients(self, place: tuple[Stage, int]) -> bool:
        transform = self.transforms[place[0]][place[1]]
        return isinstance(transform, Stateful) and transform.owner == "client"

    def places(self, clients: tuple[int, ...]) -> Tensor:
        """Where in a client's state these clients stand."""
        if self.members is None:
            return torch.tensor(clients, dtype=torch.int64)
        where = {client: place for place, client in enumerate(self.members)}
        return torch.tensor([where[client] for client in clients], dtype=torch.int64)


def stages(defense: Defense, setting: Setting, shapes: Mapping[str, tuple[int, ...]]) -> Stages:
    """A defense's stages before round 0; raises ValueError for a stage that there is not, and for a server's
    state inside clients' local steps."""
    chosen = {stage: tuple(items) for stage, items in defense.transforms(setting).items()}
    for stage in chosen:
        if stage not in STAGES:
            raise ValueError(f"unknown stage {stage!r}; there are {', '.join(STAGES)}")
    states: dict[tuple[Stage, int], State] = {}
    for stage, items in chosen.items():
        for position, item in enumerate(items):
            if not isinstance(item, Stateful):
                continue
            one = item.initial(shapes)
            if item.owner == "client":
                one = {k: v.expand(setting.clients, *v.shape).clone() for k, v in one.items()}
            elif stage in ("example", "step"):
                raise ValueError(
                    f"{type(item).__name__} keeps a server's state at stage {stage!r}, inside local steps"
                )
            states[stage, position] = one
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
