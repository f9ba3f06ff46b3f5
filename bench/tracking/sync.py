"""A run's records and rows → the store, once or for as long as the run is under way.

`bench run` has a process of this beside it (`bench.tracking.following`): importing mlflow and waiting for a
server cost their time there, never in a cell.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.record.folder import is_locked
from bench.tracking import row_upload, upload
from bench.tracking.store import UploadResult
from bench.tracking.upload import StoreError, Target

_POLL_SECONDS = 0.5  # between two looks at the folder; more where looking takes long
_PAUSE_SECONDS = 30.0  # after a failure, before the store is tried again
_GRACE_SECONDS = 5.0  # for the record at hand when the run is no more

Wait = Callable[[float], bool]  # wait so many seconds; whether the run is over
Stop = Callable[[], bool]
Version = tuple[int, int]  # of a record's file: when it changed, its size


def at_once(seconds: float = 0) -> bool:
    """`wait` of a run that is over: one pass."""
    return True


def never() -> bool:
    return False


def sync(
    run: Path,
    uri: str | None = None,
    *,
    include_pictures: bool = False,
    wait: Wait = at_once,
    stop: Stop = never,
    progress: Callable[[UploadResult], None] = lambda state: None,
) -> UploadResult:
    """Upload the records that the store has not until `wait` says that the run is over, then its rows.

    A store that does not answer is no error: it is the `reason` of what is `left`.  Raises `BenchError` for an
    address that cannot be a store's.
    """
    target: Target | None = None
    handled: dict[str, Version] = {}
    total, retry_at, over = UploadResult(), 0.0, wait(0)

    def report(now: UploadResult) -> None:
        progress(_sum(total, now))

    while True:
        began = time.monotonic()
        waiting = {cell: version for cell, version in _versions(run).items() if handled.get(cell) != version}
        looking = time.monotonic() - began
        # The store is opened while the first cells are at work.
        if (waiting or target is None) and (over or began >= retry_at):
            try:
                target = target or upload.open_target(run, uri, include_pictures=include_pictures)
                report(UploadResult(left=len(waiting)))
                now = upload.send(target, run, waiting, progress=report, stop=stop)
            except StoreError as error:
                now = UploadResult(left=len(waiting), reason=str(error))
            total = _sum(total, now)
            handled |= dict(list(waiting.items())[: len(waiting) - now.left])
            retry_at = time.monotonic() + _PAUSE_SECONDS if target is None or now.left else 0.0
        if over or stop():
            break
        over = wait(max(_POLL_SECONDS, 20 * looking))
    if target is None or total.left or stop():
        return total
    try:  # a row over half of the cells would mislead
        rows = row_upload.send(target, run, progress=lambda: progress(total), stop=stop)
    except (StoreError, OSError) as error:
        return replace(total, reason=str(error))
    return replace(total, rows=rows)


def _sum(before: UploadResult, now: UploadResult) -> UploadResult:
    """Both passes; of reasons the newer one, where it is not that of a record that failed for good."""
    return UploadResult(
        count=before.count + now.count,
        skipped=before.skipped + now.skipped,
        failed=before.failed + now.failed,
        left=now.left,
        reason=now.reason or (before.reason if before.failed else None),
    )


def _versions(run: Path) -> dict[str, Version]:
    """The records in the folder, in the order of their ids."""
    with os.scandir(run / "records") as files:
        stats = {file.name: file.stat() for file in files if file.name.endswith(".json")}
    return {name[:-5]: (stats[name].st_mtime_ns, stats[name].st_size) for name in sorted(stats)}


def while_held(run: Path) -> Wait:
    """`wait` for the run that holds the folder."""

    def wait(seconds: float) -> bool:
        held = is_locked(run)
        time.sleep(seconds if held else 0)
        return not held

    return wait


def while_attended() -> tuple[Wait, Stop]:
    """`wait` and `stop` of a process beside a run: a line on standard input, and the run is over; its end, and the
    run is no more, and this process ends soon after."""
    over, gone = threading.Event(), threading.Event()

    def listen() -> None:
        # Not `sys.stdin`: a thread inside its buffer aborts the interpreter's shutdown.
        while os.read(0, 64):
            over.set()
        gone.set()
        over.set()
        time.sleep(_GRACE_SECONDS)
        os._exit(1)  # a store that hangs; the run that this leaves open is deleted by the next upload

    threading.Thread(target=listen, daemon=True).start()
    return over.wait, gone.is_set
