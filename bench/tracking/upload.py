"""Records → MLflow: the only file that imports mlflow.  One MLflow run per record.

Records on disk are the truth: an upload that fails or is cut off loses nothing, and doing it again
adds nothing (`_send` says why).
"""

import os
import re
import sqlite3
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from bench import records, strips, trails
from bench.errors import RecordError
from bench.records import Record
from bench.tracking import store, view
from bench.tracking.store import Note, Uploaded
from bench.tracking.view import RunView

PICTURE, TRAIL = "truth-above-reconstruction.png", "over-iterations.png"
_CAPTIONS = {PICTURE: "truth above, reconstruction below", TRAIL: "over the iterations, truth last"}
WITHHELD = "withheld: private data"
# MLflow asks once and waits this long: its own retries would repeat a `create_run` whose answer was
# lost, where ours first looks what arrived.  A user's own settings win.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
_QUIET = {
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
_PARAMS, _METRICS = 100, 900  # in one request: at most 100 parameters, at most 1000 of all kinds

Progress = Callable[[Uploaded], None]


class StoreError(Exception):
    """The store did not take it now; the record waits for the next `bench sync`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An open store: MLflow's client, the address, and the experiment of the run."""

    client: Any
    uri: str
    experiment: str
    experiment_id: str
    include_pictures: bool


def upload(
    run: Path,
    uri: str | None = None,
    experiment: str | None = None,
    *,
    only: Iterable[str] | None = None,
    include_pictures: bool = False,
    progress: Progress | None = None,
) -> Uploaded:
    """Upload the run's records (or `only` these cells) that the store has not.

    The default store is sqlite beside the run, the default experiment the run's name.  A store that
    does not answer is no error: it is the `reason` of what is `left`.  Pictures of private data stay
    here unless `include_pictures`.  Raises `BenchError` for a folder without records or an address
    that cannot be a store's.
    """
    run = store.checked_run(run)
    uri = store.checked_uri(run, uri)
    cells = store.cells(run) if only is None else list(only)
    try:
        target = open_target(run, uri, experiment, include_pictures=include_pictures)
    except StoreError as failure:
        return Uploaded(left=len(cells), reason=str(failure))
    return send(target, run, cells, progress=progress)


def open_target(
    run: Path, uri: str, experiment: str | None = None, *, include_pictures: bool = False
) -> Target:
    """Open the store, making its schema and the experiment where they are not there yet.

    Raises `StoreError`.
    """
    name = experiment or store.experiment_name(run)
    try:
        if uri.startswith("sqlite:///"):
            client, found = _open_sqlite(uri, name)
        else:
            client = _client(uri)
            found = _experiment(client, name)
    except Exception as error:
        raise _failure(error, uri) from error
    return Target(
        client=client, uri=uri, experiment=name, experiment_id=found, include_pictures=include_pictures
    )


def send(
    target: Target,
    run: Path,
    cells: Iterable[str],
    *,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Uploaded:
    """Upload these cells' records in order, until the store fails or `stop()` says so.

    A record that cannot be uploaded is counted as failed, and the others go on.
    """
    cells = list(cells)
    state = Uploaded(left=len(cells))
    for cell_id in cells:
        if stop():
            return replace(state, reason="stopped before the end")
        try:
            outcome = _send_twice(target, run, cell_id)
            state = replace(state, left=state.left - 1, **{outcome: getattr(state, outcome) + 1})
        except RecordError as error:
            state = replace(state, left=state.left - 1, failed=state.failed + 1, reason=str(error))
        except StoreError as failure:
            return replace(state, reason=str(failure))
        except OSError as error:
            return replace(state, reason=f"{run / 'synced'}: cannot be written ({error.strerror})")
        if progress:
            progress(state)
    return state


def _send_twice(target: Target, run: Path, cell_id: str) -> Literal["count", "skipped"]:
    """A second attempt after a dropped connection; then the fault is the store's, if it is silent.

    Raises `StoreError`, or `RecordError` where the store answers but will not have this record.
    """
    try:
        return _send(target, run, cell_id)
    except StoreError:
        if not _answers(target):
            time.sleep(1)
    try:
        return _send(target, run, cell_id)
    except StoreError as failure:
        if _answers(target):
            raise RecordError(f"{records.record_path(run, cell_id)}: not taken by {failure}") from failure
        raise


def _send(target: Target, run: Path, cell_id: str) -> Literal["count", "skipped"]:
    """Upload one record, if the store has it not.

    The note on disk spares a search; the store's tags settle the rest, so that a crash between upload
    and note makes no second run.  A run left open by a crash is deleted; one of an older content of
    the record is tagged `bench.superseded` with the new run's id.  A picture that was withheld is added
    to the run there once it may be.  One writer at a time per folder.
    Raises `RecordError`, `StoreError`.
    """
    path = records.record_path(run, cell_id)
    with store.locked(run / "synced" / ".lock"):
        record, shown = view.load(path)
        note = store.read_note(run, cell_id, target.uri)
        try:
            if (
                note
                and (note.experiment, note.sha256) == (target.experiment, shown.sha256)
                and (found := _noted(target, note.run))
            ):
                return "count" if _add_withheld(target, run, record, found) else "skipped"
            same, other = _versions(target, cell_id, shown.sha256)
            added = same is None or _add_withheld(target, run, record, same)
            new = same.info.run_id if same else _create(target, run, record, shown)
            for run_id in other:
                target.client.set_tag(run_id, "bench.superseded", new)
        except Exception as error:
            raise _failure(error, target.uri) from error
        note = Note(experiment=target.experiment, sha256=shown.sha256, run=new)
        store.write_note(run, cell_id, target.uri, note)
        return "count" if added else "skipped"


def _noted(target: Target, run_id: str) -> Any | None:
    """The noted run, if it is in the store: one deleted in the UI still is, a lost database's is not."""
    try:
        return target.client.get_run(run_id)
    except Exception as error:
        if getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


def _add_withheld(target: Target, run: Path, record: Record, found: Any) -> bool:
    """Add the picture that an earlier upload withheld, if it may go now; whether it did."""
    withheld = found.data.tags.get("bench.picture") == WITHHELD
    if not (target.include_pictures and withheld) or found.info.lifecycle_stage == "deleted":
        return False
    images, why_not = _pictures(target, run, record)
    said = why_not or _log_pictures(target.client, found.info.run_id, images)
    if said:
        target.client.set_tag(found.info.run_id, "bench.picture", said)
    return said is None


def _answers(target: Target) -> bool:
    try:
        target.client.get_experiment(target.experiment_id)
    except Exception:
        return False
    return True


def _versions(target: Target, cell_id: str, sha256: str) -> tuple[Any | None, list[str]]:
    """The finished run of this very content, and those of other contents not yet superseded."""
    same: Any | None = None
    other: list[str] = []
    condition = f"tags.`bench.cell` = '{cell_id}'"
    for found in target.client.search_runs([target.experiment_id], condition, max_results=100):
        if found.data.tags.get("bench.record") == sha256:
            if found.info.status == "RUNNING":
                target.client.delete_run(found.info.run_id)
            else:
                same = found
        elif "bench.superseded" not in found.data.tags:
            other.append(found.info.run_id)
    return same, other


def _create(target: Target, run: Path, record: Record, shown: RunView) -> str:
    """The record as an MLflow run: ended last, so that an open run is one cut off."""
    from mlflow.entities import Metric, Param

    client = target.client
    ended = int(records.record_path(run, record.id).stat().st_mtime * 1000)
    images, why_not = _pictures(target, run, record)
    tags = {**shown.tags, "bench.run": view.clean(run.resolve().name), "bench.picture": why_not or PICTURE}
    run_id: str = client.create_run(
        target.experiment_id,
        start_time=max(0, ended - int(1000 * shown.seconds)),
        tags=tags,
        run_name=shown.name,
    ).info.run_id
    params = [Param(key, value) for key, value in shown.params.items()]
    metrics = [Metric(name, value, ended, step) for name, value, step in shown.metrics]
    while params or metrics:
        client.log_batch(run_id, params=params[:_PARAMS], metrics=metrics[:_METRICS], synchronous=True)
        params, metrics = params[_PARAMS:], metrics[_METRICS:]
    if images and (refused := _log_pictures(client, run_id, images)):
        client.set_tag(run_id, "bench.picture", refused)
    client.set_terminated(run_id, shown.status, end_time=ended)
    return run_id


def _pictures(target: Target, run: Path, record: Record) -> tuple[dict[str, Image.Image], str | None]:
    """The record's strip, and its trail if it has one, by file name; or why there is none here."""
    if view.is_private(record) and not target.include_pictures:
        return {}, WITHHELD
    try:
        drawn = {PICTURE: strips.of_record(run, record), TRAIL: trails.of_record(run, record)}
    except (RecordError, ValueError) as error:
        return {}, view.clean(f"not drawn: {error}")[:1000]
    images = {name: image for name, image in drawn.items() if image}
    return images, None if PICTURE in images else "none"


def _log_pictures(client: Any, run_id: str, images: Mapping[str, Image.Image]) -> str | None:
    """Upload the pictures and show them in the run's description; or what was in the way."""
    from mlflow.entities import RunTag

    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, image in images.items():
                image.save(Path(folder) / name)
                client.log_artifact(run_id, str(Path(folder) / name))
    except (ImportError, PermissionError) as error:
        # The server keeps artifacts where this machine cannot write: the numbers still go up.
        return view.clean(f"not uploaded: {error}")[:1000]
    # Relative to MLflow's page, wherever that is served.
    description = "\n\n".join(
        f"![{_CAPTIONS[name]}](get-artifact?path={name}&run_uuid={run_id})" for name in images
    )
    tags = [RunTag("bench.picture", PICTURE), RunTag("mlflow.note.content", description)]
    client.log_batch(run_id, tags=tags, synchronous=True)
    return None


def _client(uri: str) -> Any:
    os.environ.update(store.ENVIRONMENT | _QUIET)
    for name, value in _PATIENCE.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the deprecations of its own imports are not the user's
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _open_sqlite(uri: str, name: str) -> tuple[Any, str]:
    """Client and experiment: two processes that migrate a fresh database at once kill one another."""
    path = Path(uri.removeprefix("sqlite:///"))
    # Absolute, as MLflow's default follows the working directory.
    artifacts = path.parent / "mlartifacts" / (re.sub(r"[^\w.-]", "_", name).strip(".") or "_")
    with store.locked(path.with_name(f".{path.name}.lock")):
        client = _client(uri)
        found = _experiment(client, name, artifacts.as_uri())
        # Readers beside the writer; the setting stays in the file.
        connection = sqlite3.connect(path, timeout=20)
        try:
            connection.execute("PRAGMA journal_mode=wal")
        finally:
            connection.close()
    return client, found


def _experiment(client: Any, name: str, artifacts: str | None = None) -> str:
    """The experiment's id; made, or taken back from the trash, where needed."""
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, artifact_location=artifacts))
        except Exception as error:
            if getattr(error, "error_code", "") != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(name)
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return str(found.experiment_id)


def _failure(error: Exception, uri: str) -> StoreError:
    """One line on what the store answered, without its address' password."""
    text = str(error).replace(uri, store.shown(uri)).strip() or "no more is known"
    return StoreError(f"{store.shown(uri)}: {type(error).__name__}: {view.clean(text)[:300]}")
