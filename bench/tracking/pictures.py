"""The pictures of one record as files for MLflow: drawn, encoded, or withheld.  No mlflow here."""

import io
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

from bench.errors import RecordError
from bench.pictures import grid as strips
from bench.pictures import trajectory as trails
from bench.record.store import Record, is_private, read_arrays
from bench.tracking import view

PICTURE, TRAIL = "truth-above-reconstruction.png", "over-iterations.png"
_CAPTIONS = {PICTURE: "truth above, reconstruction below", TRAIL: "over the iterations, truth last"}
WITHHELD = "withheld: private data"


def of_record(run: Path, record: Record, *, include_private: bool) -> tuple[dict[str, bytes], str | None]:
    """The record's strip, and its trail if it has one, by file name; or why there is none here."""
    if is_private(record) and not include_private:
        return {}, WITHHELD
    if record.arrays is None:
        return {}, "none"
    try:
        arrays = read_arrays(run, record.arrays)
        drawn = {PICTURE: strips.of_arrays(arrays), TRAIL: trails.of_arrays(record, arrays)}
    except (RecordError, ValueError) as error:
        return {}, view.clean(f"not drawn: {error}")[:1000]
    files = {name: png(image) for name, image in drawn.items() if image}
    return files, None if PICTURE in files else "none"


def png(image: Image.Image) -> bytes:
    """The picture as PNG, grey as grey: a third of the time of RGB at full compression, lossless too."""
    bands = image.split()
    if len({band.tobytes() for band in bands}) == 1:
        image = bands[0]
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def description(run_id: str, names: Iterable[str]) -> str:
    """Markdown that shows these files of an MLflow run in its description."""
    # Relative to MLflow's page, wherever that is served.
    return "\n\n".join(f"![{_CAPTIONS[name]}](get-artifact?path={name}&run_uuid={run_id})" for name in names)
