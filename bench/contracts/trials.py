"""A federated round with three clients, on which a defense's contracts are tested."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from bench.cell import Federated
from bench.contracts.base import ContractSkipped, require
from bench.contracts.situations import data, gap, model, setting_of
from bench.defenses.base import Context, Defense, Draws, Local
from bench.defenses.transforms.rows import norms
from bench.federated.batches import Batches
from bench.federated.draws import KeyedDraws
from bench.federated.pipeline import Taps, run_round
from bench.federated.stages import DrawKey, Stages, stages
from bench.gradients import group_gradients, one_hot
from bench.points import STAGES, STEP_STAGES, UPDATE_STAGES, Stage
from bench.trip import Tensors

CLIENTS = (1, 4, 7)
SETTINGS = (("FedSGD B=3", 1, 3), ("FedSGD B=1", 1, 1), ("FedAvg L=2 B=2", 2, 2))  # words, steps, batch
CLOSE = 1e-9  # float64
DRAWS = 64
SIGMAS = 5  # a true statement fails once in two million


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A federated round with three clients on the data set digits, on which contracts (tests of an entry's promises)
    test a defense."""

    federated: Federated
    """Federated setting: clients, local steps and batch."""
    module: nn.Module
    """Model in eval mode; its parameters are in `weights`."""
    weights: dict[str, Tensor]
    """Model weights, name → (*shape)."""
    batches: Batches
    """The three clients' batches, with true examples and labels."""
    stages: Stages
    """The defense's transforms by stage, with their states."""
    kept: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """Cache of the undefended example gradients, name → (client, example, *shape); empty before their first use."""

    def taps(self, chosen: Stages) -> Taps:
        draw_key = DrawKey(seed=3, draw=0, round=0)
        return run_round(self.module, self.weights, self.batches, self.federated, chosen, draw_key, classes=10)

    @property
    def clients(self) -> tuple[int, ...]:
        return self.batches.clients

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(value.shape) for name, value in self.weights.items()}

    @property
    def trained_on(self) -> tuple[Tensor, Tensor]:
        """Training data after the defense's transforms at stage `input` (before the gradient): inputs (client, step,
        example, *shape) and class probabilities (client, step, example, class)."""
        parts, now = [], self.stages
        for step in range(self.federated.steps):
            x, y = self.batches.inputs[:, step], self.batches.labels[:, step]
            key = DrawKey(seed=3, draw=0, round=0, step=step)
            *mixed, now = now.trained_on(x, one_hot(y, 10, x.dtype), key, self.clients, weights=self.weights)
            parts.append(mixed)
        inputs, targets = (torch.stack(each, 1) for each in zip(*parts, strict=True))
        return inputs, targets

    def of_rounds(self, defense: Defense, rounds: int) -> "Trial":
        """Return the same federated round with `defense` built for a training of `rounds` rounds. Raises `ValueError`
        if the defense refuses this setting."""
        chosen = stages(defense, setting_of(self.federated, rounds=rounds), self.shapes)
        return dataclasses.replace(self, stages=chosen)

    def at(self, stage: Stage) -> dict[str, Tensor]:
        """Return the undefended tensors that enter the stage `stage` (a place in the round): name → (client, example,
        *shape) inside a local step, (client, *shape) for updates, (*shape) for their mean."""
        inputs, labels = self.batches.inputs[:, 0], self.batches.labels[:, 0]
        targets = one_hot(labels, 10, inputs.dtype)
        if stage == "input":
            return {"inputs": inputs, "targets": targets}
        if not self.kept:
            grouped = (value.flatten(0, 1)[:, None] for value in (inputs, targets))
            flat = group_gradients(self.module, self.weights, *grouped)
            self.kept.update({n: v.detach().reshape(*labels.shape, *v.shape[1:]) for n, v in flat.items()})
        tensors = {name: value.clone() for name, value in self.kept.items()}  # a defense may write to its input
        if stage != "example":
            tensors = {name: value.mean(1) for name, value in tensors.items()}
        if stage in (*UPDATE_STAGES, "aggregate"):
            tensors = {name: self.federated.unit * value for name, value in tensors.items()}
        return {name: value.mean(0) for name, value in tensors.items()} if stage == "aggregate" else tensors

    def apply(
        self,
        stage: Stage,
        tensors: Tensors,
        *,
        draw: int = 0,
        clients: tuple[int, ...] | None = None,
        step: int = 0,
        draws: Draws | None = None,
    ) -> dict[str, Tensor]:
        """Apply the defense's transforms at `stage` (a place in the round) to `tensors`, name → tensor, and return the
        result, with the same names and shapes. Transforms at stage `step` also get the undefended example gradients and
        their norms.

        - `draw`: number of the random draws; `draws`: source of random numbers, None draws by a key.
        - `clients`: numbers of the clients on the first axis; None: all clients.
        - `step`: number of the local step."""
        draw_key, left, each = DrawKey(seed=3, draw=draw, round=0, step=step), None, None
        clients = self.clients if clients is None else clients
        if stage == "step":
            each = {name: value[self._places(clients)] for name, value in self.at("example").items()}
            left = norms(each, 2)
        return self.stages.apply(
            stage,
            tensors,
            draw_key,
            clients,
            draws,
            norms=left,
            weights=self.weights,
            examples=None if each is None else {name: value.to(tensors[name]) for name, value in each.items()},
            local=self.local(stage, clients, tensors),
        )[0]

    def local(
        self, stage: Stage, clients: tuple[int, ...] | None = None, tensors: Tensors | None = None
    ) -> Local | None:
        """Return the model, weights and data of a local step, which a transform (a function on tensors) at `stage` may
        read; None for stages outside local steps.

        - `clients`: numbers of the clients; None: all clients.
        - `tensors`: gradients at stage `example`, name → (client, example, *shape): the data are then the examples of
          these gradients only. None: the whole batch."""
        if stage not in STEP_STAGES:
            return None
        examples = self.federated.batch
        if stage == "example" and tensors is not None:
            examples = next(iter(tensors.values())).shape[1]
        rows = self._places(self.clients if clients is None else clients)
        return Local(
            model=self.module,
            weights={n: v.expand(len(rows), *v.shape) for n, v in self.weights.items()},
            inputs=self.batches.inputs[rows, 0, :examples],
            labels=self.batches.labels[rows, 0, :examples],
        )

    def _places(self, clients: tuple[int, ...]) -> list[int]:
        return [self.clients.index(client) for client in clients]

    @property
    def wired(self) -> tuple[Stage, ...]:
        return tuple(filter(self.stages.has, STAGES))


def trial_of(defense: Defense, *, steps: int = 1, batch: int = 3) -> Trial:
    """Return a federated round with `defense` on which contracts (tests of an entry's promises) run: three clients,
    each with `steps` local steps of `batch` examples. Raises `ValueError` if the defense refuses this setting."""
    try:
        hash(defense)
    except TypeError:  # a parameter that is a list
        return _new_trial(defense, steps, batch)
    return _kept_trial(defense, steps, batch)


def federated_of(steps: int, batch: int) -> Federated:
    return Federated(algorithm="fedsgd" if steps == 1 else "fedavg", clients=12, per_round=3, steps=steps, batch=batch)


def _new_trial(defense: Defense, steps: int, batch: int) -> Trial:
    return trial_in(defense, federated_of(steps, batch), clients=CLIENTS)


def trial_in(
    defense: Defense,
    federated: Federated,
    *,
    clients: tuple[int, ...],
    rounds: int = 2,
    network: str = "dlg-lenet",
    params: Mapping[str, Any] | None = None,
) -> Trial:
    """Return a federated round with `defense` on the data set digits, for tests of the defense; large rounds repeat
    examples. Raises `ValueError` if the defense refuses this setting.

    - `federated`: the federated setting, with local steps and batch.
    - `clients`: numbers of the clients in the round.
    - `rounds`: number of rounds of the training to which the round belongs.
    - `network`, `params`: name and parameters of the model; None: its default parameters."""
    module, weights = model(network, params=params)
    shape = (len(clients), federated.steps, federated.batch)
    training = data().training
    count = math.prod(shape)
    rows = np.arange(count) % len(training)
    batches = Batches(
        clients=clients,
        inputs=torch.from_numpy(training.floats(rows)).double().reshape(*shape, *data().shape),
        labels=torch.from_numpy(training.labels[rows]).reshape(shape),
    )
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    chosen = stages(defense, setting_of(federated, rounds=rounds), shapes)
    return Trial(federated=federated, module=module, weights=weights, batches=batches, stages=chosen)


_kept_trial = lru_cache(maxsize=32)(_new_trial)  # a defense's stages may take seconds, and each contract asks


def trials(defense: Defense) -> Iterator[tuple[str, Trial]]:
    """Yield (setting in words, federated round with the defense) for each of three federated settings that the defense
    accepts. If the defense accepts none, the first variant with a single parameter changed (`variants`) that accepts a
    setting takes its place. Raises `ContractSkipped` if all variants refuse every setting."""
    reasons = []
    for variant in variants(defense):
        taken = False
        for words, steps, batch in SETTINGS:
            try:
                trial = trial_of(variant, steps=steps, batch=batch)
            except ValueError as error:
                reasons.append(str(error))
            else:
                taken = True
                yield words, trial
        if taken:
            return
    raise ContractSkipped(f"it refuses every setting: {reasons[0]}")


def first_trial(defense: Defense) -> tuple[str, Trial]:
    """Return (setting in words, federated round with the defense) for the first federated setting that the defense
    accepts; raises `ContractSkipped` if the defense refuses every setting."""
    return next(trials(defense))


def lead_of(stage: Stage) -> int:
    """Return the number of leading axes of a trial's tensors at `stage`: 2 (client, example), 1 (client) or 0."""
    return 2 if stage in ("input", "example") else 0 if stage == "aggregate" else 1


def variants(defense: Defense) -> Iterator[Defense]:
    """Yield `defense`, then copies of it with a single parameter changed: a copy for each other option of each `bool`
    or `Literal` parameter. Copies that the class refuses are left out."""
    yield defense
    entry: Any = defense  # a dataclass, as the contract `declared` requires
    hints = get_type_hints(type(defense))
    for item in dataclasses.fields(entry):
        hint = hints[item.name]
        options: tuple[Any, ...] = get_args(hint) if get_origin(hint) is Literal else ()
        options = (True, False) if hint is bool else options
        for option in options:
            if option == getattr(defense, item.name):
                continue
            try:
                yield dataclasses.replace(entry, **{item.name: option})
            except ValueError:
                continue  # this option needs other parameters as well


def context_of(trial: Trial, stage: Stage, *, draw: int = 0) -> Context:
    """Return the context (setting, random draws, weights, leading axes) that a transform at `stage` gets in the round
    `trial`, so that a contract can call the transform alone. `draw` numbers the random draws: equal numbers give equal
    draws."""
    rows: tuple[tuple[int, ...], ...] = tuple((client,) for client in CLIENTS)
    if stage in ("input", "example"):
        rows = tuple((client, example) for client in CLIENTS for example in range(trial.federated.batch))
    lead, each = lead_of(stage), trial.at("example") if stage == "step" else None
    return Context(
        lead=lead,
        stage=stage,
        round=0,
        step=0,
        setting=trial.stages.setting,
        draws=KeyedDraws(seed=3, fields=(draw, 0, 0, stage), rows=rows if lead else ((),)),
        norms=norms(each, 2) if each else None,
        examples=each,
        weights=trial.weights,
        local=trial.local(stage),
    )


def require_near(first: Tensors, second: Tensors, words: str, close: float = CLOSE) -> None:
    """Raise `ContractBroken` if a tensor in `first` and the tensor of the same name in `second` differ by more than
    `close` (absolute, or relative for values above 1). `words` begin the error message."""
    for name, value in first.items():
        apart = gap(value, second[name])
        require(apart <= close, f"{words}: {name} differs by {apart:.1e}, allowed {close:.0e}")
