"""The federated round as a black box for attackers: candidates in, simulated readings out.

An attacker without a description can still run a defense's code on chosen examples (Wu et al. 2023).  The attacker
never sees the defense, only a function which runs the round with draws independent from the victims' draws."""

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from bench.cell import Federated
from bench.defenses.base import Tensors
from bench.errors import PluginError
from bench.federated.batches import Batches
from bench.federated.describe import untouched
from bench.federated.pipeline import run_round
from bench.federated.stages import DrawKey, Stages
from bench.points import STAGES, Point, Scope, Stage

SIMULATIONS = 5000  # readings that a cell's attacker may simulate
CHUNK_BYTES = 100e6  # limit for gradients computed in a single call
KEPT_BYTES = 300e6  # limit for a process's stored simulated readings

Kept = dict[str, dict[str, Tensor]]  # a call's key → simulated readings


def simulator_seed(seed: int) -> int:
    """Return the seed for rounds that an attacker runs itself, a hash of the experiment's `seed`. Because the seeds
    differ, these rounds do not repeat the random draws of the attacked round."""
    return int.from_bytes(hashlib.sha256(f"simulator {seed}".encode()).digest()[:8], "little")


@dataclass(slots=True, kw_only=True)
class RoundSimulator:
    """Black-box access of an attacker to a defense: a call runs the federated round on examples that the attacker
    chooses, and returns the reading at the interception point `point`. Clients start with initial states (no memory of
    earlier rounds)."""

    name: str
    """Name that, together with the weights, distinguishes simulators in a process."""
    model: nn.Module
    """Model in eval mode."""
    weights: Tensors
    """The server's weights at the start of the round, name → (*shape)."""
    stages: Stages
    """The defense's stages, with the server's states."""
    federated: Federated
    """Federated setting: local steps, batch, learning rate, algorithm."""
    point: Point
    """Interception point: the place in the round where the attacker observes the update."""
    draw_key: DrawKey
    """Key of the defense's random draws, with the attacker's seed. Each call sets the key's numbers of observation and
    draw."""
    classes: int
    """Number of classes."""
    observations: int
    """Number of observations (repeated reports of a client) in a reading."""
    public_inputs: Tensor
    """Public examples (example, *shape); they fill a batch or round if the defense mixes examples or clients."""
    public_labels: Tensor
    """Labels of `public_inputs` (example,)."""
    whole_round: bool = False
    """True if the defense mixes clients within a round."""
    budget: int = SIMULATIONS
    """Largest number of simulated observations."""
    kept: Kept = field(default_factory=dict)
    """Stored results, hash of the call → readings, shared by the cells of a process; a repeated call reuses its
    result."""
    used: int = 0
    """Number of simulated observations so far."""
    seconds: float = 0.0
    """Time spent in simulations, in seconds."""
    _asked: set[str] = field(default_factory=set)

    def __repr__(self) -> str:
        """Return a text for the reading's hash: equal texts mean equal results for equal calls at equal weights."""
        return f"RoundSimulator({self.name!r}, budget={self.budget})"

    def __call__(self, inputs: Tensor, labels: Tensor, draw: int) -> dict[str, Tensor]:
        """Return simulated readings (observed updates) for candidates (guessed examples), name → (reading, observation,
        *shape), in gradient units.

        - `inputs`: candidates' inputs (reading, example, *shape) in [0, 1].
        - `labels`: candidates' labels (reading, example).
        - `draw`: number of the defense's random draws; calls with equal `draw` use equal draws.

        Each observation of a candidate counts as a simulation; a repeated call counts once. Raises `PluginError` beyond
        the budget."""
        key = self._key(inputs, labels, draw)
        if key not in self._asked:
            cost = len(inputs) * self.observations
            if self.used + cost > self.budget:
                raise PluginError(
                    f"the attack asks for {cost} simulations after {self.used}; the budget is {self.budget}"
                )
            self.used += cost
            self._asked.add(key)
        if key not in self.kept:
            began = time.perf_counter()
            dtype = next(iter(self.weights.values())).dtype
            shown = [
                self._observe(inputs.detach().to("cpu", dtype), labels.cpu(), draw, observation)
                for observation in range(self.observations)
            ]
            self._keep(key, {name: torch.stack([one[name] for one in shown], 1) for name in self.weights})
            self.seconds += time.perf_counter() - began
        return {name: value.clone() for name, value in self.kept[key].items()}

    def _observe(self, inputs: Tensor, labels: Tensor, draw: int, observation: int) -> dict[str, Tensor]:
        draw_key = replace(self.draw_key, draw=draw, observation=observation)
        steps = self.federated.steps if self.point.after_training else 1
        federated = self.federated.model_copy(update={"steps": steps})
        unit = federated.unit * steps if self.point.after_training else 1.0
        parts = []
        for batches, count in self._rounds(inputs, labels, steps):
            stages = _of_clients(self._seen(), batches.clients, self.weights)
            taps = run_round(self.model, self.weights, batches, federated, stages, draw_key, classes=self.classes)
            tensors = taps.shown[self.point.after]
            if self.point.scope is Scope.AGGREGATE:
                tensors = {name: value[None] for name, value in tensors.items()}
            parts.append({name: value[:count] / unit for name, value in tensors.items()})
        return {name: torch.cat([part[name] for part in parts]) for name in self.weights}

    def _rounds(self, inputs: Tensor, labels: Tensor, steps: int) -> Iterator[tuple[Batches, int]]:
        """Yield rounds whose clients hold the candidates' examples, and the number of readings to keep from each.
        `steps` is the number of local steps. Further clients only fill a round. Client numbers go on across rounds: no
        two candidates share a draw."""
        senders = self.stages.setting.senders if self.point.scope is Scope.AGGREGATE else 1
        count, rows = len(inputs), (len(inputs) * senders, steps, -1)
        if self.point.scope is Scope.EXAMPLE and _batchwise(self._seen()):
            inputs, labels = self._filled(inputs, labels)
        x, y = inputs.reshape(*rows, *inputs.shape[2:]), labels.reshape(rows)
        size = self.stages.setting.senders
        if self.point.scope is not Scope.AGGREGATE and not self.whole_round:
            values = sum(value.numel() for value in self.weights.values())
            size = max(1, int(CHUNK_BYTES / (8 * values * y[0].numel())))
        elif self.point.scope is not Scope.AGGREGATE and count % size:  # fill the last round
            missing = size - count % size
            more, labels_of = self._strangers(missing * y[0].numel())
            x = torch.cat([x, more.reshape(missing, *x.shape[1:]).to(x)])
            y = torch.cat([y, labels_of.reshape(missing, *y.shape[1:])])
        for first in range(0, len(x), size):
            at = slice(first, first + size)
            clients = tuple(range(first, min(first + size, len(x))))
            real = 1 if self.point.scope is Scope.AGGREGATE else min(count - first, len(clients))
            yield Batches(clients=clients, inputs=x[at], labels=y[at]), real

    def _filled(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return each candidate's batch: the candidate first, then public examples, (reading, example, *shape)."""
        others = self.federated.batch - 1
        more, labels_of = self._strangers(len(inputs) * others)
        more = more.reshape(len(inputs), others, *inputs.shape[2:]).to(inputs)
        return torch.cat([inputs, more], 1), torch.cat([labels, labels_of.reshape(len(labels), others)], 1)

    def _strangers(self, count: int) -> tuple[Tensor, Tensor]:
        at = torch.arange(count) % len(self.public_inputs)
        return self.public_inputs[at], self.public_labels[at]

    def _seen(self) -> Stages:
        """Return the stages without the transforms after the point, which would only cost time."""
        seen = {stage: self.stages.transforms.get(stage, ()) for stage in STAGES if self.point.sees(stage)}
        return replace(self.stages, transforms=seen)

    def _key(self, inputs: Tensor, labels: Tensor, draw: int) -> str:
        digest = hashlib.sha256(f"{self.name} {draw} {tuple(inputs.shape)} {inputs.dtype}".encode())
        for tensor in (inputs, labels):
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _keep(self, key: str, shown: dict[str, Tensor]) -> None:
        self.kept[key] = shown
        held = {each: sum(value.nbytes for value in tensors.values()) for each, tensors in self.kept.items()}
        for oldest in list(self.kept)[:-1]:
            if sum(held.values()) <= KEPT_BYTES:
                break
            del self.kept[oldest], held[oldest]


def simulator_name(
    stages: Stages, point: Point, federated: Federated, *, defense: str, data: str, weights: Tensors
) -> str:
    """Return a text that identifies a simulator (black-box access to a defended round): simulators with equal texts
    give equal results for equal calls, so stored results can be shared.

    - `stages`, `point`, `federated`: the defense, interception point and federated setting.
    - `defense`: name of the defense with its parameters; left out of the text if the defense has no stage up to
      `point`.
    - `data`: identifier of the data set.
    - `weights`: the model's weights, name → (*shape)."""
    digest = hashlib.sha256()
    for values in (weights, *(stages.states[place] for place in sorted(stages.states))):
        for name, value in sorted(values.items()):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    acting = tuple(stage for stage in STAGES if point.sees(stage) and stages.has(stage))
    by = "" if untouched(stages, point) else f"{defense} {stages.setting} {acting}"
    setting = federated.model_dump_json(exclude={"partition", "client_examples"})
    return f"{by} {point.scope} {setting} {data} {digest.hexdigest()}"


def _batchwise(stages: Stages) -> bool:
    local: tuple[Stage, ...] = ("input", "example")
    return any(transform.batchwise for stage in local for transform in stages.transforms.get(stage, ()))


def _of_clients(stages: Stages, clients: tuple[int, ...], weights: Tensors) -> Stages:
    """Return the stages with initial states for the numbered `clients`, and unchanged server states. The shapes of
    `weights` give the states' shapes."""
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    states = {}
    for (stage, position), state in stages.states.items():
        transforms = stages.transforms.get(stage, ())
        if transforms:
            transform = transforms[position]
            own = transform.owner == "client"
            states[stage, position] = transform.initial_of(shapes, len(clients)) if own else state
    return replace(stages, states=states, members=clients)
