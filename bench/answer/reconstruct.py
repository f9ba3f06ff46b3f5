"""Attack readings (observed updates) within the device's memory; equal readings are attacked once."""

import time
from dataclasses import replace

import torch

from bench.answer.context import Memory, RunContext
from bench.answer.readings import reading_hash, to_device
from bench.answer.values import Attempt
from bench.attacks.base import Attack
from bench.cell import AttackCell
from bench.device import repeatable, rows_that_fit
from bench.errors import NotApplicable, PluginError
from bench.registry import entries as registry
from bench.rng import Key
from bench.trip import Budget, Reading, Reconstruction

ReadingKey = tuple[str, str, int, int, int]  # equal readings under the same attack have equal keys
REUSED = 256  # reconstructions remembered per worker
# Numbers per row, at most: gradients in a second derivative, inputs with L-BFGS's history.
_GRADIENTS, _INPUTS = 40, 400


def attacker_of(cell: AttackCell, reading: Reading) -> Attack:
    """Return an instance of the attack that the cell (an experiment) names, with its parameters. Raises `NotApplicable`
    if the attack refuses the `reading` (observed updates)."""
    attacker: Attack = registry.of("attacks", cell.attack)
    if reading.mates_inputs is not None and not attacker.takes_mates:
        raise NotApplicable(
            "it cannot use known examples behind a reading; leave out the grant mates, or take gallery or map"
        )
    if reading.several_rounds and not attacker.takes_rounds:
        raise NotApplicable("it combines no updates from several rounds of a training; take gallery")
    if reason := attacker.refuses(reading):
        raise NotApplicable(reason)
    return attacker


def reading_key(reading: Reading, cell: AttackCell) -> ReadingKey:
    """Return the key under which a reconstruction is cached. Keys are equal for equal readings (observed updates) and
    the same attack, with equal budget and seed in `cell` (an experiment)."""
    return (reading_hash(reading), cell.attack.model_dump_json(), cell.evaluations, cell.chunk, cell.seed)


def recalled(key: ReadingKey, memory: Memory) -> Attempt | None:
    """Return the cached reconstruction of the same attack on equal readings (observed updates), so that the attack need
    not run again; None if there is none. `key` identifies attack and readings (`reading_key`), and `memory` is the
    worker's cache. The result names the cell (experiment) that made the reconstruction."""
    if key not in memory.reconstructions:
        return None
    reconstruction, other = memory.reconstructions[key] = memory.reconstructions.pop(key)
    return Attempt(reconstruction=reconstruction, reused_from=other)


def remember(key: ReadingKey, cell: AttackCell, attempt: Attempt, memory: Memory) -> None:
    """Put the reconstruction `attempt` of `cell` (an experiment) into the worker's cache `memory` under `key`
    (`reading_key`), for later cells with equal readings (observed updates) and attack. A cache with `REUSED` entries
    drops the least recently used entry."""
    if len(memory.reconstructions) >= REUSED:
        del memory.reconstructions[next(iter(memory.reconstructions))]
    memory.reconstructions[key] = (attempt.reconstruction, cell.id)


def reconstruct(reading: Reading, cell: AttackCell, context: RunContext, memory: Memory) -> Attempt:
    """Return the reconstruction for the `reading` (observed updates) of `cell` (an experiment), with its cost. It comes
    from the worker's cache `memory` if the same attack had equal readings, otherwise from a new attack. Readings under
    weights that the attack chose are never cached. `context` gives the device. Raises `PluginError` for an attack that
    writes to its reading or returns a wrong shape."""
    key, shared = reading_key(reading, cell), cell.grants.server == "listen"
    if shared and (known := recalled(key, memory)) is not None:
        return known
    try:
        attempt = attack_reading(attacker_of(cell, reading), reading, cell, context, key)
    except PluginError:
        memory.data.clear()  # the reading holds views of the data, which the attack may have changed
        raise
    if shared:
        remember(key, cell, attempt, memory)
    return attempt


def attack_reading(
    attacker: Attack, reading: Reading, cell: AttackCell, context: RunContext, key: ReadingKey
) -> Attempt:
    """Run the attack `attacker` on the `reading` (observed updates), and return the reconstruction with its cost.
    `cell` gives budget and seed, and `context` the device. `key` is the reading's cache key (`reading_key`), to detect
    that the attack changed the reading. Raises `PluginError` for an attack that writes to its reading or returns a
    wrong shape."""
    began = time.perf_counter()
    budget = Budget(evaluations=cell.evaluations, chunk=cell.chunk)
    reconstruction = attack_readings(attacker, reading, cell, context, budget)
    seconds = time.perf_counter() - began
    if reading_hash(reading) != key[0]:
        raise PluginError(
            f"attack {cell.attack.name} wrote to the reading that it was given; let it work on copies: tensor.clone()"
        )
    simulator = reading.simulator
    return Attempt(
        reconstruction=reconstruction,
        seconds=round(seconds, 4),
        simulations=simulator.used if simulator else None,
        simulation_seconds=round(simulator.seconds, 4) if simulator else None,
    )


def attack_readings(
    attacker: Attack, reading: Reading, cell: AttackCell, context: RunContext, budget: Budget
) -> Reconstruction:
    """Run the attack `attacker` on the `reading` (observed updates) on the device of `context`, and return the
    reconstruction. `cell` gives the seed. `budget` limits the evaluations. The attack gets `budget.chunk` readings at
    once, more if the device has room (`rows_at_once`), and after an out-of-memory error fewer. Raises `PluginError` for
    a reconstruction with a wrong shape."""
    chunk = max(budget.chunk, min(len(reading), rows_at_once(context, reading)))
    with repeatable(context.device):
        key, device = Key.of_attacker(cell.seed), torch.device(context.device)
        reconstruction = _within_memory(attacker, reading, replace(budget, chunk=chunk), key, device)
    _check_shape(reconstruction, reading)
    return reconstruction


def rows_at_once(context: RunContext, reading: Reading) -> int:
    """Return how many readings (observed updates), from several cells (experiments) together, fit in a batch on the
    device of `context`. The number is `context.rows` if set; otherwise the GPU's free memory and the size of a reading
    in `reading` decide. 0 on a CPU: the cell's chunk size then applies."""
    if context.rows is not None:
        return context.rows
    values = next(iter(reading.values.values()))
    numbers = sum(value[0].numel() for value in reading.values.values())
    inputs = reading.examples * reading.public_mean.numel()
    return rows_that_fit(context.device, values.element_size() * (_GRADIENTS * numbers + _INPUTS * inputs))


def _within_memory(
    attacker: Attack, reading: Reading, budget: Budget, key: Key, device: torch.device
) -> Reconstruction:
    """Attack on the device; if its memory is too small, halve the number of readings at once, and add a note."""
    chunk, notes = budget.chunk, list[str](reading.description.notes if reading.description else ())
    while True:
        try:
            at = to_device(reading, device)
            reconstruction = attacker.reconstruct(at, replace(budget, chunk=chunk), key)
            return replace(reconstruction, notes=(*reconstruction.notes, *notes))
        except (MemoryError, RuntimeError) as error:
            if chunk == 1 or not _is_memory(error):
                raise
        torch.cuda.empty_cache()  # only now: the error's traceback still held the tensors to free
        chunk = max(1, chunk // 2)
        notes.append(f"out of memory: went on with {chunk} readings at once")


def _is_memory(error: MemoryError | RuntimeError) -> bool:
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or "can't allocate memory" in str(error)  # torch's message on a CPU


def _check_shape(reconstruction: Reconstruction, reading: Reading) -> None:
    count, inputs = len(reading), reconstruction.inputs
    if inputs.shape[0] != count or inputs.shape[2:] != reading.shape or len(reconstruction.status) != count:
        raise PluginError(
            f"attack returned inputs {tuple(inputs.shape)} and {len(reconstruction.status)} statuses; "
            f"expected ({count}, examples, {', '.join(map(str, reading.shape))}) and {count}"
        )
    way, marks = reconstruction.trajectory, len(reconstruction.history)
    if way is not None and (len(way) != marks or way.shape[1] > count or way.shape[2:] != inputs.shape[1:]):
        raise PluginError(
            f"attack returned a trajectory {tuple(way.shape)}; expected ({marks} marks as in its "
            f"history, at most {count} readings, {', '.join(map(str, inputs.shape[1:]))})"
        )
