"""The request of a run, kept in the run folder as request.json; `bench gate` repeats a baseline's request."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from bench.record.files import write_atomically

FILE = "request.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A run's command line."""

    matrix: str
    """Matrix file, preset or suite."""
    scale: str | None = None
    """Size of a preset; None: the default."""
    defenses: tuple[str, ...] = ()
    """Added defenses, as typed."""
    plugins: tuple[str, ...] = ()
    """Plug-in files and modules."""
    full: bool = False
    """Whether a cascade is switched off."""
    shipped: bool = False
    """Whether undefended rows come from the reference results instead of the run."""


_REQUEST = TypeAdapter(Request)


def read(run: Path) -> Request | None:
    """The request of a run folder, or None."""
    try:
        return _REQUEST.validate_json((run / FILE).read_bytes(), strict=True)
    except (OSError, ValueError):
        return None


def save(run: Path, request: Request) -> None:
    """Write the request to the run folder; raises `StorageError` for an unwritable folder."""
    write_atomically(run / FILE, f"{json.dumps(asdict(request), indent=1)}\n".encode())
