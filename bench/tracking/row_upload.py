"""The upload of a bench run's boards to MLflow: an MLflow experiment for each board, an MLflow run for each row.

MLflow's pages show the newest MLflow runs first: a row starts a millisecond after the next worse row.  A changed row
becomes a new MLflow run; the older MLflow run is deleted, so no chart shows both.  A deleted MLflow run has the tag
`bench.superseded` in MLflow's trash."""

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.record import tradeoff
from bench.record.groups import grouped
from bench.tracking import boards, families, rows, store, upload
from bench.tracking.pictures import GRID, WITHHELD
from bench.tracking.rows import RowView
from bench.tracking.upload import Target
from bench.tracking.view import Attached


def send(
    target: Target, run: Path, *, progress: Callable[[], None] = lambda: None, stop: Callable[[], bool] = lambda: False
) -> int:
    """Upload new and changed board rows of the run folder `run` to the MLflow store `target`, and delete outdated rows
    in the store. A row is a defense under a condition (data, model and setting). Return the number of uploaded rows.
    `progress` is called after each row; the upload ends between two rows if `stop()` is True. Raises
    `upload.StoreError`."""
    wanted = grouped(of_run(run), lambda row: store.board_name(run, row.board))
    count, last = 0, _first_record(run)
    with store.locked(run / "synced" / ".lock"), upload.mlflow_errors(target.uri):
        there = [name for name in upload.experiments(target) if name.startswith(store.board_name(run, ""))]
        for name in dict.fromkeys([*wanted, *there]):
            board = upload.beside(target, name)
            missing = {row.key: (row, last - place) for place, row in enumerate(wanted.get(name, ()))}
            for stored in upload.search(board, "", deleted=True):
                _reconcile(board, run, missing, stored)
            for row, begun in reversed(missing.values()):
                if stop():
                    return count
                _create(board, run, row, begun)
                count += 1
                progress()
    return count


def of_run(run: Path) -> list[RowView]:
    """Make the rows of all boards (tables of defenses) of the run folder `run` for display in MLflow, the best of each
    board first. A calibration (search for defense strengths) has a row for each defense family (a defense at all its
    strengths); another run has the suite's board, and a board for each data set."""
    return families.of_run(run) if (run / tradeoff.FILE).is_file() else [*boards.of_run(run), *rows.of_run(run)]


def _reconcile(target: Target, run: Path, missing: dict[str, tuple[RowView, int]], stored: Any) -> None:
    """Remove `stored` from `missing` (key → row and its start) if the row is unchanged; delete an outdated MLflow run
    in the store."""
    tags = stored.data.tags
    row, begun = missing.get(tags.get("bench.row", ""), (None, 0))
    same = row is not None and tags.get("bench.content") == row.shown.sha256
    if stored.info.lifecycle_stage == "deleted":
        # A row deleted in MLflow's pages stays deleted until its records change.
        if row and tags.get("bench.behind") == row.behind and "bench.superseded" not in tags:
            del missing[row.key]
        return
    if row is None and tags.get("bench.folder") != _folder(run):
        return  # a row from another folder in the same experiment
    withheld = target.include_pictures and tags.get("bench.picture") == WITHHELD
    finished = stored.info.status != "RUNNING" and stored.info.start_time == begun
    if row and same and not withheld and finished:
        del missing[row.key]
        return
    target.client.set_tag(stored.info.run_id, "bench.superseded", row.shown.sha256 if row else "gone")
    target.client.delete_run(stored.info.run_id)


def _create(target: Target, run: Path, row: RowView, begun: int) -> None:
    withheld = row.private and not target.include_pictures
    attached = Attached() if withheld else row.attached()
    source = {} if row.shown.seconds is None else target.tags  # shipped figures have another origin
    tags = {
        **source,
        **row.shown.tags,
        "bench.row": row.key,
        "bench.content": row.shown.sha256,
        "bench.behind": row.behind,
        "bench.folder": _folder(run),
        "bench.picture": WITHHELD if withheld else GRID if GRID in attached.files else "none",
    }
    upload.create(target, replace(row.shown, tags=tags), begun, attached, text=row.text)


def _first_record(run: Path) -> int:
    """Return the time of the first record in milliseconds: new records do not change it."""
    return int(min((path.stat().st_mtime for path in (run / "records").glob("*.json")), default=0.0) * 1000)


def _folder(run: Path) -> str:
    """Return a hash of the machine's name and the folder's path, because MLflow shall not show the path."""
    return store.digest(f"{socket.gethostname()}:{run.resolve()}".encode())[:16]
