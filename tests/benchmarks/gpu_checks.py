"""Whether a GPU answers as the CPU does: every registered entry, twice the same, within its memory.

Bounds: an attack in float64 after twelve evaluations, or at its end where it has none, 1e-6 of the inputs' range; cells
and trainings in float32 after three evaluations or rounds, 1e-3.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count as counted
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import small_cells
import torch
from safetensors.torch import load_file
from torch import Tensor

from bench.answer.context import Memory, RunContext
from bench.answer.observation import draw_and_observe
from bench.answer.readings import to_device
from bench.answer.reconstruct import attacker_of, rows_at_once
from bench.answer.run import run
from bench.answer.setup import load_data, prepare, source_of
from bench.attacks.base import Attack
from bench.cell import AnyCell, AttackCell, Entry
from bench.device import repeatable
from bench.errors import NotApplicable
from bench.points import POINTS
from bench.record.checkpoints import checkpoint_path
from bench.record.schema import Record
from bench.record.store import read_arrays
from bench.registry import entries as registry
from bench.rng import Key
from bench.trip import Budget

DOUBLE, SINGLE = 1e-6, 1e-3
EVALUATIONS, FEW = 12, 3
ROWS = 64  # of the checks of memory

# Checks that processes can share, and checks of the whole device's memory.
SHARED = ("attacks, float64", "defenses × points, described", "trainings", "the same twice")
ALONE = ("memory of a row", "out of memory")


@dataclass(frozen=True, kw_only=True)
class Check:
    """`worst` is the largest difference of all cases; `failed` says what is above the bound, a line each."""

    name: str
    cases: int
    worst: float
    bound: float
    failed: tuple[str, ...]
    seconds: float


Case = tuple[str, Callable[[], float | None]]  # in words, and the difference; None: it does not apply


def checks(
    device: str, only: Callable[[str], bool] = lambda words: True, names: tuple[str, ...] = (*SHARED, *ALONE)
) -> Iterator[Check]:
    """The checks `names`, one after the other; `only` chooses among the cases by their words."""
    kinds = (
        ("attacks, float64", DOUBLE, attacks),
        ("defenses × points, described", SINGLE, described),
        ("trainings", SINGLE, trainings),
        ("the same twice", 0.0, twice),
        ("memory of a row", 1.0, memory),
        ("out of memory", 0.0, out_of_memory),
    )
    for name, bound, cases in (each for each in kinds if each[0] in names):
        began, worst, failed, count = time.perf_counter(), 0.0, list[str](), 0
        with tempfile.TemporaryDirectory() as folder:
            for words, difference in cases(device, Path(folder)):
                if not only(words):
                    continue
                try:
                    found = difference()
                except Exception as error:
                    found = float("inf")
                    words = f"{words}: {type(error).__name__}: {error}"
                if found is None:
                    continue
                count, worst = count + 1, max(worst, found)
                if not found <= bound:
                    failed.append(f"{words} ({found:.2g})")
        seconds = round(time.perf_counter() - began, 1)
        yield Check(name=name, cases=count, worst=worst, bound=bound, failed=tuple(failed), seconds=seconds)


def shared(device: str, workers: int) -> Iterator[Check]:
    """The checks `SHARED`, their cases dealt to `workers` processes. `seconds` is the slowest process's time."""
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        parts = list(pool.map(partial(_part, device, workers), range(workers)))
    for same in zip(*parts, strict=True):
        yield Check(
            name=same[0].name,
            cases=sum(each.cases for each in same),
            worst=max(each.worst for each in same),
            bound=same[0].bound,
            failed=tuple(line for each in same for line in each.failed),
            seconds=max(each.seconds for each in same),
        )


def _part(device: str, workers: int, number: int) -> list[Check]:
    torch.set_num_threads(1)
    turn = counted()
    return list(checks(device, only=lambda words: next(turn) % workers == number, names=SHARED))


def attacks(device: str, folder: Path) -> Iterator[Case]:
    """Each attack, with each knowledge, in float64."""
    for name in registry.names("attacks"):
        attack: type[Attack] = registry.load("attacks", name)
        for knowledge in attack.knowledge:
            mixed = name == "demix"  # of mixtures alone
            cell = small_cells.attack_cell(name, "mixup" if mixed else "gaussian", knowledge=knowledge)
            yield f"{name}, {knowledge}", partial(_of_attack, cell, device, folder)


def described(device: str, folder: Path) -> Iterator[Case]:
    """Each defense at each point, to an attacker who knows it."""
    for name in registry.names("defenses"):
        for point in POINTS:
            cell = small_cells.attack_cell("cpl", name, knowledge="adaptive", point=point, evaluations=FEW)
            yield f"{name}, {point}", partial(_of_records, cell, device, folder)


def trainings(device: str, folder: Path) -> Iterator[Case]:
    """Each defense; where it draws noise, a GPU draws other noise, and the accuracy alone is looked at."""
    for name in registry.names("defenses"):
        cell = small_cells.training_cell(name, checkpoints=(3,))
        yield name, partial(_of_records, cell, device, folder)


def twice(device: str, folder: Path) -> Iterator[Case]:
    """Bit for bit: the hash of arrays or checkpoints."""
    cells: tuple[AnyCell, ...] = (
        small_cells.attack_cell("cpl", "gaussian", knowledge="adaptive", readings=8, evaluations=60),
        small_cells.attack_cell("map", "prune", knowledge="adaptive", readings=8, evaluations=60),
        small_cells.attack_cell("gradinv", "prune", readings=8, evaluations=60),
        small_cells.training_cell("adaclip", checkpoints=(3,)),
    )
    for cell in cells:
        yield f"{cell.kind}, {cell.defense}", partial(_repeats, cell, device, folder)


def memory(device: str, folder: Path) -> Iterator[Case]:
    """What a row took, over what `rows_at_once` reckons with: at most 1."""
    for model in ("dlg-lenet", "resnet20"):
        cell = small_cells.attack_cell(
            "cpl", model=Entry(name=model), readings=ROWS, evaluations=110, chunk=ROWS, dataset=small_cells.pictures()
        )
        yield model, partial(_share_of_estimate, cell, device, folder)


def out_of_memory(device: str, folder: Path) -> Iterator[Case]:
    """With too little for all rows, fewer at a time, and the record says so. Rows of `resnet20` take far more than a
    segment of CUDA's allocator (20 MiB), so that the limit lies between one row and all."""
    model = Entry(name="resnet20")
    cell = small_cells.attack_cell(
        "cpl", model=model, readings=ROWS, evaluations=30, chunk=ROWS, dataset=small_cells.pictures()
    )
    yield "halved", partial(_halves, cell, device, folder)


def _of_attack(cell: AttackCell, device: str, folder: Path) -> float | None:
    try:
        reading = draw_and_observe(cell, RunContext(run=folder), Memory()).reading
    except NotApplicable:
        return None
    double = small_cells.in_double(reading)
    attacker, budget, key = attacker_of(cell, double), Budget(evaluations=EVALUATIONS), Key.of_attacker(0)
    here = attacker.reconstruct(double, budget, key)
    with repeatable(device):
        there = attacker.reconstruct(to_device(double, torch.device(device)), budget, key)
    return _difference(here.inputs, there.inputs) if torch.equal(here.labels, there.labels) else float("inf")


def _of_records(cell: AnyCell, device: str, folder: Path) -> float | None:
    here, there = (_answered(cell, at, folder / at.split(":")[0]) for at in ("cpu", device))
    if here.status != there.status:
        raise AssertionError(f"{here.status} on the CPU, {there.status}: {there.reason}")
    if here.status != "done":
        return None
    if isinstance(cell, AttackCell):
        one, other = (
            read_arrays(folder / at, str(record.arrays))["reconstruction"]
            for at, record in (("cpu", here), (device.split(":")[0], there))
        )
        return float(np.abs(one - other).max())
    assert here.training is not None and there.training is not None
    like = small_cells.attack_cell(defense=cell.defense, federated=cell.federated)
    context = RunContext(run=folder)
    stages = prepare(like, source_of(like, load_data(like, context, Memory()), folder), context).stages
    if any(transform.random for each in stages.transforms.values() for transform in each):
        return 0.0 if there.training.diverged == here.training.diverged else float("inf")
    paths = (checkpoint_path(folder / at, cell.id, 3) for at in ("cpu", device.split(":")[0]))
    ours, theirs = (load_file(path) for path in paths)
    return max(_difference(ours[name], theirs[name]) for name in ours)


def _repeats(cell: AnyCell, device: str, folder: Path) -> float:
    first, second = (_answered(cell, device, folder / str(n)) for n in range(2))
    if first.status != "done" or second.status != "done":
        raise AssertionError(first.reason or second.reason)
    if first.training is not None and second.training is not None:
        return float(first.training.checkpoints != second.training.checkpoints)
    return float(first.arrays != second.arrays)


def _share_of_estimate(cell: AttackCell, device: str, folder: Path) -> float:
    reading = draw_and_observe(cell, RunContext(run=folder), Memory()).reading
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    _answered(cell, device, folder)
    took = (torch.cuda.max_memory_allocated() - before) / len(reading)
    free, _ = torch.cuda.mem_get_info()
    return took * rows_at_once(RunContext(run=folder, device=device), reading) / free


def _halves(cell: AttackCell, device: str, folder: Path) -> float:
    torch.cuda.reset_peak_memory_stats()
    whole = _answered(cell, device, folder / "whole")
    peak, rest, (_, total) = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated(), torch.cuda.mem_get_info()
    torch.cuda.empty_cache()  # `rest`: the libraries' workspaces stay
    torch.cuda.set_per_process_memory_fraction(min(1.0, (rest + 0.6 * (peak - rest)) / total))
    try:
        record = _answered(cell, device, folder / "halved")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    if record.attack is None or whole.attack is None:
        raise AssertionError(record.reason or whole.reason)
    if not any(note.startswith("out of memory") for note in record.attack.notes):
        raise AssertionError("it had memory enough")
    return 0.0


def _answered(cell: AnyCell, device: str, folder: Path) -> Record:
    record = run(cell, RunContext(run=folder, device=device), Memory())
    if record.status == "crashed":
        raise AssertionError(record.reason)
    return record


def _difference(one: Tensor, other: Tensor) -> float:
    return float((one.cpu().double() - other.cpu().double()).abs().max())
