"""User errors: a line with the mistake, its place, and the remedy."""

import traceback
from pathlib import Path

# What content of another form than it should have makes its reader raise.
MALFORMED = (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError)


class BenchError(Exception):
    """A user's mistake; the command line prints the message and exits with 2."""


class UnknownName(BenchError):
    """A name without a registered entry."""


class MatrixError(BenchError):
    """An invalid matrix file; the message has a line for each mistake."""


class DataError(BenchError):
    """Missing, truncated, altered or out-of-range data."""


class StorageError(BenchError):
    """An unwritable file or folder."""


class PluginError(BenchError):
    """A plug-in with a load error or a broken contract."""


class RecordError(BenchError):
    """A damaged record or reading file, or another schema."""


class WeightsError(BenchError):
    """A weights file unfit for the model."""


class NotApplicable(Exception):
    """A combination that cannot run, recorded as `n/a: reason`."""


def with_place(error: BaseException) -> str:
    """An unforeseen error in a line: type, message, and innermost line of code."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    place = f" ({Path(last.filename).name}:{last.lineno})" if last else ""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}{place}"
