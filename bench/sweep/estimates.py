"""How long cells take: a rough formula, corrected by what cells like them took on this machine."""

import statistics
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from math import prod
from typing import Any

from bench.cell import AnyCell, TrainingCell
from bench.matrix.feasible import examples
from bench.registry import entries as registry

_REMEMBERED = 32  # of each kind of cell: what it took last


def formula(cell: AnyCell, shape: tuple[int, ...]) -> float:
    """Seconds on one core, to the order: from trials with the nets of DLG (0.5 ms an evaluation of one
    28×28 picture, growing with pixels and pictures) and with Fed-αCDP's net (4 ms a client-step)."""
    federated = cell.federated
    if isinstance(cell, TrainingCell):
        return 1 + cell.rounds * federated.per_round * federated.steps * 0.004 * max(1, federated.batch / 5)
    attack = registry.load("attacks", cell.attack.name)
    if not getattr(attack, "iterative", True):
        return 0.2
    count = examples(cell.point, federated)
    share = float(max(0.1, (count * prod(shape) / 784) ** 0.9))
    return 0.2 + cell.readings * cell.evaluations * 0.0005 * share


class Estimates:
    """Seconds of cells: the formula times what the most alike of the cells seen took beside theirs.

    `shape` gives the shape of one example of a cell's data.
    """

    def __init__(self, shape: Callable[[AnyCell], tuple[int, ...]]) -> None:
        self._shape = shape
        self._formula: dict[str, float] = {}
        self._ratios: defaultdict[Hashable, deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))
        self._medians: dict[Hashable, float] = {}
        self._lock = threading.Lock()  # the thread that keeps a run's progress asks, while the run learns
        self.seen = 0

    def learn(self, cell: AnyCell, cost: Mapping[str, Any]) -> None:
        """What its record says that a cell cost; a time that is none (a record may say anything), or that is
        another cell's whose answer it took over, is passed over."""
        seconds = cost.get("wall_seconds")
        if cost.get("reused_from") or not isinstance(seconds, float) or not 0 < seconds < 1e9:
            return
        ratio = seconds / self._of_formula(cell)
        with self._lock:
            for kind in _alike(cell):
                self._ratios[kind].append(ratio)
                self._medians.pop(kind, None)
            self.seen += 1

    def seconds(self, cell: AnyCell) -> float:
        """What it will take, on one core."""
        with self._lock:
            for kind in _alike(cell):
                if kind in self._ratios:
                    if kind not in self._medians:
                        self._medians[kind] = statistics.median(self._ratios[kind])
                    return self._of_formula(cell) * self._medians[kind]
        return self._of_formula(cell)

    def _of_formula(self, cell: AnyCell) -> float:
        if cell.id not in self._formula:
            self._formula[cell.id] = formula(cell, self._shape(cell))
        return self._formula[cell.id]


class Remaining:
    """What is left of `cells`, in seconds by the clock: from what was done at the speed seen so far."""

    def __init__(self, cells: Iterable[AnyCell], estimates: Estimates) -> None:
        self._estimates = estimates
        self._open = {cell.id: cell for cell in cells}
        self._done: list[AnyCell] = []
        self._began = time.monotonic()

    def settle(self, cell_id: str) -> None:
        """A cell has its record."""
        cell = self._open.pop(cell_id, None)
        if cell is not None:
            self._done.append(cell)

    def left(self) -> float | None:
        """Seconds; None before anything is done."""
        # copies: the thread that keeps a run's progress asks, while the run goes on
        done = sum(map(self._estimates.seconds, list(self._done)))
        if not done:
            return None
        ahead = sum(map(self._estimates.seconds, list(self._open.values())))
        return ahead * (time.monotonic() - self._began) / done


def _alike(cell: AnyCell) -> Iterator[Hashable]:
    """Kinds that a cell belongs to, the narrowest first."""
    what = "training" if isinstance(cell, TrainingCell) else (cell.attack.name, cell.knowledge)
    setting = (what, cell.model.name, cell.dataset.name)
    yield (*setting, str(cell.defense), "" if isinstance(cell, TrainingCell) else cell.point)
    yield (*setting, cell.defense.name)
    yield setting
    yield what
