"""What every process that answers cells has in common: repeatable figures, one thread, an end with its parent."""

import faulthandler
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from bench.errors import StorageError

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# glibc hands large blocks back to the system after each use, and gets them page by page again: let it keep them.
_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}


def prepare_environment() -> None:
    """Set what a child process reads when it imports its numerical libraries."""
    for name in _THREADS:
        os.environ[name] = "1"
    for name, size in _MEMORY.items():
        os.environ.setdefault(name, size)


def single_threaded() -> None:
    """Sums of several threads differ in their last bit."""
    torch.set_num_threads(1)


def end_with(parent: int) -> None:
    """Have this process end itself once its parent, by this number, is gone."""
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()


def _exit_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


@contextmanager
def exit_after(seconds: float, trace: Path) -> Iterator[None]:
    """The process ends itself after so long, whatever it does: a thread of faulthandler's, which needs no
    interpreter, writes where every thread was."""
    try:
        trace.parent.mkdir(parents=True, exist_ok=True)
        trace.unlink(missing_ok=True)
        file = trace.open("x")  # a new file: not what a link of this name leads to
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
    """The reason of a cell whose time was over; `trace`: the file that says where it was."""
    where = "" if trace is None else f"{_TRACE}{trace})"
    return f"took longer than the time limit of {seconds:g} s; give --time-limit more, or mend what hangs{where}"


def without_trace(reason: str) -> str:
    """The reason, where the trace's file does not stay."""
    return reason.partition(_TRACE)[0]


def trace_path(run: Path, cell_id: str, role: str = "") -> Path:
    """Where it is written what a cell was doing when its time was over; `role` is of a plug-ins' process."""
    return run / "hung" / f"{cell_id}{'.' if role else ''}{role}.txt"
