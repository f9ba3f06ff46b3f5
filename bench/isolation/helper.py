"""A plug-in process, seen from the process that started it."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any, TypeVar

from bench.answer.context import TrainingProgress
from bench.answer.place import Usage
from bench.errors import PluginError
from bench.isolation import served, wire
from bench.isolation.process import prepare_environment

T = TypeVar("T")
OnProgress = Callable[[TrainingProgress], None]


class HelperDied(PluginError):
    """Error for a plug-in process that ended during a call."""


class _Copy:
    """A forked copy of this process that serves calls; its methods are a part of `subprocess.Popen`."""

    def __init__(self, descriptor: int) -> None:
        self._pid = os.fork()
        if self._pid == 0:
            try:
                # the worker's own pipes must close when it dies
                os.closerange(3, descriptor)
                os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
                served.serve(descriptor)
            finally:
                os._exit(1)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, at most `timeout` seconds (None: without limit), and return its exit code.
        Raises `subprocess.TimeoutExpired`."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            pid, status = os.waitpid(self._pid, 0 if until is None else os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired("a plug-ins' process", timeout or 0.0)
            time.sleep(0.01)

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)


class Helper:
    """Process that loads plug-ins and answers calls one after another. The process starts at the first call.

    - `role`: name of the process for messages.
    - `plugins`: files or modules to load.
    - `device`: torch device of the process."""

    def __init__(self, role: str, plugins: Sequence[str], device: str) -> None:
        self._role, self._plugins, self._device = role, tuple(plugins), device
        self._process: subprocess.Popen[bytes] | _Copy | None = None
        self._pipe: Connection[Any, Any] | None = None
        self.usage = Usage()

    def call(self, function: Callable[..., T], *arguments: Any, on_progress: OnProgress | None = None) -> T:
        """Run `function(*arguments, state)` in the plug-in process, and return its result; `state` holds the values
        that the process keeps between calls (`bench.isolation.served.State`). `on_progress` receives a training's
        progress; None drops the progress. Raises the function's error, or `HelperDied`."""
        pipe = self._pipe if self._pipe is not None else self._start()
        try:
            pipe.send_bytes(pickle.dumps((function, arguments)))
            while True:
                kind, value, usage = wire.load(pipe.recv_bytes())
                if kind == "progress" and on_progress is not None:
                    on_progress(value)
                elif kind != "progress":
                    break
        except (EOFError, OSError):
            raise HelperDied(f"the {self._role}'s process died (exit code {self._end()})") from None
        self.usage = self.usage.plus(usage)
        if kind == "error":
            raise value
        result: T = value
        return result

    def fork(self) -> None:
        """Start the plug-in process as a copy of this process, which saves the time of imports. This process must have
        a single thread and hold no true examples, because a copy inherits its memory."""
        ours, theirs = Pipe()
        self._process = _Copy(theirs.fileno())
        self._introduce(ours, theirs)

    def close(self) -> None:
        """End the process, if it was started."""
        if self._process is not None:
            self._end()

    def _start(self) -> "Connection[Any, Any]":
        prepare_environment()
        ours, theirs = Pipe()
        code = "import sys; from bench.isolation.served import serve; serve(int(sys.argv[1]))"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
        return self._introduce(ours, theirs)

    def _introduce(self, ours: "Connection[Any, Any]", theirs: "Connection[Any, Any]") -> "Connection[Any, Any]":
        theirs.close()
        ours.send_bytes(pickle.dumps((list(sys.path), os.getpid(), self._role, self._plugins, self._device)))
        self._pipe = ours
        return ours

    def _end(self) -> int | None:
        """Close the pipe, which ends a waiting process; returns its exit code."""
        assert self._process is not None and self._pipe is not None
        process, self._process = self._process, None
        self._pipe.close()
        self._pipe = None
        try:
            return process.wait(10)
        except subprocess.TimeoutExpired:  # a hanging process
            process.kill()
            return process.wait()
