"""The upload process of a bench run: `bench sync --follow`.

No cell waits for this process, and its failure cannot stop the bench run: after a failure, records wait for `bench
sync`, and `Follower.finish` gives the reason.  This module does not import mlflow."""

import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

from bench.tracking import store
from bench.tracking.store import UploadResult

PATIENCE_SECONDS = 60.0  # without any progress; a request to a server that hangs ends after 10


class Follower:
    """Live upload of a run to MLflow: a second process uploads each record as soon as the run writes the record. Usage:
    `start`, the run, `finish`. `uploaded` is the result, None before the end.

    - `run`: run folder.
    - `tracking_uri`: the store's address; None: the default store.
    - `include_pictures`: True also uploads pictures from private data.

    Only the constructor raises an error: `BenchError` for an invalid address."""

    def __init__(self, run: Path, tracking_uri: str | None = None, *, include_pictures: bool = False) -> None:
        self.run = run
        self.uploaded: UploadResult | None = None
        self._uri = store.checked_uri(run, tracking_uri)
        self._command = [sys.executable, "-P", "-m", "bench.cli.main", "sync", str(run), "--follow", "--attached"]
        self._command += ["--json", "--tracking-uri", self._uri]
        self._command += ["--include-pictures"] if include_pictures else []
        self._process: subprocess.Popen[bytes] | None = None
        self._reason: str | None = "it was not started"

    @property
    def log(self) -> Path:
        """File with the log of the upload process and of mlflow."""
        return self.run / "synced" / "follow.log"

    def start(self) -> None:
        """Start the process that uploads finished cells to MLflow while the run goes on. A failed start raises no
        error: `finish` later returns the reason."""
        self._reason = None
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("wb") as log:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=os.environ | store.ENVIRONMENT,
                    start_new_session=True,  # Ctrl-C reaches only the run; this process ends with its input
                )
        except OSError as error:
            self._reason = f"`bench sync --follow` did not start: {error}"

    def finish(self, patience: float = PATIENCE_SECONDS) -> str | None:
        """Wait until every record is uploaded, or until `patience` seconds pass without progress. Return a line with
        the reason for missing records, or None if the store has all records. A second call returns the same line."""
        if self._process and self._process.stdin and self.uploaded is None:
            with contextlib.suppress(OSError):
                os.write(self._process.stdin.fileno(), b"over\n")
            try:
                self._wait(self._process, patience)
            except BaseException:
                self.close()
                raise
        self._end(seconds=1)
        assert self.uploaded
        left, reason = self.uploaded.left, self.uploaded.reason
        return f"{left} records wait ({reason}); `bench sync {self.run}` tries again" if left else reason

    def close(self) -> None:
        """End the upload process within seconds; records that are not uploaded wait for `bench sync`."""
        if self.uploaded is None:
            self._reason = self._reason or "the run was interrupted"
            self._end(seconds=6)

    def _wait(self, process: "subprocess.Popen[bytes]", patience: float) -> None:
        heartbeat, since = 0, time.monotonic()
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
            if (now := store.heartbeat(self.run)) != heartbeat:
                heartbeat, since = now, time.monotonic()
            elif time.monotonic() - since > patience:
                self._reason = f"no progress in {patience:g} s"
                return

    def _end(self, *, seconds: float) -> None:
        """Close the process's input, wait for `seconds`, then kill the process and collect its output."""
        if self.uploaded is not None:
            return
        result = None
        if self._process:
            try:
                output, _ = self._process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                self._process.kill()
                output, _ = self._process.communicate()
            result = _result(output)
            if result is None and self._reason is None:
                self._reason = f"`bench sync` ended early ({self._process.returncode}); see {self.log}"
        if result is None or self._reason:
            left = 0
            with contextlib.suppress(OSError):
                left = store.unsynced(self.run, self._uri)
            result = replace(result or UploadResult(), left=left, reason=self._reason)
        self.uploaded = result


def _result(output: bytes) -> UploadResult | None:
    try:
        content = json.loads(output)
        return UploadResult(**{field.name: content[field.name] for field in fields(UploadResult)})
    except (ValueError, TypeError, KeyError):
        return None
