"""Functions that a plug-in process runs for the process which started it.  The last argument is always the plug-in
process's `State`."""

import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any, cast

import cloudpickle
from torch import nn

from bench.answer.context import Memory, RunContext, TrainingProgress
from bench.answer.crafted import choose
from bench.answer.inserted import program
from bench.answer.observation import draw_and_observe, known_to_server
from bench.answer.place import Usage
from bench.answer.reconstruct import ReadingKey, attack_reading, attacker_of, reading_key
from bench.answer.train import train_cell
from bench.answer.values import Attempt, Diagnosis
from bench.cell import AnyCell, AttackCell, TrainingCell
from bench.datasets.base import Dataset, Raw
from bench.datasets.loading import read
from bench.errors import BenchError, NotApplicable, PluginError, with_place
from bench.federated.simulator import RoundSimulator
from bench.isolation import wire
from bench.isolation.foreign import needs_plugins
from bench.isolation.process import end_with, exit_after, single_threaded, trace_path
from bench.models.base import Model
from bench.record.schema import TrainingCost, TrainingResult
from bench.registry import entries as registry
from bench.trip import Reading, Server, Tensors


@dataclass(slots=True, kw_only=True)
class State:
    """Memory of a plug-in process between calls from its parent process. Every function in this module gets the memory
    as its last argument."""

    memory: Memory = field(default_factory=Memory)
    """Cache of data sets, reconstructions and simulated readings."""
    origins: tuple[registry.Origin, ...] = ()
    """Sources (file or distribution) of the attacks, defenses, models and data sets from plug-ins."""
    held: tuple[Reading, ReadingKey] | None = None
    """Readings (observed updates) for the next attack, with their key; None before the first."""
    on_progress: Callable[[TrainingProgress], None] = lambda progress: None
    """Function that sends a training's progress to the parent."""


def origins(state: State) -> tuple[registry.Origin, ...]:
    """Return the sources (file or distribution) of the plug-in attacks, defenses, data sets and models that this
    process has loaded, from its `state`."""
    return state.origins


def raw_data(cell: AnyCell, context: RunContext, state: State) -> tuple[Raw, bool]:
    """Load the data set of a cell (experiment) in this plug-in process, for a data set that a plug-in defines. Return
    all examples, not yet split into training, test and public data, and True if the data are private. `context` has the
    run's folders; `state` is not used."""
    dataset: Dataset = registry.of("datasets", cell.dataset)
    return read(dataset, cell.dataset.name, context.data_dir), dataset.private


def server(cell: AttackCell, context: RunContext, crafted: Sequence[Tensors], state: State) -> bytes:
    """Return everything that a malicious server knows before the next round, as bytes for `craft` in the attacker's
    process. A malicious server chooses the weights that clients get.

    - `cell`: the experiment; `context` has the run's folders.
    - `crafted`: the server's weights in the rounds before, name → tensor for each round.
    - `state`: its memory keeps data sets."""
    return _packed(known_to_server(cell, context, state.memory, crafted), cell)


def craft(known: bytes, cell: AttackCell, state: State) -> Tensors:
    """Return the weights that a malicious server, the attack in `cell` (the experiment), sends to the clients, name →
    tensor. `known` are the bytes from `server`; `state` is not used."""
    return choose(cell, _unpacked(known, cell))


def observe(cell: AttackCell, context: RunContext, crafted: Sequence[Tensors], state: State) -> tuple[bytes, Diagnosis]:
    """Run the defended round of a cell (experiment) in this process, apart from the attacker, who must not see the true
    examples. Return the attacker's readings (observed updates) as bytes for the attacker's process, and the checks of
    the readings.

    - `context`: the run's folders and device.
    - `crafted`: weights that the attack chose for each round, name → tensor; empty: honest weights.
    - `state`: its memory keeps data sets and simulated readings.

    If the attacker's process needs no code of a plug-in (attack and model are built-in, the defense is unknown to the
    attacker), the bytes hold only numbers and texts. Otherwise the bytes are a pickle. Raises `PluginError` if pickling
    fails."""
    observation = draw_and_observe(cell, context, state.memory, crafted)
    return _packed(observation.reading, cell), observation.diagnosis


def hold(reading: bytes, cell: AttackCell, state: State) -> ReadingKey:
    """First half of an attack in the attacker's process: unpack the readings (observed updates) of `cell` (the
    experiment) from the bytes `reading` that `observe` returned, and keep the readings in `state`. Return a key of
    readings and attack; a known reconstruction with the same key makes the second half, `attempt`, unnecessary."""
    received: Reading = _unpacked(reading, cell)
    if isinstance(received.simulator, RoundSimulator):
        received = replace(received, simulator=replace(received.simulator, kept=state.memory.simulations))
    state.held = received, reading_key(received, cell)
    return state.held[1]


def _packed(known: Reading | Server, cell: AttackCell) -> bytes:
    if not needs_plugins(cell):
        return wire.dump(_with_model(known, cast(nn.Module, None)))
    try:
        packed: bytes = cloudpickle.dumps(known)
    except Exception as error:
        raise PluginError(
            f"the reading cannot be sent to the attacker's process: {with_place(error)}; let a transform hold tensors, "
            "numbers and functions, and no open files or locks"
        ) from None
    return packed


def _unpacked(content: bytes, cell: AttackCell) -> Any:
    if needs_plugins(cell):
        return pickle.loads(content)
    received = wire.load(content)
    architecture: Model = registry.of("models", cell.model)
    net = architecture.build(received.shape, received.classes).eval()
    return _with_model(received, program(cell, net, received.shape))


def _with_model(known: Reading | Server, model: nn.Module) -> Reading | Server:
    if isinstance(known, Server) and known.seen is not None:
        known = replace(known, seen=replace(known.seen, model=model))
    return replace(known, model=model)


def attempt(cell: AttackCell, context: RunContext, state: State) -> Attempt:
    """Second half of an attack in the attacker's process: run the attack of `cell` (the experiment) on the readings
    (observed updates) that `hold` stored in `state`. Return the reconstruction with its cost. `context` has the run's
    device and limits."""
    assert state.held is not None
    reading, key = state.held
    return attack_reading(attacker_of(cell, reading), reading, cell, context, key)


def train(cell: TrainingCell, context: RunContext, state: State) -> tuple[TrainingResult, TrainingCost]:
    """Run the training of the cell (experiment); return its result and the time cost of the defense. `context` has the
    run's folders; `state` keeps data sets and sends progress to the parent process."""
    return train_cell(cell, context, state.memory, state.on_progress)


def serve(descriptor: int) -> None:
    """Main loop of a plug-in process: run the functions that the parent process calls through a pipe, and send their
    results, until the pipe closes or the parent ends. `descriptor` is the pipe's file descriptor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    pipe: Connection[Any, Any] = Connection(descriptor)
    path, parent, role, plugins, device = pickle.loads(pipe.recv_bytes())
    sys.path[:] = path
    end_with(parent)
    single_threaded()
    state, loaded, used = State(), False, Usage()

    def send(kind: str, value: Any, usage: Usage) -> None:
        try:
            pipe.send_bytes(wire.dump((kind, value, usage)))
        except OSError:
            os._exit(1)  # the parent is gone

    state.on_progress = lambda progress: send("progress", progress, Usage())
    while True:
        try:
            function, arguments = pickle.loads(pipe.recv_bytes())  # from the trusted parent
        except EOFError:
            sys.stdout.flush()
            os._exit(0)  # at once: tearing torch down takes a second
        kind = "result"
        try:
            if not loaded:
                state.origins = tuple(origin for plugin in plugins for origin in registry.add_plugin(plugin))
                loaded = True
            with _limited(arguments, role):
                value = function(*arguments, state)
        except (BenchError, NotApplicable) as error:
            kind, value = "error", error
        except Exception as error:
            kind, value = "error", BenchError(with_place(error))
        now = Usage.here()
        send(kind, value, replace(now, cpu_seconds=now.cpu_seconds - used.cpu_seconds))
        used = now


def _limited(arguments: tuple[Any, ...], role: str) -> Any:
    """Return a context that ends the process at the cell's time limit, even if a plug-in blocks the interpreter. The
    limit and the cell come from the `arguments` of the call; `role` names the process."""
    context = next((each for each in arguments if isinstance(each, RunContext)), None)
    cell = next((each for each in arguments if isinstance(each, AttackCell | TrainingCell)), None)
    if context is None or cell is None or context.time_limit is None:
        return nullcontext()
    return exit_after(context.time_limit, trace_path(context.run, cell.id, role))
