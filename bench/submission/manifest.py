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
    """Hash and size of a file in a submission."""

    sha256: Sha256
    """Hash of the file."""
    bytes: Count
    """Size of the file."""


def digest(content: bytes) -> FileDigest:
    """Return hash and size of a file with this `content`."""
    return FileDigest(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))


class Suite(Frozen):
    """A submitter's claim about the run of a suite (a frozen set of experiments): whether the run is complete and
    unmodified (ranked). A check of the file cannot test this claim."""

    suite: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
    """Name of the suite, a part of a file name."""
    protocol: Count
    """Version of the evaluation protocol."""
    bench: Text
    """Version of the bench that ran the suite."""
    ranked: bool
    """Whether the run is ranked: complete and unmodified."""
    why_not: tuple[Text, ...]
    """Reasons why the run is not ranked."""


class Manifest(Frozen):
    """Content of manifest.json in a submission: its files, the submitter, and claims about suites."""

    format: Literal["gradient-leakage-bench submission"] = "gradient-leakage-bench submission"
    """Name of the file format."""
    version: Literal[1] = 1
    """Version of the file format."""
    record_schema: Literal[2]
    """Version of the records' schema."""
    protocol: Count
    """Version of the evaluation protocol of the records."""
    bench: Text
    """Version of the bench that wrote the submission."""
    name: Text = ""
    """Submitter's name as free text."""
    url: Annotated[Text, AfterValidator(_web)] = ""
    """Address of a paper or page."""
    when: Text = ""
    """Date as free text."""
    suites: tuple[Suite, ...] = ()
    """Claims about suites."""
    pictures: bool = False
    """Whether the submitter chose to include examples from private data."""
    left_out: dict[Sha256, Literal["private", "not asked for", "not in the run folder"]] = {}
    """Map from record id to the reason why the record's arrays are omitted."""
    files: dict[str, FileDigest]
    """File name → digest, for every file except the manifest."""

    def text(self) -> str:
        """Return the manifest as JSON text, the content of manifest.json."""
        return json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True) + "\n"


def parsed(content: bytes) -> Manifest:
    """Parse the `content` of manifest.json. Raises `ArchiveFault` with a single line of text for invalid content."""
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
