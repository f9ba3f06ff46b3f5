"""Errors for the user: a message names the mistake, its place, and the remedy."""

import traceback
from pathlib import Path

# Errors that a parser raises for malformed content.
MALFORMED = (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError)


class BenchError(Exception):
    """Error for a user's mistake; the command line prints the message and exits with 2."""


class UnknownName(BenchError):
    """Error for a name that no registered attack, defense, data set or model has."""


class MatrixError(BenchError):
    """Error for an invalid matrix file; the message has a line for each mistake."""


class DataError(BenchError):
    """Error for a data set that is missing, truncated, altered or out of range."""


class MissingDataError(DataError):
    """Error for a data set or weights whose files were not found; damaged files raise `DataError`."""


class MissingExtraError(MissingDataError):
    """Error for an optional package that is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        self.remedy = f"pip install 'gradient-leakage-bench[{extra}]'"
        super().__init__(f"no package {package}; {self.remedy}")


class StorageError(BenchError):
    """Error for a file or folder that cannot be written."""


class PluginError(BenchError):
    """Error for a plug-in (a user's attack, defense, data set or model) that cannot be loaded, or whose output breaks
    the rules for its kind."""


class RecordError(BenchError):
    """Error for a record or reading file that is damaged or has another schema."""


class WeightsError(BenchError):
    """Error for a weights file that does not fit the model."""


class Terminated(SystemExit):
    """Exception that ends the command after the signal SIGTERM, with exit code 143, as a shell reports this signal."""

    def __init__(self) -> None:
        super().__init__(143)


class NotApplicable(Exception):
    """Error for a combination of attack, defense, data and model that cannot run; the experiment's record gets the
    status `n/a` with the message as the reason."""


def with_place(error: BaseException) -> str:
    """Return a line of text about an unexpected error: its type, its message, and the innermost line of code."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    place = f" ({Path(last.filename).name}:{last.lineno})" if last else ""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}{place}"
