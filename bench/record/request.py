"""The command of a run: matrix, scale, defenses and plug-ins, kept in its folder as request.json.

`bench gate` repeats the request of the run that its baseline was made of.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from bench.record.files import write_atomically

FILE = "request.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The command that made a run: matrix file or preset, its scale, defenses and plug-ins added, as typed; `full`:
    no cascade; `shipped`: rows without a defense that the reference results have are not run again."""

    matrix: str
    scale: str | None = None
    defenses: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()
    full: bool = False
    shipped: bool = False


_REQUEST = TypeAdapter(Request)


def read(run: Path) -> Request | None:
    """The request of a run folder; None where the folder does not say."""
    try:
        return _REQUEST.validate_json((run / FILE).read_bytes(), strict=True)
    except (OSError, ValueError):
        return None


def save(run: Path, request: Request) -> None:
    """Write the request to the run folder; raises `StorageError` where it cannot be."""
    write_atomically(run / FILE, f"{json.dumps(asdict(request), indent=1)}\n".encode())
