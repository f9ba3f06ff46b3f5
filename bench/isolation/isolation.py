"""Plug-ins in separate processes: the process which draws and scores the true examples runs no plug-in code.

    scorer     the worker: draws true examples, matches, scores, writes the record; loads no plug-in
    pipeline   true examples → reading: transforms, foreign models and data sets, trainings
    attacker   reading → reconstruction: a process per defense with plug-ins, and a clean process for built-in plain
               attackers, which get data only

The scorer reads answers as data (`bench.isolation.wire`).  A defense therefore changes neither the scores nor an attack
without knowledge of the defense.  The processes are no sandbox (SECURITY.md)."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from bench.answer.context import Memory, RunContext
from bench.answer.crafted import choices
from bench.answer.place import HERE, Usage
from bench.answer.reconstruct import recalled, remember
from bench.answer.setup import data_is_kept, keep_data
from bench.answer.truth import CellTruth
from bench.answer.values import Attempt, Diagnosis
from bench.cell import AnyCell, AttackCell, Entry, TrainingCell
from bench.datasets.base import Data, split
from bench.errors import PluginError
from bench.federated.training import accuracy
from bench.isolation import served
from bench.isolation.foreign import entries_of, foreign, needs_plugins
from bench.isolation.helper import Helper, HelperDied, OnProgress
from bench.isolation.process import timeout_reason, trace_path
from bench.record.checkpoints import checkpoint_path, read_weights
from bench.record.schema import TrainingCost, TrainingResult
from bench.registry import entries as registry
from bench.trip import Tensors

ROLES = PIPELINE, ATTACKER = "pipeline", "attacker"
GRACE = 10.0  # seconds beyond a cell's limit for the plug-in process to write its stacks
T = TypeVar("T")


class Isolation:
    """Runner of cells (experiments) with plug-in code: this code runs in separate processes, which a worker starts.
    Cells without plug-in code run in the worker itself."""

    def __init__(self, plugins: Sequence[str], device: str, *, fork: bool = False) -> None:
        """Prepare the processes for the plug-in files and modules `plugins`; each starts at its first call. `fork` True
        starts them as copies of this process (`Helper.fork`); allowed only right after this process's start."""
        self._pipeline = Helper(PIPELINE, plugins, device)
        self._clean = Helper(ATTACKER, (), device)
        self._plugins, self._device = plugins, device
        # a description runs in its attacker's process: a process per defense
        self._attackers: dict[str, Helper] = {}
        self._reported = Usage()
        self._answers: dict[tuple[str, str, str], Any] = {}
        if fork and plugins:
            for each in self._helpers:
                each.fork()
        self.origins = self._pipeline.call(served.origins) if plugins else ()
        registry.declare(self.origins)

    def concerns(self, cell: AnyCell) -> bool:
        """Return whether the cell (experiment) uses an attack, defense, model or data set from outside bench."""
        return any(foreign(kind, name) for kind, name in entries_of(cell).items())

    def data(self, cell: AnyCell, context: RunContext, memory: Memory) -> Data:
        """Return the data set of the cell (experiment), with its splits. Code of a plug-in data set runs in a plug-in
        process. `context` has the run's folders, and `memory` (values kept between cells) keeps the data."""
        if foreign("datasets", cell.dataset.name) and not data_is_kept(cell, memory):
            raw, private = self._pipeline.call(served.raw_data, cell, context)
            keep_data(cell, memory, split(raw, name=cell.dataset.name, private=private))
        return HERE.data(cell, context, memory)

    def attack_together(self, cell: AnyCell, company: Sequence[AnyCell], context: RunContext, memory: Memory) -> None:
        """Attack the readings (observed updates) of `cell` together with those of suitable later cells (experiments) in
        `company`, in a single batch; `memory` (values kept between cells) stores the results. `context` has the run's
        folders and limits. Cells with plug-in code are left out; for a `cell` with plug-in code, nothing is done."""
        if not self.concerns(cell):
            HERE.attack_together(cell, [other for other in company if not self.concerns(other)], context, memory)

    def attacked(
        self, cell: AttackCell, truth: CellTruth, context: RunContext, memory: Memory
    ) -> tuple[Diagnosis, Attempt]:
        """Run the round of the cell (experiment) and attack its readings (observed updates) in plug-in processes.
        Return the checks of the readings, and the reconstruction with its cost.

        - `truth`: true examples for scores, which stay in this process.
        - `context`: the run's folders, device and limits.
        - `memory`: values kept between cells, such as earlier reconstructions.

        Raises `NotApplicable` for a cell that cannot run, and `PluginError` for a fault in a plug-in."""
        if not self.concerns(cell):
            return HERE.attacked(cell, truth, context, memory)
        return _twice(lambda remaining: self._attacked(cell, remaining, memory), cell, context)

    def _attacked(
        self, cell: AttackCell, remaining: Callable[[], RunContext], memory: Memory
    ) -> tuple[Diagnosis, Attempt]:
        attacker = self._attacker_of(cell) if needs_plugins(cell) else self._clean
        shared, crafted = cell.grants.server == "listen", list[Tensors]()
        while len(crafted) < choices(cell):
            known_before = self._pipeline.call(served.server, cell, remaining(), crafted)
            crafted.append(attacker.call(served.craft, known_before, cell))
        reading, diagnosis = self._pipeline.call(served.observe, cell, remaining(), crafted)
        key = attacker.call(served.hold, reading, cell)
        known = recalled(key, memory) if shared else None
        if known is None:
            known = attacker.call(served.attempt, cell, remaining())
            if shared:
                remember(key, cell, known, memory)
        return diagnosis, known

    def train(
        self, cell: TrainingCell, context: RunContext, memory: Memory, on_progress: OnProgress
    ) -> tuple[TrainingResult, TrainingCost]:
        """Run the training of the cell (experiment) in a plug-in process. Return the result, such as accuracy and ε by
        round, and the time cost of the defense. Afterwards this process measures the accuracy of the last tested
        checkpoint itself, because plug-in code may report a wrong accuracy.

        - `context`: the run's folders, device and limits.
        - `memory`: values kept between cells, such as data sets.
        - `on_progress`: receives the training's progress.

        Raises `PluginError` if the measured accuracy differs from the result."""
        if not self.concerns(cell):
            return HERE.train(cell, context, memory, on_progress)
        result, cost = _twice(
            lambda remaining: self._pipeline.call(served.train, cell, remaining(), on_progress=on_progress),
            cell,
            context,
        )
        if not (foreign("models", cell.model.name) or result.diverged):
            _check_accuracy(cell, result, context, self.data(cell, context, memory))
        return result, cost

    def ask(self, function: Callable[..., T], kind: str, entry: Entry) -> T:
        """Run `function(kind, entry)` in a plug-in process, and return its value. The plug-in's code then never runs in
        this process: for example, `function` tests the contracts of an entry (an attack, defense, model or data set). A
        repeated call returns the stored value. `kind` is "attacks", "defenses", "models" or "datasets"."""
        key = (function.__qualname__, kind, entry.model_dump_json())
        if key not in self._answers:
            self._answers[key] = self._pipeline.call(function, kind, entry)
            self.usage()
        answer: T = self._answers[key]
        return answer

    def usage(self) -> Usage:
        """Return the CPU time and memory that the plug-in processes used since the previous call, for the cost in a
        record."""
        now = Usage()
        for each in self._helpers:
            now = now.plus(each.usage)
        used = replace(now, cpu_seconds=now.cpu_seconds - self._reported.cpu_seconds)
        self._reported = now
        return used

    def close(self) -> None:
        """End all plug-in processes."""
        for each in self._helpers:
            each.close()

    @property
    def _helpers(self) -> tuple[Helper, ...]:
        return (self._pipeline, self._clean, *self._attackers.values())

    def _attacker_of(self, cell: AttackCell) -> Helper:
        if cell.defense.name not in self._attackers:
            self._attackers[cell.defense.name] = Helper(ATTACKER, self._plugins, self._device)
        return self._attackers[cell.defense.name]


def _twice(answer: Callable[[Callable[[], RunContext]], T], cell: AnyCell, context: RunContext) -> T:
    """Return the value of `answer`; if a process dies, call `answer` again, since the machine may be at fault. `answer`
    receives a function that returns the context with the remaining time. Raises `PluginError` for a second death, and
    for a death at the time limit."""
    began, limit = time.monotonic(), context.time_limit

    def remaining() -> RunContext:
        left = None if limit is None else max(0.1, limit - (time.monotonic() - began))
        return replace(context, time_limit=left)

    for role in ROLES:
        trace_path(context.run, cell.id, role).unlink(missing_ok=True)  # from an earlier run
    for last in (False, True):
        try:
            return answer(remaining)
        except HelperDied:
            for trace in (trace_path(context.run, cell.id, role) for role in ROLES):
                if limit is not None and trace.exists() and trace.stat().st_size:
                    raise PluginError(f"{timeout_reason(limit, trace)}") from None
            if last:
                raise
    raise AssertionError


def _check_accuracy(cell: TrainingCell, result: TrainingResult, context: RunContext, data: Data) -> None:
    reported = dict(result.curve)
    rounds = [round_ for round_ in result.checkpoints if round_ in reported]
    if not rounds:
        return
    path = checkpoint_path(context.run, cell.id, max(rounds))
    model = registry.of("models", cell.model).build(data.shape, data.classes).eval()
    measured = accuracy(model, read_weights(path), data.test, cell.test_examples)
    if abs(measured - reported[max(rounds)]) > 1e-3:  # a GPU may round a tie differently
        raise PluginError(
            f"the defense's process reports an accuracy of {reported[max(rounds)]:.3f} at round {max(rounds)}, and its "
            f"weights have {measured:.3f}; a plug-in must not change bench's code"
        )
