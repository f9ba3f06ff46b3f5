"""Settings for all processes that run cells: repeatable figures, a single thread, an end together with the parent."""

import faulthandler
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from packaging.version import Version

from bench.errors import StorageError

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def _memory() -> dict[str, str]:
    # glibc returns large blocks to the system after each use and fetches them again page by page: let it keep them.
    # Older versions of glibc may refuse sizes above 32 MiB.
    library, version = platform.libc_ver()
    largest = 256 if library == "glibc" and Version(version) >= Version("2.36") else 32  # MiB
    return {"MALLOC_MMAP_THRESHOLD_": str(largest << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}


def prepare_environment() -> None:
    """Prepare this process's environment for child processes that run cells (experiments): numerical libraries there
    use a single thread, and the C library keeps freed memory. The libraries read these variables at import."""
    for name in _THREADS:
        os.environ[name] = "1"
    for name, size in _memory().items():
        os.environ.setdefault(name, size)


def single_threaded() -> None:
    """Make results bitwise repeatable: torch uses a single thread in this process, because sums over several threads
    differ in the last bit."""
    torch.set_num_threads(1)


def end_with(parent: int) -> None:
    """End this process as soon as its parent process ends, so that a killed run leaves no workers behind. `parent` is
    the parent's process id."""
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()


def _exit_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


@contextmanager
def exit_after(seconds: float, trace: Path) -> Iterator[None]:
    """Enforce a time limit on the code inside a `with` statement: after `seconds`, the process ends, even if a plug-in
    blocks the interpreter. To show the place of the hang, all threads' stacks are first written to the file `trace`.
    Raises `StorageError` if the file cannot be written."""
    try:
        trace.parent.mkdir(parents=True, exist_ok=True)
        trace.unlink(missing_ok=True)
        file = trace.open("x")  # a new file: no link is followed
    except OSError as error:
        raise StorageError(f"{trace}: cannot be written ({error.strerror})") from None
    with file:
        faulthandler.dump_traceback_later(seconds, exit=True, file=file)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
    trace.unlink(missing_ok=True)


_TRACE = " (where it was: "


def timeout_reason(seconds: float, trace: Path | None = None) -> str:
    """Return the text of the field `reason` in the record of a cell (experiment) that exceeded its time limit of
    `seconds`. `trace` is the file with the threads' stacks at the timeout, for the search of the cause; None: the text
    names no file."""
    where = "" if trace is None else f"{_TRACE}{trace})"
    return f"took longer than the time limit of {seconds:g} s; give --time-limit more, or mend what hangs{where}"


def without_trace(reason: str) -> str:
    """Return the `reason` of a timeout (`timeout_reason`) without the path of the file with the threads' stacks: the
    file is temporary, and reasons from several machines become comparable."""
    return reason.partition(_TRACE)[0]


def trace_path(run: Path, cell_id: str, role: str = "") -> Path:
    """Return the path, in the run folder `run`, of the file to which a process writes its threads' stacks at a timeout.
    `cell_id` is the id of the cell (experiment) that the process runs; `role` names a plug-in process, empty for this
    process."""
    return run / "hung" / f"{cell_id}{'.' if role else ''}{role}.txt"
