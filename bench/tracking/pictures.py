"""Pictures of a record's reconstructions as PNG files for MLflow.  This module does not import mlflow."""

from collections.abc import Iterable
from pathlib import Path

from PIL import Image

from bench.errors import RecordError
from bench.pictures import grid, recorded, trajectory
from bench.record.schema import Record
from bench.record.store import read_arrays
from bench.tracking import view

GRID, TRAJECTORY = "truth-above-reconstruction.png", "over-iterations.png"
BOARD, PAGE = "board.svg", "board.html"
_CAPTIONS = {
    GRID: "truth above, reconstruction below",
    TRAJECTORY: "over the iterations, truth last",
    BOARD: "the board",
    PAGE: "the board as a page",
}
WITHHELD = "withheld: private data"
_REASON = 1000  # characters


def of_record(run: Path, record: Record, *, include_private: bool) -> tuple[dict[str, bytes], str | None]:
    """Draw a record's pictures for MLflow: the grid of true and reconstructed examples (texts in words), and the
    trajectory of reconstructions during the attack. Return file name → PNG, and the reason for a missing grid (None:
    present). The run folder `run` holds the arrays. `include_private` True also draws pictures from private data."""
    if record.private and not include_private:
        return {}, WITHHELD
    if record.arrays is None:
        return {}, "none"
    try:
        arrays = read_arrays(run, record.arrays)
        images = {GRID: recorded.of_arrays(run, record, arrays), TRAJECTORY: trajectory.of_arrays(record, arrays)}
    except (RecordError, ValueError) as error:
        return {}, view.clean(f"not drawn: {error}", _REASON)
    files = {name: png(image) for name, image in images.items() if image}
    return files, None if GRID in files else "none"


def png(image: Image.Image) -> bytes:
    """Encode the image as PNG without loss: grey images with a single channel, at low compression to save time."""
    bands = image.split()
    if len({band.tobytes() for band in bands}) == 1:
        image = bands[0]
    return grid.encoded(image, compress_level=1)


def description(run_id: str, names: Iterable[str]) -> str:
    """Return Markdown for the description of the MLflow run `run_id`: the pictures `names` (file names), and a link to
    a page among them."""
    # Relative to MLflow's page, so valid for any server address.
    return "\n\n".join(
        f"{'' if name == PAGE else '!'}[{_CAPTIONS[name]}](get-artifact?path={name}&run_uuid={run_id})"
        for name in names
    )
