"""The command line of a run, saved in the run folder as request.json; `bench gate` repeats a baseline's."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from bench.record.files import write_atomically

FILE = "request.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments of a run's command line, saved so that `bench gate` can repeat the run."""

    matrix: str
    """Path of the matrix file, or name of a preset or suite."""
    scale: str | None = None
    """Name of a size in the matrix file's `scales`; None: the first."""
    defenses: tuple[str, ...] = ()
    """Added defenses, as the user typed them."""
    plugins: tuple[str, ...] = ()
    """Plug-in files and modules."""
    full: bool = False
    """True if the cascade is switched off: every attack gets all readings."""
    shipped: bool = False
    """True if the undefended results come from the shipped reference results instead of the run."""
    attacks: tuple[str, ...] = ()
    """Attacks in place of the matrix's attacks, as the user typed them; empty: the matrix's attacks."""
    draw_seed: int | None = None
    """Seed of a second sample of victims, which is attacked after the matrix's own sample; None: no second sample."""


_REQUEST = TypeAdapter(Request)


def read(run: Path) -> Request | None:
    """Read the saved command line of the run folder `run`; None if missing or damaged."""
    try:
        return _REQUEST.validate_json((run / FILE).read_bytes(), strict=True)
    except (OSError, ValueError):
        return None


def save(run: Path, request: Request) -> None:
    """Write the command line `request` to the run folder `run`; raises `StorageError` for an unwritable folder."""
    write_atomically(run / FILE, f"{json.dumps(asdict(request), indent=1)}\n".encode())
