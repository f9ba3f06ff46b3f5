"""The manifest of a submission: what is in the file, from whom, and what was left out."""

import hashlib
import json
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from bench.cell import Frozen, Sha256
from bench.sanitize import first_error, first_line
from bench.submission.archive import MANIFEST, ArchiveFault

PRIVATE, EXCLUDED, ABSENT = "private", "not asked for", "not in the run folder"
LONGEST = 300  # characters of a free text


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it has characters that do not print")
    return text


def _web(text: str) -> str:
    if text and not text.startswith(("https://", "http://")):
        raise ValueError("it must start with https:// or http://")
    return text


Text = Annotated[str, Field(max_length=LONGEST), AfterValidator(_printable)]
Count = Annotated[int, Field(ge=0)]


class FileDigest(Frozen):
    """One file: its content's hash and size."""

    sha256: Sha256
    bytes: Count


def digest(content: bytes) -> FileDigest:
    """Of a file with this content."""
    return FileDigest(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))


class Suite(Frozen):
    """What the run says of a suite (`bench.matrix.suites.ranking`): its word, not checked."""

    suite: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]  # it names a file
    protocol: Count
    bench: Text
    ranked: bool
    why_not: tuple[Text, ...]


class Manifest(Frozen):
    """What is in the file, from whom, and what is not.

    `record_schema` is the schema of its records; `name`, `url` and `when` are free texts; `pictures` says that
    examples of private data were let out; `left_out` maps a record's id to why its arrays are not in the file;
    `files` are all others in it, by name.
    """

    format: Literal["gradient-leakage-bench submission"] = "gradient-leakage-bench submission"
    version: Literal[1] = 1
    record_schema: Literal[2]
    protocol: Count
    bench: Text
    name: Text = ""
    url: Annotated[Text, AfterValidator(_web)] = ""
    when: Text = ""
    suites: tuple[Suite, ...] = ()
    pictures: bool = False
    left_out: dict[Sha256, Literal["private", "not asked for", "not in the run folder"]] = {}
    files: dict[str, FileDigest]

    def text(self) -> str:
        """The file's text."""
        return json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"


def parsed(content: bytes) -> Manifest:
    """The manifest of these bytes; raises `ArchiveFault` in one line for anything that it should not be."""
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        raise ArchiveFault(f"{MANIFEST}: {first_error(error)}") from None
    except (ValueError, RecursionError) as error:
        raise ArchiveFault(f"{MANIFEST}: {first_line(error)}") from None
    # Else a key that is in it twice would show a reader one value and a program another.
    if manifest.text().encode() != content:
        raise ArchiveFault(f"{MANIFEST}: not as `bench leaderboard export` writes it")
    return manifest
