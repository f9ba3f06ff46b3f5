"""The writer process beside a run, `python -P -m bench.tracking.follower RUN`: cell ids in, JSON lines out.

`bench.tracking.uploader` starts it and speaks with it.  Importing mlflow and waiting for a server cost their
time here, never in a cell.
"""

import argparse
import json
import os
import queue
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

from bench.errors import BenchError, RecordError
from bench.record import store as records
from bench.tracking import row_upload, store, upload
from bench.tracking.store import CLOSE, Uploaded

_PAUSE_SECONDS = 30.0  # after a failure, before the store is tried again
_GRACE_SECONDS = 5.0  # for the record at hand when the parent dies


class Follower:
    """What was settled so far; a record is settled once per content."""

    def __init__(self, run: Path, uri: str, experiment: str | None, *, include_pictures: bool) -> None:
        self.run, self.uri, self.experiment = run, uri, experiment
        self.include_pictures = include_pictures
        self.gone = threading.Event()  # the parent died
        self.total = Uploaded()
        self._target: upload.Target | None = None
        self._retry_at = 0.0
        self._settled: set[tuple[str, str]] = set()

    def follow(self, lines: "queue.SimpleQueue[str]") -> None:
        """Upload what the lines name until `close`, then whatever else is left.

        The names are hints: one that comes while the store is down is not kept.
        """
        self._open()  # while the first cells are at work
        while (cell_id := lines.get()) != CLOSE and not self.gone.is_set():
            if time.monotonic() >= self._retry_at:
                self._upload([cell_id])
        if not self.gone.is_set():
            self._upload(store.cells(self.run))
        if not self.gone.is_set() and not self.total.left:
            self._upload_rows()

    def _open(self) -> upload.Target | None:
        try:
            self._target = self._target or upload.open_target(
                self.run, self.uri, self.experiment, include_pictures=self.include_pictures
            )
        except upload.StoreError as failure:
            self._report(self.total, Uploaded(left=self.total.left, reason=str(failure)))
            self._retry_at = time.monotonic() + _PAUSE_SECONDS
        return self._target

    def _upload(self, cells: list[str]) -> None:
        versions = [(cell_id, self._version(cell_id)) for cell_id in cells]
        versions = [version for version in versions if version not in self._settled]
        before = self.total
        self._report(before, Uploaded(left=len(versions)))
        target = self._open() if versions else None
        if target is None:
            return
        result = upload.send(
            target,
            self.run,
            [cell_id for cell_id, _ in versions],
            progress=lambda now: self._report(before, now),
            stop=self.gone.is_set,
        )
        self._report(before, result)
        self._settled.update(versions[: len(versions) - result.left])
        self._retry_at = time.monotonic() + _PAUSE_SECONDS if result.left else 0.0

    def _upload_rows(self) -> None:
        """The rows of the run's board, once it is whole: a row over half of the cells would mislead."""
        target = self._open()
        if target is None:
            return
        before = self.total
        try:
            row_upload.send(
                target,
                self.run,
                progress=lambda: self._report(before, Uploaded(rows=self.total.rows + 1)),
                stop=self.gone.is_set,
            )
        except (upload.StoreError, RecordError, OSError) as error:
            self._report(self.total, Uploaded(rows=self.total.rows, reason=str(error)))

    def _report(self, before: Uploaded, now: Uploaded) -> None:
        """Add what came since to what was before, and say it; only a failed record's reason lasts."""
        self.total = Uploaded(
            count=before.count + now.count,
            skipped=before.skipped + now.skipped,
            failed=before.failed + now.failed,
            left=now.left,
            rows=now.rows,
            reason=now.reason or (before.reason if before.failed else None),
        )
        say(self.total)

    def _version(self, cell_id: str) -> str:
        try:
            return store.digest(records.record_path(self.run, cell_id).read_bytes())
        except OSError:
            return ""


def listen(lines: "queue.SimpleQueue[str]", gone: threading.Event) -> None:
    """Pass on standard input's lines.  Its end means that the parent died or gave up."""
    rest = b""
    # Not `sys.stdin`: a thread inside its buffer aborts the interpreter's shutdown.
    while content := os.read(0, 65536):
        *whole, rest = (rest + content).split(b"\n")
        for line in whole:
            lines.put(line.decode("ascii", "replace").strip())
    gone.set()
    lines.put(CLOSE)
    time.sleep(_GRACE_SECONDS)
    os._exit(1)  # a store that hangs; the run that this leaves open is deleted by the next upload


def say(state: Uploaded, *, end: bool = False) -> None:
    try:
        print(json.dumps({**asdict(state), "end": end}), flush=True)
    except OSError:  # the parent died; `listen` sees to the end
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tracking.follower")
    parser.add_argument("run", type=Path)
    parser.add_argument("--uri")
    parser.add_argument("--experiment")
    parser.add_argument("--include-pictures", action="store_true")
    given = parser.parse_args()
    try:
        follower = Follower(
            given.run,
            store.checked_uri(given.run, given.uri),
            given.experiment,
            include_pictures=given.include_pictures,
        )
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=listen, args=(lines, follower.gone), daemon=True).start()
        follower.follow(lines)
        say(follower.total, end=not follower.gone.is_set())
    except (BenchError, OSError) as error:
        say(Uploaded(reason=str(error)))


if __name__ == "__main__":
    main()
