"""Pictures from records: texts in words if the run folder holds their vocabulary, other examples as a grid."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

from bench.kinds.base import Kind
from bench.kinds.texts import TEXT
from bench.pictures.grid import Floats, grid
from bench.pictures.thumbnails import fitting
from bench.pictures.words import Words, picture, words
from bench.record.schema import Record
from bench.record.store import read_arrays
from bench.record.vocabularies import read

_SMALL = 4000  # bytes of a small picture: a trade-off has hundreds


def of_record(run: Path, record: Record) -> Image.Image | None:
    """Draw true examples above their reconstructions, from a record's stored arrays in the run folder `run`; None for a
    record without arrays. Raises `RecordError` for missing or damaged arrays."""
    return None if record.arrays is None else of_arrays(run, record, read_arrays(run, record.arrays))


def of_arrays(run: Path, record: Record, arrays: Mapping[str, Floats]) -> Image.Image | None:
    """Draw true examples above their reconstructions, from a record's loaded `arrays` (name → values); None if truth or
    reconstruction is missing. The run folder `run` holds the vocabulary of texts."""
    if record.attack is None or "truth" not in arrays or "reconstruction" not in arrays:
        return None
    return drawing(arrays["truth"], arrays["reconstruction"], record.attack.data_kind, tokens(run, record))


def drawing(truth: Floats, guess: Floats, kind: Kind, vocabulary: Sequence[str]) -> Image.Image | None:
    """Draw up to eight true examples above their reconstructions; None for empty arrays.

    - `truth`, `guess` (reading, example, *shape): true examples and reconstructions in the same order.
    - `kind`: kind of data.
    - `vocabulary`: token of each id, to draw texts in words; empty draws a grid.

    Raises `ValueError` for differing shapes."""
    texts = words(truth, guess, vocabulary) if vocabulary else []
    return picture(texts) if texts else grid(truth, guess, kind)


def small(run: Path, record: Record) -> str | None:
    """Return a record's true examples above their reconstructions as a small WebP image, base64. None for private data,
    and for a record without arrays. Raises `RecordError` for missing or damaged arrays in the run folder `run`."""
    result = record.attack
    if result is None or result.private or record.arrays is None:
        return None
    arrays = read_arrays(run, record.arrays)
    if "reconstruction" not in arrays:
        return None
    drawn = fitting(arrays["truth"], arrays["reconstruction"], result.data_kind, _SMALL)
    return None if drawn is None else b64encode(drawn.webp).decode()


def texts_of(run: Path, record: Record) -> list[Words]:
    """Return a record's texts in words, from the arrays and the vocabulary in the run folder `run`; empty for other
    kinds of data, and without arrays or vocabulary. Raises `RecordError` for missing or damaged arrays."""
    vocabulary = tokens(run, record)
    if not vocabulary or record.arrays is None:
        return []
    arrays = read_arrays(run, record.arrays)
    return words(arrays["truth"], arrays["reconstruction"], vocabulary) if "reconstruction" in arrays else []


def tokens(run: Path, record: Record) -> tuple[str, ...]:
    """Return the vocabulary for a `record` of texts, the token of each id, to show texts in words; saved in the run
    folder `run`. Empty for other kinds of data, and for a run folder without the vocabulary."""
    if record.attack is None or record.attack.data != TEXT.name:
        return ()
    return read(run, record.cell.dataset.sha256)
