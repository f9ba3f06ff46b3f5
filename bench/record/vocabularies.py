"""Vocabularies of a run's texts, RUN/vocabularies/<hash of the data>.json: arrays hold token ids, views show words."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from bench.record.files import read_plain, write_atomically

_LIMIT = 2**25  # bytes
_TOKENS = TypeAdapter(tuple[str, ...])


def save(run: Path, vocabularies: Mapping[str, Sequence[str]]) -> None:
    """Write `vocabularies` to the run folder `run`: SHA-256 of a data set → the token of each id. Raises `StorageError`
    for an unwritable folder."""
    for sha256, tokens in vocabularies.items():
        write_atomically(_path(run, sha256), f"{json.dumps(tokens)}\n".encode())


def read(run: Path, sha256: str) -> tuple[str, ...]:
    """Read the token of each id from the run folder `run`, for the data set with the SHA-256 `sha256`; empty for a
    missing or damaged file."""
    try:
        return _TOKENS.validate_json(read_plain(_path(run, sha256), limit=_LIMIT))
    except (OSError, ValueError):
        return ()


def _path(run: Path, sha256: str) -> Path:
    return run / "vocabularies" / f"{sha256}.json"
