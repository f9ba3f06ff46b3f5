"""A defense's transforms by stage, applied in order to tensors at a given place in the training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from bench.defenses.base import Context, Defense, Draws, Local, Setting, Shapes, State, Tensors, Transform
from bench.federated.draws import KeyedDraws
from bench.points import STAGES, STEP_STAGES, Point, Scope, Stage

_LOCAL: tuple[Stage, ...] = ("input", *STEP_STAGES)  # stages inside local training
Place = tuple[Stage, int]  # a transform's stage, and its position in the stage
Output = TypeVar("Output")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawKey:
    """Place of a defense's random draws in an experiment: seed, repetition, round, local step. Equal keys give equal
    random numbers, so that an experiment can be repeated."""

    seed: int
    """Seed of the cell (experiment)."""
    draw: int
    """Number of the draw; other draws have other random numbers for the same victims."""
    round: int
    """t, the round number."""
    step: int = 0
    """Number of the local step."""
    observation: int = 0
    """Number of the observation, if a reading is repeated with new draws."""
    colluders: float = 0.0
    """Share of a client's partners (in NISS its neighbours) that collude with the attacker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """A defense in a federated setting: its transforms by stage (place in the round), with their states (memory between
    rounds)."""

    setting: Setting
    """Federated setting, as shown to the defense."""
    transforms: Mapping[Stage, tuple[Transform, ...]]
    """Transforms of each stage, in order."""
    states: Mapping[Place, State]
    """Map from (stage, position of the transform) to its state: the server's state, or client states on a first axis in
    the order of `members`."""
    members: tuple[int, ...] | None = None
    """Clients whose states are held, in order; None: all N clients."""
    states_only: bool = False
    """True: transforms update their states, but tensors stay unchanged."""

    @property
    def undefended(self) -> "Stages":
        """The same federated setting without any transform."""
        return Stages(setting=self.setting, transforms={}, states={})

    def to(self, device: torch.device) -> "Stages":
        """Return the stages with their states on `device`."""
        states = {
            place: {key: value.to(device) for key, value in state.items()} for place, state in self.states.items()
        }
        return replace(self, states=states)

    def has(self, stage: Stage) -> bool:
        """Return whether the defense has a transform at `stage`."""
        return bool(self.transforms.get(stage))

    @property
    def needs_examples(self) -> bool:
        """True if a transform at stage `step` reads example gradients, which local training then must compute."""
        return any(transform.needs_examples for transform in self.transforms.get("step", ()))

    @property
    def steady(self) -> bool:
        """True if no transform inside local training depends on the local step's number (`Transform.steady`), so that
        all local steps can run as the same recorded program on a GPU."""
        return all(transform.steady for stage in _LOCAL for transform in self.transforms.get(stage, ()))

    @property
    def reads_weights(self) -> bool:
        """True if a transform reads the round's initial weights (`Transform.reads_weights`); all clients must then
        receive the same weights."""
        return any(transform.reads_weights for items in self.transforms.values() for transform in items)

    def unlinked(self, point: Point) -> bool:
        """Return whether an attacker at the interception point `point` cannot tell which coordinates come from the same
        client, as after a shuffling of coordinates between clients."""
        if point.scope is Scope.AGGREGATE:  # a mean has no client
            return False
        return any(t.unlinks for stage in STAGES if point.sees(stage) for t in self.transforms.get(stage, ()))

    @property
    def first_mixing_stage(self) -> Stage | None:
        """First stage (place in the round) with a transform that combines tensors of several clients (`mixes_clients`);
        None without such a transform."""
        return next((at for at in STAGES if any(t.mixes_clients for t in self.transforms.get(at, ()))), None)

    @property
    def without_dummies(self) -> Stage | None:
        """First stage at which the defense does not allow dummies (clients that the attacker controls), or None; the
        bench then refuses an attack with dummies. At this stage a transform combines several clients' messages or acts
        at the server, so that the attacker cannot just subtract the dummies' messages (unless it declares
        `Transform.allows_dummies`)."""
        for stage in STAGES:
            transforms = [each for each in self.transforms.get(stage, ()) if not each.allows_dummies]
            if any(stage in ("server", "aggregate") or each.mixes_clients for each in transforms):
                return stage
        return None

    def apply(
        self,
        stage: Stage,
        tensors: Tensors,
        draw_key: DrawKey,
        clients: tuple[int, ...] = (),
        draws: Draws | None = None,
        norms: Tensors | None = None,
        weights: Tensors | None = None,
        local: Local | None = None,
        examples: Tensors | None = None,
    ) -> tuple[dict[str, Tensor], "Stages"]:
        """Apply the defense's transforms of a stage (a place in the round). Return the tensors after the stage, and the
        stages with their next states.

        - `tensors`: leading axes are (client, example) at `input` and `example`, and (client,) up to `server`; tensors
          at `aggregate` have no leading axis.
        - `draw_key`: place in the training (seed, round, step, draw), which seeds the random numbers of each row.
        - `clients`: number of each client in `tensors`; empty at `aggregate`.
        - `draws`: source of random numbers that replaces `draw_key`'s; None draws from `draw_key`.
        - `norms`: norms of the example gradients, name → (client, example); `examples`: the example gradients; both
          only for stage `step`.
        - `weights`: weights at the start of the round, name → (*shape), for every stage.
        - `local`: data and weights behind the gradients, only for stage `example`."""
        current, stages = dict(tensors), self
        rows, lead = _rows(stage, current, clients)
        random_index = 0  # counts only random transforms, so that other transforms in between change no draw
        for position, transform in enumerate(self.transforms.get(stage, ())):
            fields = (draw_key.draw, draw_key.round, draw_key.step, stage, random_index, draw_key.observation)
            context = Context(
                lead=lead,
                stage=stage,
                round=draw_key.round,
                step=draw_key.step,
                setting=self.setting,
                draws=draws or KeyedDraws(seed=draw_key.seed, fields=fields, rows=rows),
                norms=norms,
                examples=examples if transform.needs_examples else None,
                weights=weights,
                local=local,
                colluders=draw_key.colluders,
            )
            random_index += transform.random
            current, stages = stages.advance((stage, position), clients, transform.update, current, context)
        return dict(tensors) if self.states_only else current, stages

    def trained_on(
        self,
        inputs: Tensor,
        targets: Tensor,
        draw_key: DrawKey,
        clients: tuple[int, ...],
        draws: Draws | None = None,
        weights: Tensors | None = None,
    ) -> tuple[Tensor, Tensor, "Stages"]:
        """Apply the transforms of stage `input` (before local training) to a local step's training data. Return inputs
        and targets after the stage, and the stages with their next states.

        - `inputs` (client, example, *shape); `targets` (client, example, class), class probabilities.
        - `draw_key`, `draws`: key and source of random numbers; `draws` None draws by a key for each row (client or
          example).
        - `clients`: the clients' numbers.
        - `weights`: the model's weights, name → (*shape); None if no transform needs them."""
        given = {"inputs": inputs, "targets": targets}
        after, stages = self.apply("input", given, draw_key, clients, draws, weights=weights)
        return after["inputs"], after["targets"], stages

    def advance(
        self,
        place: Place,
        clients: tuple[int, ...],
        update: Callable[[Tensors, State, Context], tuple[Output, State]],
        values: Tensors,
        context: Context,
    ) -> tuple[Output, "Stages"]:
        """Run a single transform on tensors and on its memory. Return its output, and the stages (the defense) with the
        next state.

        - `place`: the transform's stage, and its position in the stage.
        - `clients`: numbers of the clients whose states are used.
        - `update`: function (tensors, state, context) → (output, next state), usually `Transform.update`.
        - `values`: tensors passed to `update`.
        - `context`: stage, round and setting, passed to `update`."""
        state = self.states.get(place)
        if state is None:
            return update(values, {}, context)[0], self
        if self._is_clients(place):
            if self.members == clients:
                output, after = update(values, state, context)
                after = {key: after[key].to(value) for key, value in state.items()}
            else:
                at = self.positions(clients)
                output, after = update(values, {key: value[at] for key, value in state.items()}, context)
                after = {
                    key: value.index_copy(0, at.to(value.device), after[key].to(value)) for key, value in state.items()
                }
        else:
            output, after = update(values, state, context)
            # keep the state's order: transforms sum over a state's tensors, and another order changes the rounding
            after = {key: after[key] for key in state}
        return output, replace(self, states={**self.states, place: after})

    def of(self, clients: tuple[int, ...]) -> "Stages":
        """Return the stages (the defense) with only the states (memory) of the numbered `clients`, in this order, to
        train a chunk of clients. `joined` collects the states afterwards."""
        at = self.positions(clients)
        states = {
            place: {key: value[at] for key, value in state.items()} if self._is_clients(place) else state
            for place, state in self.states.items()
        }
        return replace(self, states=states, members=clients)

    def joined(self, parts: "tuple[Stages, ...]") -> "Stages":
        """Collect the clients' states (memory) after local training, if chunks of clients were trained apart: return
        the defense's stages with the states of all chunks. Each of `parts` holds the states of a chunk (from `of`); no
        client is in two chunks. Transforms after local training keep their states."""
        at = self.positions(tuple(client for part in parts for client in part.members or ()))
        states = dict(self.states)
        for place in (each for each in self.states if self._is_clients(each) and each[0] in _LOCAL):
            states[place] = {
                key: value.index_copy(0, at.to(value.device), torch.cat([part.states[place][key] for part in parts]))
                for key, value in self.states[place].items()
            }
        return replace(self, states=states)

    def _is_clients(self, place: Place) -> bool:
        return self.transforms[place[0]][place[1]].owner == "client"

    def positions(self, clients: tuple[int, ...]) -> Tensor:
        """Return the positions of the numbered `clients` on the client axis of the states, (client,)."""
        if self.members is None:
            return torch.tensor(clients, dtype=torch.int64)
        where = {client: position for position, client in enumerate(self.members)}
        return torch.tensor([where[client] for client in clients], dtype=torch.int64)


def stages(defense: Defense, setting: Setting, shapes: Shapes) -> Stages:
    """Make the stages of a defense before round 0: its transforms with their initial states (empty memory). `setting`
    is the federated setting, on which the transforms may depend. `shapes` are the shapes of the model's parameters,
    name → (*shape). Raises `ValueError` for an unknown stage, or for a transform inside local steps with a server's
    state, and `TypeError` for an item that is no `Transform`."""
    transforms = {stage: tuple(items) for stage, items in defense.transforms(setting).items()}
    states: dict[Place, State] = {}
    for stage, items in transforms.items():
        if stage not in STAGES:
            raise ValueError(f"unknown stage {stage!r}; there are {', '.join(STAGES)}")
        for position, transform in enumerate(items):
            if not isinstance(transform, Transform):
                raise TypeError(
                    f"stage {stage!r} has a {type(transform).__name__}, which is no Transform; "
                    "derive it from bench.defenses.base:Transform"
                )
            state = transform.initial_of(shapes, setting.clients)
            if state and transform.owner == "server" and stage in _LOCAL:
                raise ValueError(
                    f"{type(transform).__name__} keeps a server's state at stage {stage!r}, inside local steps"
                )
            if state:
                states[stage, position] = state
    return Stages(setting=setting, transforms=transforms, states=states)


def _rows(stage: Stage, tensors: Tensors, clients: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], ...], int]:
    """Return the client and example numbers of each row, for the draw keys, and the number of leading axes. `clients`
    are the clients' numbers."""
    if stage == "aggregate":
        return ((),), 0
    if stage in ("input", "example"):
        batch = next(iter(tensors.values())).shape[1]
        return tuple((client, example) for client in clients for example in range(batch)), 2
    return tuple((client,) for client in clients), 1
