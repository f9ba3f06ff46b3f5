"""The upload of a bench run's board rows, and of a suite's board, to MLflow: an MLflow run for each row.

A changed row becomes a new MLflow run; the older MLflow run is deleted, so no chart shows both.  A deleted MLflow run
has the tag `bench.superseded` in MLflow's trash."""

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from bench.errors import RecordError
from bench.pictures import grid
from bench.record import store as records
from bench.tracking import boards, pictures, rows, store, upload, view
from bench.tracking.pictures import GRID, WITHHELD
from bench.tracking.rows import RowView
from bench.tracking.upload import Target


def send(
    target: Target, run: Path, *, progress: Callable[[], None] = lambda: None, stop: Callable[[], bool] = lambda: False
) -> int:
    """Upload new and changed board rows of the run folder `run`, delete outdated rows in the store. Return the number
    of uploaded rows. `progress` is called after each row; the upload ends between two rows if `stop()` is True. Raises
    `upload.StoreError`."""
    wanted = {row.key: row for row in (*rows.of_run(run), *boards.of_run(run))}
    ended = _last_change(run)
    with store.locked(run / "synced" / ".lock"), upload.mlflow_errors(target.uri):
        for kind in (rows.KIND, boards.KIND):
            for stored in upload.search(target, f"tags.`bench.kind` = '{kind}'", deleted=True):
                _reconcile(target, run, wanted, stored)
        for number, row in enumerate(wanted.values()):
            if stop():
                return number
            _create(target, run, row, ended)
            progress()
    return len(wanted)


def _reconcile(target: Target, run: Path, wanted: dict[str, RowView], stored: Any) -> None:
    """Remove `stored` from `wanted` if the row is unchanged; delete an outdated MLflow run in the store."""
    tags = stored.data.tags
    row = wanted.get(tags.get("bench.row", ""))
    same = row is not None and tags.get("bench.content") == row.shown.sha256
    if stored.info.lifecycle_stage == "deleted":
        # A row deleted in MLflow's pages stays deleted.
        if row and same and "bench.superseded" not in tags:
            del wanted[row.key]
        return
    if row is None and tags.get("bench.folder") != _folder(run):
        return  # a row from another folder in the same experiment
    withheld = target.include_pictures and tags.get("bench.picture") == WITHHELD
    if row and same and not withheld and stored.info.status != "RUNNING":
        del wanted[row.key]
        return
    target.client.set_tag(stored.info.run_id, "bench.superseded", row.shown.sha256 if row else "gone")
    target.client.delete_run(stored.info.run_id)


def _create(target: Target, run: Path, row: RowView, ended: int) -> None:
    withheld = row.private and not target.include_pictures
    image = None if withheld else _picture(run, row)
    tags = {
        **row.shown.tags,
        "bench.row": row.key,
        "bench.content": row.shown.sha256,
        "bench.folder": _folder(run),
        "bench.run": view.clean(run.resolve().name, 250),
        "bench.picture": WITHHELD if withheld else GRID if image else "none",
    }
    files = {**row.files(), **({GRID: pictures.png(image)} if image else {})}
    tile = (rows.GRID_KEY, _folded(image)) if image else None
    upload.create(target, replace(row.shown, tags=tags), ended, files, tile=tile, text=row.text)


def _picture(run: Path, row: RowView) -> Image.Image | None:
    for cell_id in row.cells:
        try:
            if image := grid.of_record(run, records.read(records.record_path(run, cell_id))):
                return image
        except (RecordError, ValueError):
            continue
    return None


def _folded(image: Image.Image) -> Image.Image:
    """Place a long picture's right half below its left half, because MLflow shows pictures in square tiles."""
    width, height = image.size
    if width < 2 * height:
        return image
    half = (width + grid.GAP) // 2  # each half with the gap at its edges
    page = Image.new("RGB", (half, 2 * height), (int(grid.PAPER),) * 3)
    page.paste(image.crop((0, 0, half, height)), (0, 0))
    page.paste(image.crop((width - half, 0, width, height)), (0, height))
    return page


def _last_change(run: Path) -> int:
    return int(max((path.stat().st_mtime for path in (run / "records").glob("*.json")), default=0.0) * 1000)


def _folder(run: Path) -> str:
    """Return a hash of the machine's name and the folder's path, because MLflow shall not show the path."""
    return store.digest(f"{socket.gethostname()}:{run.resolve()}".encode())[:16]
