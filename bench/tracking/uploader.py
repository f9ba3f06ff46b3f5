"""Uploading beside a run: the runner's end of the writer process (`bench.tracking.follower`).

No cell waits for it and nothing it does can stop a run: a writer that fails, hangs or is killed
leaves records for `bench sync`, and `close` says how many and why.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.tracking import store
from bench.tracking.store import CLOSE, Uploaded

PATIENCE_SECONDS = 60.0  # without any progress; a request to a server that hangs ends after 10


class Uploader:
    """Within `with`, one writer process; `outcome` is set when it has ended.

    Raises `BenchError` at once for an address that cannot be a store's, and for nothing later.
    """

    def __init__(
        self,
        run: Path,
        uri: str | None = None,
        experiment: str | None = None,
        *,
        include_pictures: bool = False,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.run = run
        self.outcome: Uploaded | None = None
        self._patience = patience_seconds
        self._state, self._ended, self._news = Uploaded(), False, time.monotonic()
        self._uri = store.checked_uri(run, uri)
        self._command = [sys.executable, "-P", "-m", "bench.tracking.follower", str(run), "--uri", self._uri]
        self._command += ["--experiment", experiment] if experiment else []
        self._command += ["--include-pictures"] if include_pictures else []
        self._child: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    @property
    def log(self) -> Path:
        """What the writer and mlflow had to say."""
        return self.run / "synced" / "uploader.log"

    def __enter__(self) -> Self:
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("wb") as log:
                self._child = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=os.environ | store.ENVIRONMENT,
                    start_new_session=True,  # a Ctrl-C is the run's; the writer ends when its input does
                )
        except OSError as error:
            self._state = Uploaded(reason=f"the writer did not start: {error}")
            return self
        assert self._child.stdin
        os.set_blocking(self._child.stdin.fileno(), False)
        self._reader = threading.Thread(target=self._read, args=(self._child,), daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del error, trace
        if kind is None:
            self.close()
        else:
            self._end(seconds=6, reason="the run was interrupted")

    def notify(self, cell_id: str) -> None:
        """Say that this cell's record is there.  Never waits or fails: `close` makes up for a lost one."""
        self._write(f"{cell_id}\n")

    def close(self, progress: Callable[[int], None] | None = None) -> Uploaded:
        """Wait until every record is uploaded, or there is no hope of it; `progress` gets how many are left.

        Called twice, it says the same.
        """
        if self.outcome is not None:
            return self.outcome
        self._news = time.monotonic()
        told, asked = None, False
        try:
            while self._reader and self._reader.is_alive():
                asked = asked or self._write(f"{CLOSE}\n")
                self._reader.join(0.1)
                if progress and self._state.left != told:
                    told = self._state.left
                    progress(told)
                if time.monotonic() - self._news > self._patience:
                    return self._end(seconds=1, reason=f"no progress in {self._patience:g} s")
        except BaseException:
            self._end(seconds=1, reason="the run was interrupted")
            raise
        return self._end(seconds=2)

    def _write(self, line: str) -> bool:
        """Whether the line went: so short a one goes whole or, where the pipe is full, not at all."""
        if self._child and self._child.stdin and self.outcome is None:
            with contextlib.suppress(OSError):
                return os.write(self._child.stdin.fileno(), line.encode()) > 0
        return False

    def _read(self, child: "subprocess.Popen[bytes]") -> None:
        assert child.stdout
        with child.stdout as lines:
            for line in lines:
                self._hear(line)

    def _hear(self, line: bytes) -> None:
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            said = json.loads(line)
            ended = said.pop("end")
            self._state, self._ended, self._news = Uploaded(**said), ended, time.monotonic()

    def _end(self, *, seconds: float, reason: str | None = None) -> Uploaded:
        """Close its input, wait so long, kill it, and collect it: no process is left behind."""
        if self.outcome is None:
            if self._child:
                _collect(self._child, seconds)
                if self._reader:
                    self._reader.join(2)
            reason = reason or self._state.reason
            if self._child and not self._ended:
                reason = reason or f"the writer ended early ({self._child.returncode}); see {self.log}"
            left = self._state.left if self._ended else self._unsynced()
            self.outcome = replace(self._state, left=left, reason=reason)
        return self.outcome

    def _unsynced(self) -> int:
        try:
            return store.unsynced(self.run, self._uri)
        except OSError:
            return 0


def _collect(child: "subprocess.Popen[bytes]", seconds: float) -> None:
    with contextlib.suppress(OSError):
        if child.stdin:
            child.stdin.close()
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
