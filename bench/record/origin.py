"""The origin of a run folder's records: the command, and the commit of the project around the working folder."""

import json
import os
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from bench.record.files import write_atomically

FILE = "origin.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Origin of a run folder: the command that made it, and the commit of the project around the working folder."""

    command: str
    """The command in words, without paths and addresses, such as `bench run --matrix quickstart`."""
    commit: str | None
    """Hash of the last commit in the working folder's git repository; None without a repository or git."""


_ORIGIN = TypeAdapter(Origin)


def read(run: Path) -> Origin | None:
    """Read the origin (command and commit) of the run folder `run`; None if the file is missing or damaged."""
    try:
        return _ORIGIN.validate_json((run / FILE).read_bytes(), strict=True)
    except (OSError, ValueError):
        return None


def save(run: Path, command: str) -> None:
    """Write the origin of the run folder `run`: `command`, and the commit around the working folder. Raises
    `StorageError` for an unwritable folder."""
    origin = Origin(command=command, commit=_commit())
    write_atomically(run / FILE, f"{json.dumps(asdict(origin), indent=1)}\n".encode())


def _commit() -> str | None:
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "--verify", "HEAD"],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError:
        return None
    return asked.stdout.decode("ascii", "replace").strip() or None if asked.returncode == 0 else None
