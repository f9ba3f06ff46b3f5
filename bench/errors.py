"""Every error a user can cause, each one line: what is wrong, where, and the way out."""

import traceback
from pathlib import Path

# What content of another form than it should have makes its reader raise.
MALFORMED = (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError)


class BenchError(Exception):
    """A mistake the user can mend; the command line prints its message alone and exits with 2."""


class UnknownName(BenchError):
    """A name that no registered entry has."""


class MatrixError(BenchError):
    """A matrix file that cannot be read as it stands; the message lists every fault, one a line."""


class DataError(BenchError):
    """Data that are missing, truncated, altered or out of range."""


class StorageError(BenchError):
    """A file that cannot be written: the place is at fault, not what was to be kept."""


class PluginError(BenchError):
    """A plug-in that cannot be loaded, or that breaks its contract."""


class RecordError(BenchError):
    """A record or reading file that is damaged or of another schema."""


class WeightsError(BenchError):
    """A weights file that does not fit the model."""


class NotApplicable(Exception):
    """A combination that is possible to write but not to run; it becomes `n/a: reason`, never an error."""


def with_place(error: BaseException) -> str:
    """One line of an unforeseen error: what it is, and the innermost line of code that it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    place = f" ({Path(last.filename).name}:{last.lineno})" if last else ""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}{place}"
