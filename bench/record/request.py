"""A run's request, kept in the run folder as request.json; `bench gate` repeats a baseline's request."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from bench.record.files import write_atomically

FILE = "request.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments from a run's command line."""

    matrix: str
    """Matrix file, preset or suite."""
    scale: str | None = None
    """Name of the preset's scale; None: the default."""
    defenses: tuple[str, ...] = ()
    """Added defenses, as the user typed them."""
    plugins: tuple[str, ...] = ()
    """Plug-in files and modules."""
    full: bool = False
    """Whether the cascade is switched off."""
    shipped: bool = False
    """Whether undefended rows come from the reference results instead of the run."""


_REQUEST = TypeAdapter(Request)


def read(run: Path) -> Request | None:
    """Read the request from a run folder; None if missing or damaged."""
    try:
        return _REQUEST.validate_json((run / FILE).read_bytes(), strict=True)
    except (OSError, ValueError):
        return None


def save(run: Path, request: Request) -> None:
    """Write the request to the run folder; raise `StorageError` for an unwritable folder."""
    write_atomically(run / FILE, f"{json.dumps(asdict(request), indent=1)}\n".encode())
