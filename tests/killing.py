"""Kill a run at random points, again and again: `python -P tests/killing.py FOLDER KILLS SEED [careless]`.

Every child is a whole run (plan, scheduler, cells, records) in one process, forked from this one so that a
kill costs no imports.  It is killed at the k-th event: a function of bench's that is called, or a line of those
that write files.  After each kill the folder must hold nothing torn; when a run came through, its answers must
be those of a run that nobody disturbed, and the next begins in an empty folder.

With `careless` files are written in place: what is asserted here must then fail.
"""

import json
import os
import random
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch

if __name__ == "__main__":  # else pytest finds `tests`
    sys.path.append(str(Path(__file__).parent.parent))

from tests import runs
from tests.cells import MEMORY, RESOLVER, attack, entry, training
from tests.workers import ScriptedPool

import bench.record.checkpoints
import bench.sweep.progress
from bench.answer.context import RunContext
from bench.cell import AnyCell, CheckpointWeights
from bench.matrix.expand import PlannedCell
from bench.record import store as records
from bench.record.folder import locked
from bench.sweep.plan import schedule
from bench.sweep.progress import Reporter
from bench.sweep.session import run_schedule

HOME = str(Path(bench.__file__).parent)
STORING = ("store.py", "files.py", "checkpoints.py", "resume.py", "folder.py", "progress.py")


def planned() -> list[PlannedCell]:
    trained = training()
    weights = CheckpointWeights(training=trained.id, round=2)
    cpl = entry("attacks", "cpl")
    cells: list[AnyCell] = [
        trained,
        attack(weights),
        attack(attack=cpl, evaluations=6),
        attack(weights, attack=cpl, evaluations=6),
        attack(defense=entry("defenses", "adaclip"), federated=trained.federated),
    ]
    return [PlannedCell(cell, None) for cell in cells]


def run(folder: Path) -> None:
    context = RunContext(run=folder, save_every=0.0)  # a training's state is saved each round
    MEMORY.reconstructions.clear()
    with locked(folder), Reporter(folder, "killed", cells=5, settled=0, left=lambda: None) as reporter:
        run_schedule(schedule(planned(), folder, RESOLVER), context, lambda: ScriptedPool(context), reporter)


class Events:
    """Counts what happens in bench's code; at the `last` event the process kills itself."""

    def __init__(self, last: int | None = None) -> None:
        self.count, self._last = 0, last
        self.storing: list[int] = []  # which events are of code that writes files

    def __call__(self, frame: FrameType, kind: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        if not (file.startswith(HOME) or "/attacks/" in file or "/defenses/" in file or "/datasets/" in file):
            return None
        stores = file.endswith(STORING)
        if kind == "call" or stores:
            self.count += 1
            if stores:
                self.storing.append(self.count)
            if self.count == self._last:
                os.kill(os.getpid(), signal.SIGKILL)
        return self if stores else None


def in_child(folder: Path, last: int) -> bool:
    """A run that is killed at that event; whether it was."""
    child = os.fork()
    if not child:
        sys.settrace(Events(last))
        run(folder)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "a run failed"
    return os.WIFSIGNALED(status)


def careless(path: Path, content: bytes) -> None:
    """What `write_atomically` is there to be better than."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb", buffering=0) as file:
        half = len(content) // 2
        file.write(content[:half])
        _pause()
        file.write(content[half:])


def _pause() -> None:
    """Events between two halves, enough of them to be hit."""
    for _ in range(50):
        records.record_path(Path(), "")


def main() -> None:
    if "careless" in sys.argv:
        for module in (records, bench.record.checkpoints, bench.sweep.progress):
            vars(module)["write_atomically"] = careless
    base, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    draw = random.Random(seed)
    calm, folder = base / "calm", base / "run"
    run(calm)  # what is loaded once is loaded before the events are counted
    shutil.rmtree(calm)
    events = Events()
    sys.settrace(events)
    run(calm)
    sys.settrace(None)
    counts: Counter[str] = Counter(events=events.count, storing=len(events.storing))
    while counts["killed"] < kills:
        last = draw.choice(events.storing) if draw.random() < 0.5 else draw.randint(1, events.count)
        if in_child(folder, last):
            counts["killed"] += 1
        else:  # what was left took fewer events than that: it came through
            counts["came through"] += 1
        if folder.exists():
            records_left = len(runs.whole(folder))
            counts["records"] = max(counts["records"], records_left)
            if records_left == len(planned()):
                run(folder)  # tidies up, and finds nothing to do
                runs.assert_equal(folder, calm)
                counts["equal"] += 1
                shutil.rmtree(folder)
    for path in (folder, calm):
        shutil.rmtree(path, ignore_errors=True)
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
