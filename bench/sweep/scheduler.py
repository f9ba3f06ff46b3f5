"""The order of cells and the choice of workers, independent of processes.

Cells in a group (equal data and weights, possibly equal readings) go to the same worker in order; a cascade cell begins
only after its earlier cells have records.  A worker stays with its data set while work remains.  Trainings which
attacks need come first, then the longest group in the data set with most work per worker.  An idle worker takes half of
another worker's queue."""

from bisect import insort
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bench.cell import AnyCell, AttackCell


@dataclass(frozen=True, slots=True, kw_only=True)
class CellGroup:
    """Cells (experiments) that a single worker runs in order, because they share data and weights."""

    cells: tuple[AnyCell, ...]
    """The cells, in order."""
    after: str | None = None
    """Id of the training that makes the cells' weights, or None."""

    @property
    def data(self) -> str:
        """Content hash of the cells' data set."""
        return self.cells[0].dataset.sha256


class Scheduler:
    """Queue that decides which cell (experiment) a free worker runs next. Needed trainings come first, then long groups
    of cells; a worker keeps its data set while possible.

    - `groups`: groups of cells.
    - `seconds`: function that estimates a cell's run time.
    - `learned`: function that returns the number of measured cells in the estimates; the queue is sorted again when
      this number has doubled."""

    def __init__(
        self, groups: Iterable[CellGroup], seconds: Callable[[AnyCell], float], learned: Callable[[], int] = lambda: 0
    ) -> None:
        self._seconds, self._learned = seconds, learned
        self._ready: defaultdict[str, list[CellGroup]] = defaultdict(list)  # by data set, the longest last
        self._first: list[CellGroup] = []  # needed trainings and cells to repeat, most urgent last
        self._blocked: defaultdict[str, list[CellGroup]] = defaultdict(list)  # by required training
        self._queues: dict[str, deque[AnyCell]] = {}  # the rest of each worker's group
        self._loaded: dict[str, str] = {}  # worker → loaded data set
        self._sorted_at = 0
        groups = [group for group in groups if group.cells]
        self._unsettled = {cell.id for group in groups for cell in group.cells}
        trainings = {cell.id for group in groups for cell in group.cells if cell.kind == "training"}
        for group in groups:
            if group.after in trainings:
                self._blocked[group.after].append(group)
        ready = [group for group in groups if group.after not in trainings]
        for group in ready:
            self._line(group).append(group)
        self._sort()
        self._takeable = sum(len(group.cells) for group in ready)

    def take(self, worker: str) -> AnyCell | None:
        """Take the next cell (experiment) for the worker out of the queue, and return it; None if no cell is
        ready."""
        queue = self._queues.get(worker)
        if queue and self._first and not self._may_begin(queue[0]):
            queue.extendleft(reversed(self._first.pop().cells))  # the queue may wait for these cells
        if not queue:
            group = self._choose(worker)
            if group is None:
                return None
            queue = self._queues[worker] = deque(group.cells)
            self._loaded[worker] = group.data
        if not self._may_begin(queue[0]):
            return None
        self._takeable -= 1
        return queue.popleft()

    def queue(self, worker: str) -> tuple[AnyCell, ...]:
        """Return the cells (experiments) that `worker` will run after its present cell, in order."""
        return tuple(self._queues.get(worker, ()))

    def settle(self, cell: AnyCell) -> None:
        """Note that a cell (experiment) has a record. Cells that wait for this record become ready."""
        self._unsettled.discard(cell.id)
        for group in self._blocked.pop(cell.id, ()):
            self._insert(group)
            self._takeable += len(group.cells)
        learned = self._learned()
        if learned >= 2 * self._sorted_at:
            self._sorted_at = learned
            self._sort()

    def retry(self, cell: AnyCell) -> None:
        """Put a cell (experiment) at the front of the queue again, after its worker was lost."""
        self._first.append(CellGroup(cells=(cell,)))
        self._takeable += 1

    def remove(self, worker: str) -> None:
        """Remove a lost worker; the cells (experiments) that waited for this worker become available to all workers."""
        queue = self._queues.pop(worker, None)
        self._loaded.pop(worker, None)
        if queue:
            self._insert(CellGroup(cells=tuple(queue)))

    @property
    def ready(self) -> int:
        """Number of cells (experiments) that a worker can take now: not begun, not waiting for another cell's
        record."""
        return self._takeable

    @property
    def empty(self) -> bool:
        """True if no cell (experiment) is left to take: no cell is ready, and no cell waits for another cell."""
        return not self._blocked and not self._takeable

    def _may_begin(self, cell: AnyCell) -> bool:
        """Return whether the cell's earlier cascade cells have records."""
        return self._unsettled.isdisjoint(_before(cell))

    def _line(self, group: CellGroup) -> list[CellGroup]:
        urgent = any(cell.id in self._blocked for cell in group.cells)
        return self._first if urgent else self._ready[group.data]

    def _insert(self, group: CellGroup) -> None:
        line = self._line(group)
        insort(line, group, key=self._urgency if line is self._first else self._cost)

    def _choose(self, worker: str) -> CellGroup | None:
        if self._first:
            return self._first.pop()
        same_data = self._ready.get(self._loaded.get(worker, ""))
        if same_data:
            return same_data.pop()
        fullest = max(filter(self._ready.get, self._ready), key=self._load, default=None)
        return self._half(worker) if fullest is None else self._ready[fullest].pop()

    def _load(self, data: str) -> float:
        """Return the seconds of work per worker on a data set, if another worker joined."""
        workers = sum(loaded == data for loaded in self._loaded.values())
        return sum(map(self._cost, self._ready[data])) / (1 + workers)

    def _half(self, worker: str) -> CellGroup | None:
        """Take the later half of the longest queue of another worker; a cascade stays with one worker. The result is
        None if no other worker has a queue."""
        others = [queue for name, queue in self._queues.items() if queue and name != worker]
        if not others:
            return None
        longest = max(others, key=lambda queue: sum(map(self._seconds, queue)))
        chains = list(dict.fromkeys(map(_chain, longest)))
        later = set(chains[len(chains) // 2 :])
        half = tuple(cell for cell in longest if _chain(cell) in later)
        kept = [cell for cell in longest if _chain(cell) not in later]
        longest.clear()
        longest.extend(kept)
        return CellGroup(cells=half)

    def _sort(self) -> None:
        for groups in self._ready.values():
            groups.sort(key=self._cost)
        self._first.sort(key=self._urgency)

    def _cost(self, group: CellGroup) -> float:
        return sum(map(self._seconds, group.cells))

    def _urgency(self, group: CellGroup) -> float:
        """Return a group's time plus the longest time of a group that waits for it."""
        waiting = [other for cell in group.cells for other in self._blocked.get(cell.id, ())]
        return self._cost(group) + max(map(self._cost, waiting), default=0.0)


def _before(cell: AnyCell) -> tuple[str, ...]:
    return cell.after if isinstance(cell, AttackCell) else ()


def _chain(cell: AnyCell) -> str:
    return next(iter(_before(cell)), cell.id)
