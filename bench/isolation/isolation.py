"""Plug-ins in processes of their own: the process that draws the truth and scores runs none of their code.

    scorer     the worker: draws the truth, pairs, scores, writes the record; loads no plug-in
    pipeline   truth → reading: the defense's transforms, a model's or a data set's code, trainings
    attacker   reading → reconstruction: one for each defense with the plug-ins, and one without them for plain
               attackers of bench's own, who get data alone

What a plug-in's process sends is read as data (`bench.isolation.wire`).  This keeps a defense from the scorer and from
attackers who do not know it; it is no sandbox (SECURITY.md).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from bench.answer.checks import Diagnosis
from bench.answer.context import Memory, RunContext
from bench.answer.elsewhere import Usage
from bench.answer.reconstruct import Attempt, recalled, remember
from bench.answer.setup import data_is_kept, keep_data, load_data
from bench.cell import AnyCell, AttackCell, Entry, TrainingCell
from bench.datasets.base import split
from bench.errors import PluginError
from bench.federated.training import accuracy
from bench.isolation import served
from bench.isolation.foreign import entries_of, foreign, needs_plugins
from bench.isolation.helper import Helper, HelperDied, OnProgress
from bench.isolation.process import timeout_reason, trace_path
from bench.record.checkpoints import checkpoint_path, read_weights
from bench.record.schema import TrainingCost, TrainingResult
from bench.registry import entries as registry

ROLES = PIPELINE, ATTACKER = "pipeline", "attacker"
GRACE = 10.0  # seconds beyond a cell's limit, in which its plug-ins' process says where it hung
T = TypeVar("T")


class Isolation:
    """The processes of one worker that run plug-ins' code."""

    def __init__(self, plugins: Sequence[str], device: str, *, fork: bool = False) -> None:
        """`fork` where this process has just begun (`Helper.fork`)."""
        self._pipeline = Helper(PIPELINE, plugins, device)
        self._clean = Helper(ATTACKER, (), device)
        self._plugins, self._device = plugins, device
        # a description runs in its attacker's process: each defense has one of its own
        self._attackers: dict[str, Helper] = {}
        self._reported = Usage()
        self._answers: dict[tuple[str, str, str], Any] = {}
        if fork and plugins:
            for each in self._helpers:
                each.fork()
        self.origins = self._pipeline.call(served.origins) if plugins else ()
        registry.declare(self.origins)

    def concerns(self, cell: AnyCell) -> bool:
        """Whether an entry of the cell is not bench's own."""
        return any(foreign(kind, name) for kind, name in entries_of(cell).items())

    def provide_data(self, cell: AnyCell, context: RunContext, memory: Memory) -> None:
        """Put the data of a plug-in's data set into memory; they are split, and hashed, here."""
        if foreign("datasets", cell.dataset.name) and not data_is_kept(cell, memory):
            raw, kind, private = self._pipeline.call(served.raw_data, cell, context)
            keep_data(cell, memory, split(raw, name=cell.dataset.name, kind=kind, private=private))

    def attacked(self, cell: AttackCell, context: RunContext, memory: Memory) -> tuple[Diagnosis, Attempt]:
        """The reading's diagnosis and what its attacker makes of it, or made of an equal one.

        Raises `NotApplicable` and `PluginError` as the same does in one process.
        """
        return _twice(lambda remaining: self._attacked(cell, remaining, memory), cell, context)

    def _attacked(
        self, cell: AttackCell, remaining: Callable[[], RunContext], memory: Memory
    ) -> tuple[Diagnosis, Attempt]:
        reading, diagnosis = self._pipeline.call(served.observe, cell, remaining())
        attacker = self._attacker_of(cell) if needs_plugins(cell) else self._clean
        key = attacker.call(served.hold, reading, cell)
        known = recalled(key, memory)
        if known is None:
            known = attacker.call(served.attempt, cell, remaining())
            remember(key, cell, known, memory)
        return diagnosis, known

    def train(
        self, cell: TrainingCell, context: RunContext, memory: Memory, on_progress: OnProgress
    ) -> tuple[TrainingResult, TrainingCost]:
        """A training with a plug-in's defense.

        The accuracy of its last kept round is measured again here.  Raises `PluginError` where it is another.
        """
        result, cost = _twice(
            lambda remaining: self._pipeline.call(served.train, cell, remaining(), on_progress=on_progress),
            cell,
            context,
        )
        if not (foreign("models", cell.model.name) or result.diverged):
            _check_accuracy(cell, result, context, memory)
        return result, cost

    def ask(self, function: Callable[..., T], kind: str, entry: Entry) -> T:
        """What a function says of an entry, with the plug-ins' code: once, and in no cell's time."""
        key = (function.__qualname__, kind, entry.model_dump_json())
        if key not in self._answers:
            self._answers[key] = self._pipeline.call(function, kind, entry)
            self.usage()
        answer: T = self._answers[key]
        return answer

    def usage(self) -> Usage:
        """What the processes used since this was asked last."""
        now = Usage()
        for each in self._helpers:
            now = now.plus(each.usage)
        used = replace(now, cpu_seconds=now.cpu_seconds - self._reported.cpu_seconds)
        self._reported = now
        return used

    def close(self) -> None:
        """End all processes."""
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
    """The answer; once more where a process died of it, as that may have been the machine's fault.

    `answer` is given the context with the time that is left of the cell's.  Raises `PluginError` for a second death,
    and for one at the time limit.
    """
    began, limit = time.monotonic(), context.time_limit

    def remaining() -> RunContext:
        left = None if limit is None else max(0.1, limit - (time.monotonic() - began))
        return replace(context, time_limit=left)

    for role in ROLES:
        trace_path(context.run, cell.id, role).unlink(missing_ok=True)  # of an earlier run
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


def _check_accuracy(cell: TrainingCell, result: TrainingResult, context: RunContext, memory: Memory) -> None:
    """Measure the accuracy of the last round that was kept and tested; raises `PluginError` for another."""
    reported = dict(result.curve)
    rounds = [round_ for round_ in result.checkpoints if round_ in reported]
    if not rounds:
        return
    path, data = checkpoint_path(context.run, cell.id, max(rounds)), load_data(cell, context, memory)
    model = registry.of("models", cell.model).build(data.shape, data.classes).eval()
    measured = accuracy(model, read_weights(path), data.test, cell.test_examples)
    if abs(measured - reported[max(rounds)]) > 1e-3:  # a GPU may round a tie another way
        raise PluginError(
            f"the defense's process reports an accuracy of {reported[max(rounds)]:.3f} at round {max(rounds)}, and its "
            f"weights have {measured:.3f}; a plug-in must not change bench's code"
        )
