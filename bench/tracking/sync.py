"""Upload of a run folder's records and board rows to the MLflow store, once or continuously during the run.

`bench run` starts a separate process for this upload (`bench.tracking.following`), so the import of mlflow and a slow
server never delay a cell."""

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

_POLL_SECONDS = 0.5  # between two scans of the folder; longer if a scan takes long
_PAUSE_SECONDS = 30.0  # after a failure, before the store is tried again
_GRACE_SECONDS = 5.0  # for the current record, once the run's process has ended

Wait = Callable[[float], bool]  # waits for some seconds; returns whether the run is over
Stop = Callable[[], bool]
Version = tuple[int, int]  # a record file's modification time and size


def at_once(seconds: float = 0) -> bool:
    """Function for the argument `wait` of `sync`, for a finished run: return True without waiting, so that `sync` reads
    the records only once; `seconds` is not used."""
    return True


def never() -> bool:
    """Function for the argument `stop` of `sync`: return False, so that the upload does not end early."""
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
    """Upload those records of a run that the MLflow store lacks, until the run is over; then upload the rows of its
    board (table of defenses). Return the counts of uploaded, waiting and failed records.

    - `run`: the run folder.
    - `uri`: the store's address; None for the default store.
    - `include_pictures`: True also uploads pictures from private data.
    - `wait`: function that waits some seconds and returns whether the run is over.
    - `stop`: function that returns whether to end early.
    - `progress`: function that receives the counts so far.

    An unavailable store raises no error: the result has the number of waiting records (`left`) and the `reason`. Raises
    `BenchError` for an invalid address."""
    target: Target | None = None
    handled: dict[str, Version] = {}
    total, retry_at, over = UploadResult(), 0.0, wait(0)

    def report(now: UploadResult) -> None:
        progress(_sum(total, now))

    while True:
        began = time.monotonic()
        waiting = {cell: version for cell, version in _versions(run).items() if handled.get(cell) != version}
        looking = time.monotonic() - began
        # The store is opened while the first cells run.
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
    try:  # only now: a row over half the cells would mislead
        rows = row_upload.send(target, run, progress=lambda: progress(total), stop=stop)
    except (StoreError, OSError) as error:
        return replace(total, reason=str(error))
    return replace(total, rows=rows)


def _sum(before: UploadResult, now: UploadResult) -> UploadResult:
    """Add two results' counts. The reason comes from `now`, or from `before` if only `before` has failed records."""
    return UploadResult(
        count=before.count + now.count,
        skipped=before.skipped + now.skipped,
        failed=before.failed + now.failed,
        left=now.left,
        reason=now.reason or (before.reason if before.failed else None),
    )


def _versions(run: Path) -> dict[str, Version]:
    with os.scandir(run / "records") as files:
        stats = {file.name: file.stat() for file in files if file.name.endswith(".json")}
    return {name[:-5]: (stats[name].st_mtime_ns, stats[name].st_size) for name in sorted(stats)}


def while_held(run: Path) -> Wait:
    """Return a function for the argument `wait` of `sync`, for a run in another process: the run is over when no
    process holds the lock of the run folder `run`."""

    def wait(seconds: float) -> bool:
        held = is_locked(run)
        time.sleep(seconds if held else 0)
        return not held

    return wait


def while_attended() -> tuple[Wait, Stop]:
    """Return functions for the arguments `wait` and `stop` of `sync`, in an upload process started by a bench run.

    A line on standard input means that the bench run is over. The end of standard input means that the bench run's
    process has ended; the upload process then ends within seconds."""
    over, gone = threading.Event(), threading.Event()

    def listen() -> None:
        # Not `sys.stdin`: a thread inside its buffer aborts the interpreter's shutdown.
        while os.read(0, 64):
            over.set()
        gone.set()
        over.set()
        time.sleep(_GRACE_SECONDS)
        os._exit(1)  # for a hanging store; the next upload deletes the run left open

    threading.Thread(target=listen, daemon=True).start()
    return over.wait, gone.is_set
