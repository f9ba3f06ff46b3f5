"""Run-time estimates for cells: a rough formula, corrected by measured times of similar cells on this machine."""

import math
import statistics
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator

from bench.cell import AnyCell, CheckpointWeights, TrainingCell
from bench.matrix.feasible import examples
from bench.record.schema import Cost, Record
from bench.registry import entries as registry
from bench.sweep.observer import Observer

_REMEMBERED = 32  # latest times kept for each kind of cell
_UNSURE = 60.0  # seconds of measured cells after which this machine's speed counts half


def formula(cell: AnyCell, shape: tuple[int, ...]) -> float:
    """Return a rough run time of a cell (experiment) on a core, in seconds, for a plan before anything is measured.
    `shape` is the shape of an example. The formula follows measurements: 0.5 ms per gradient evaluation of a 28×28
    image by the DLG paper's networks, more for more pixels and images, times the model's `work`; in a training 1.5 ms
    per client and local step, and 0.7 ms per example times the model's `step_work`."""
    federated = cell.federated
    model = registry.load("models", cell.model.name)
    work = float(getattr(model, "work", 1.0))
    if isinstance(cell, TrainingCell):
        steps = cell.last_round * federated.per_round * federated.steps
        return 1 + steps * (0.0015 + 0.0007 * federated.batch * float(getattr(model, "step_work", None) or work))
    attack = registry.load("attacks", cell.attack.name)
    if not getattr(attack, "iterative", True):
        # simulations take time; so does each reading with many candidates, whose gradients are a part of the time
        per_reading = float(getattr(attack, "reading_seconds", 0.0)) * math.sqrt(max(1.0, work))
        rounds = len(cell.weights.rounds) if isinstance(cell.weights, CheckpointWeights) else 1
        return (20.0 if cell.knowledge == "black-box" else 0.2) + cell.readings * rounds * per_reading
    count = examples(cell)
    size = float(max(0.1, (count * math.prod(shape) / 784) ** 0.9))
    return 0.2 + cell.readings * cell.evaluations * 0.0005 * size * work


class Estimates:
    """Run-time estimates for cells (experiments): a formula's time, corrected by the median ratio of measured to
    estimated time of similar cells.

    - `shape`: function from a cell to the shape of its examples.
    - `known`: function from a cell to its published time in seconds, or None. A published time, scaled to this
      machine's speed, replaces the formula."""

    def __init__(
        self, shape: Callable[[AnyCell], tuple[int, ...]], known: Callable[[AnyCell], float | None] = lambda cell: None
    ) -> None:
        self._shape, self._known = shape, known
        self._speeds: deque[tuple[float, float]] = deque(maxlen=16 * _REMEMBERED)  # (seconds here, published)
        self._formula: dict[str, float] = {}
        self._elsewhere: dict[str, float | None] = {}
        self._ratios: defaultdict[Hashable, deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        self._medians: dict[Hashable, float] = {}
        self._lock = threading.Lock()  # the progress thread reads while the run learns
        self.seen = 0

    def learn(self, cell: AnyCell, cost: Cost) -> None:
        """Correct later estimates by the measured `cost` of a cell (experiment); a cell without run time is ignored.
        A cell with a reused reconstruction only corrects the machine's speed."""
        if (elsewhere := self._took_elsewhere(cell)) is not None and 0 < cost.wall_seconds < 1e9:
            with self._lock:
                self._speeds.append((cost.wall_seconds, elsewhere))
        if cost.reused_from or not 0 < cost.wall_seconds < 1e9:
            return
        ratio = cost.wall_seconds / self._by_formula(cell)
        with self._lock:
            for kind in _kinds(cell):
                self._ratios[kind].append(ratio)
                self._medians.pop(kind, None)
            self.seen += 1

    def seconds(self, cell: AnyCell) -> float:
        """Return the expected run time of the cell (experiment) on a core, in seconds."""
        if (elsewhere := self._took_elsewhere(cell)) is not None:
            with self._lock:
                here, there = (sum(each) for each in zip(*self._speeds, strict=True)) if self._speeds else (1.0, 1.0)
            # a single cell says little about a machine: the speed's weight grows with measured time
            return elsewhere * ((here + _UNSURE) / (there + _UNSURE))
        with self._lock:
            for kind in _kinds(cell):
                if kind in self._ratios:
                    if kind not in self._medians:
                        self._medians[kind] = statistics.median(self._ratios[kind])
                    return self._by_formula(cell) * self._medians[kind]
        return self._by_formula(cell)

    def measured(self, cell: AnyCell) -> bool:
        """Return whether the estimate of the cell's (experiment's) run time follows from measured times of similar
        cells, and not from the formula only."""
        if self._took_elsewhere(cell) is not None:
            return True
        with self._lock:
            return any(kind in self._ratios for kind in tuple(_kinds(cell))[:-1])  # the last key: any attack

    def _took_elsewhere(self, cell: AnyCell) -> float | None:
        """Return a cell's published time, or None if unknown. The time is cached, because the remaining time is
        estimated every two seconds."""
        if cell.id not in self._elsewhere:
            self._elsewhere[cell.id] = self._known(cell)
        return self._elsewhere[cell.id]

    def _by_formula(self, cell: AnyCell) -> float:
        if cell.id not in self._formula:
            self._formula[cell.id] = formula(cell, self._shape(cell))
        return self._formula[cell.id]


class Remaining(Observer):
    """Observer of a run that estimates the remaining wall time of `cells` (experiments) from the speed so far, for the
    progress line."""

    def __init__(self, cells: Iterable[AnyCell], estimates: Estimates) -> None:
        self._estimates = estimates
        self._open = {cell.id: cell for cell in cells}
        self._running: dict[str, float] = {}  # cell id → start time
        self._done: list[AnyCell] = []
        self._began = time.monotonic()

    def on_start(self, cell: AnyCell, worker: str) -> None:
        self._running[cell.id] = time.monotonic()

    def on_record(self, record: Record) -> None:
        cell = self._open.pop(record.id, None)
        self._running.pop(record.id, None)
        if cell is not None:
            self._done.append(cell)

    def left(self) -> float | None:
        """Return the estimated remaining seconds of the run; None before the first finished cell (experiment).

        A running cell longer than its estimate is assumed to need another quarter of its time so far."""
        # copies: the progress thread calls this during the run
        now, done = time.monotonic(), sum(map(self._estimates.seconds, list(self._done)))
        if not done:
            return None
        running, ahead, longest = dict(self._running), 0.0, 0.0
        for cell in list(self._open.values()):
            seconds = self._estimates.seconds(cell)
            if cell.id in running:
                spent = now - running[cell.id]
                done += min(spent, seconds)
                seconds = max(seconds - spent, spent / 4)
                longest = max(longest, seconds)
            ahead += seconds
        return max(longest, ahead * (now - self._began) / done)


def _kinds(cell: AnyCell) -> Iterator[Hashable]:
    """Yield keys that similar cells have in common, the most specific key first."""
    what = "training" if isinstance(cell, TrainingCell) else (cell.attack.name, cell.knowledge)
    setting = (what, cell.model.name, cell.dataset.name)
    yield (*setting, str(cell.defense), "" if isinstance(cell, TrainingCell) else cell.point)
    yield (*setting, cell.defense.name)
    yield setting
    yield what
    yield cell.kind  # a slow or busy machine slows every attack
