"""The manifest of a submission: list of files, name of the submitter, and reasons for omitted arrays."""

import hashlib
import json
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationError

from bench.cell import Frozen, Sha256
from bench.sanitize import first_error, first_line
from bench.submission.archive import MANIFEST, ArchiveFault

PRIVATE, EXCLUDED, ABSENT = "private", "not asked for", "not in the run folder"
LONGEST = 300  # characters in a free text


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
    sha256: Sha256
    bytes: Count


def digest(content: bytes) -> FileDigest:
    return FileDigest(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))


class Suite(Frozen):
    """The claim about a suite: whether the run is ranked, and reasons against; a check cannot test the claim."""

    suite: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]  # part of a file name
    protocol: Count
    bench: Text
    ranked: bool
    why_not: tuple[Text, ...]


class Manifest(Frozen):
    """The content of manifest.json: list of files, name of the submitter, and reasons for omitted arrays."""

    format: Literal["gradient-leakage-bench submission"] = "gradient-leakage-bench submission"
    version: Literal[1] = 1
    record_schema: Literal[2]
    protocol: Count
    bench: Text
    name: Text = ""
    """Submitter's name as free text."""
    url: Annotated[Text, AfterValidator(_web)] = ""
    when: Text = ""
    """Date as free text."""
    suites: tuple[Suite, ...] = ()
    pictures: bool = False
    """Whether the submitter chose to include examples from private data."""
    left_out: dict[Sha256, Literal["private", "not asked for", "not in the run folder"]] = {}
    """Record id → reason for omitting the record's arrays."""
    files: dict[str, FileDigest]
    """File name → digest, for every file except the manifest."""

    def text(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"


def parsed(content: bytes) -> Manifest:
    """Parse a manifest; raise `ArchiveFault` with a single line of text for invalid content."""
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        raise ArchiveFault(f"{MANIFEST}: {first_error(error)}") from None
    except (ValueError, RecursionError) as error:
        raise ArchiveFault(f"{MANIFEST}: {first_line(error)}") from None
    # Otherwise a repeated key could show a reader one value and a program another.
    if manifest.text().encode() != content:
        raise ArchiveFault(f"{MANIFEST}: not as `bench leaderboard export` writes it")
    return manifest
