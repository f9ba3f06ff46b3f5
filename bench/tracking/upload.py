"""The upload of records to MLflow, an MLflow run per record; only this module imports mlflow.

An interrupted upload loses no data, and a repeated upload adds no duplicates (`_send` explains how)."""

import contextlib
import os
import re
import sqlite3
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from urllib.request import url2pathname

from sqlalchemy import event

from bench.errors import RecordError, StorageError
from bench.record import origin
from bench.record import store as records
from bench.record.schema import Record
from bench.tracking import pictures, store, view
from bench.tracking.pictures import GRID, WITHHELD
from bench.tracking.store import Note, UploadResult
from bench.tracking.view import Attached, RunView

# MLflow sends each request once, with this timeout.  Its retries would repeat a `create_run` with a lost answer;
# `_send_twice` first searches for the run.  A user's settings win.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
_QUIET = {
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
_PARAMS, _METRICS = 100, 900  # per request: at most 100 parameters, at most 1000 items in total
_REASON, _SOURCE, _DIGEST, _FOLDER = 1000, 250, 8, 60  # characters; of a folder's name perhaps 4 bytes each
_EXPERIMENTS = 5000
VICTIMS = "victims.json"  # table of truth and reconstruction


class StoreError(Exception):
    """Error for an unavailable MLflow store; the records wait for the next `bench sync`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Destination of an upload: a connection to an MLflow store, and the MLflow experiment for a run's records."""

    client: Any
    """MLflow's client."""
    uri: str
    """The store's address."""
    experiment: str
    """Name of the MLflow experiment."""
    experiment_id: str
    """Id of the MLflow experiment."""
    include_pictures: bool
    """True also uploads pictures from private data."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of every MLflow run: the run folder's name, the command and the commit."""


def open_target(run: Path, uri: str | None = None, *, include_pictures: bool = False) -> Target:
    """Open the MLflow store for a run folder `run`; create database tables and MLflow experiment if missing. `uri` is
    the store's address; None means an sqlite file in the folder that holds the run folder. `include_pictures` True also
    uploads pictures from private data. Raises `BenchError` for an invalid address and `StoreError` for an unavailable
    store."""
    address = store.checked_uri(run, uri)
    with mlflow_errors(address):
        client = _open_sqlite(address) if address.startswith("sqlite:///") else _client(address)
        name = store.experiment_name(run)
        number = _experiment(client, address, name)
    return Target(
        client=client,
        uri=address,
        experiment=name,
        experiment_id=number,
        include_pictures=include_pictures,
        tags=_source(run),
    )


def beside(target: Target, name: str) -> Target:
    """Return a `Target` for another MLflow experiment, `name`, in the same store as `target`; used for boards (tables
    of defenses). The experiment is created if missing. MLflow's errors are raised."""
    return replace(target, experiment=name, experiment_id=_experiment(target.client, target.uri, name))


def experiments(target: Target) -> list[str]:
    """Return the names of all MLflow experiments in the store of `target`. MLflow's errors are raised."""
    return [experiment.name for experiment in target.client.search_experiments(max_results=_EXPERIMENTS)]


def send(
    target: Target,
    run: Path,
    cells: Iterable[str],
    *,
    progress: Callable[[UploadResult], None] = lambda state: None,
    stop: Callable[[], bool] = lambda: False,
) -> UploadResult:
    """Upload records to the MLflow store `target`, in the order of their ids in `cells`, until the store fails or
    `stop()` returns True. Return the counts. `run` is the run folder with the records; `progress` receives the counts
    after each record. A record that cannot be uploaded counts as failed, and the upload continues."""
    cells = list(cells)
    state = UploadResult(left=len(cells))
    for cell_id in cells:
        if stop():
            return replace(state, reason="stopped before the end")
        try:
            outcome = _send_twice(target, run, cell_id)
            state = replace(state, left=state.left - 1, **{outcome: getattr(state, outcome) + 1})
        except RecordError as error:
            state = replace(state, left=state.left - 1, failed=state.failed + 1, reason=str(error))
        except (StoreError, StorageError) as error:
            return replace(state, reason=str(error))
        except OSError as error:
            return replace(state, reason=f"{run / 'synced'}: cannot be written ({error.strerror})")
        progress(state)
    return state


def _send_twice(target: Target, run: Path, cell_id: str) -> Literal["count", "skipped"]:
    """Upload a record; after a failure of the store, try a second time. Return "count" for an uploaded record,
    "skipped" if the store had the record already. Raises `RecordError` if the store refuses the record, and
    `StoreError` if the store does not answer."""
    try:
        return _send(target, run, cell_id)
    except StoreError:
        if not _answers(target):
            time.sleep(1)
    try:
        return _send(target, run, cell_id)
    except StoreError as error:
        if _answers(target):
            raise RecordError(f"{records.record_path(run, cell_id)}: not taken by {error}") from error
        raise


def _send(target: Target, run: Path, cell_id: str) -> Literal["count", "skipped"]:
    """Upload a record; return "count" for an uploaded record, "skipped" if the store had the record already. A note on
    disk says which MLflow run holds the record. Without a note, a search for the record's tags finds this MLflow run: a
    crash before the note makes no duplicate. An MLflow run left open by a crash is deleted. The MLflow run of an older
    record gets the tag `bench.superseded`. A lock admits a single upload per run folder. Raises `RecordError` and
    `StoreError`."""
    path = records.record_path(run, cell_id)
    with store.locked(run / "synced" / ".lock"):
        record, shown = view.load(path)
        note = store.read_note(run, cell_id, target.uri)
        with mlflow_errors(target.uri):
            if (
                note
                and (note.experiment, note.sha256) == (target.experiment, shown.sha256)
                and (noted := _noted(target, note.run))
            ):
                return "count" if _add_withheld(target, run, record, noted) else "skipped"
            same, others = _versions(target, cell_id, shown.sha256)
            added = same is None or _add_withheld(target, run, record, same)
            run_id = same.info.run_id if same else _create(target, run, record, shown)
            for other in others:
                target.client.set_tag(other, "bench.superseded", run_id)
        note = Note(experiment=target.experiment, sha256=shown.sha256, run=run_id)
        store.write_note(run, cell_id, target.uri, note)
        return "count" if added else "skipped"


def _noted(target: Target, run_id: str) -> Any | None:
    try:
        return target.client.get_run(run_id)
    except Exception as error:
        if getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


def _add_withheld(target: Target, run: Path, record: Record, stored: Any) -> bool:
    """Add a private picture that an earlier upload left out, if now allowed; return whether a picture was added.
    `stored` is the MLflow run."""
    withheld = stored.data.tags.get("bench.picture") == WITHHELD
    if not (target.include_pictures and withheld) or stored.info.lifecycle_stage == "deleted":
        return False
    run_id = stored.info.run_id
    files, absent = pictures.of_record(run, record, include_private=True)
    absent = absent or _put(target.client, stored.info, files)
    note = {} if absent else {"mlflow.note.content": pictures.description(run_id, files)}
    for name, value in {"bench.picture": absent or GRID, **note}.items():
        target.client.set_tag(run_id, name, value)
    return absent is None


def _answers(target: Target) -> bool:
    try:
        target.client.get_experiment(target.experiment_id)
    except Exception:
        return False
    return True


def _versions(target: Target, cell_id: str, sha256: str) -> tuple[Any | None, list[str]]:
    """Return the finished MLflow run of the cell `cell_id` with record hash `sha256` (or None), and the ids of its
    other MLflow runs.

    MLflow runs with the tag `bench.superseded` are not listed."""
    same: Any | None = None
    others: list[str] = []
    condition = f"tags.`bench.cell` = '{cell_id}'"
    for stored in target.client.search_runs([target.experiment_id], condition, max_results=100):
        if stored.data.tags.get("bench.record") == sha256:
            if stored.info.status == "RUNNING":
                target.client.delete_run(stored.info.run_id)
            else:
                same = stored
        elif "bench.superseded" not in stored.data.tags:
            others.append(stored.info.run_id)
    return same, others


def _create(target: Target, run: Path, record: Record, shown: RunView) -> str:
    ended = int(records.record_path(run, record.id).stat().st_mtime * 1000)
    files, absent = pictures.of_record(run, record, include_private=target.include_pictures)
    tags = {**target.tags, "bench.picture": absent or GRID}
    begun = max(0, ended - int(1000 * (shown.seconds or 0)))
    return create(target, replace(shown, tags={**shown.tags, **tags}), begun, Attached(files=files))


def create(target: Target, shown: RunView, begun: int, attached: Attached, *, text: str = "") -> str:
    """Create an MLflow run with the content `shown` in the experiment of `target`, and return its id. Errors from
    MLflow's client are raised unchanged.

    - `begun`: start time in milliseconds since 1970.
    - `attached`: files and pictures to attach.
    - `text`: beginning of the description.

    The status is set last: an open MLflow run is an interrupted upload."""
    from mlflow.entities import Dataset, DatasetInput, Metric, Param, RunTag

    client = target.client
    info = client.create_run(target.experiment_id, start_time=begun, tags=shown.tags, run_name=shown.name).info
    run_id: str = info.run_id
    ended = None if shown.seconds is None else begun + max(1, round(1000 * shown.seconds))
    refused = _put(client, info, attached.files)
    if refused is None:
        _put_pictures(client, run_id, attached, begun)
    notes = [text, "" if refused else pictures.description(run_id, attached.files)]
    late = {"mlflow.note.content": "\n\n".join(filter(None, notes)), "bench.picture": refused or ""}
    tags = [RunTag(name, value) for name, value in late.items() if value]
    params = [Param(key, value) for key, value in shown.params.items()]
    metrics = [Metric(name, value, ended or begun, step) for name, value, step in shown.metrics]
    if shown.datasets:
        data = [Dataset(name, sha256[:_DIGEST], "bench", f"sha256:{sha256}") for name, sha256 in shown.datasets]
        client.log_inputs(run_id, datasets=[DatasetInput(each) for each in data])
    while params or metrics or tags:
        client.log_batch(run_id, params=params[:_PARAMS], metrics=metrics[:_METRICS], tags=tags, synchronous=True)
        params, metrics, tags = params[_PARAMS:], metrics[_METRICS:], []
    if ended is None:
        client.update_run(run_id, status=shown.status)
    else:
        client.set_terminated(run_id, shown.status, end_time=ended)
    return run_id


def _source(run: Path) -> dict[str, str]:
    """Return the tags with the run folder's name, and for MLflow's column Source."""
    made = origin.read(run)
    tags = {
        "bench.run": run.resolve().name,
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": made.command if made else "bench",
        "mlflow.source.git.commit": (made and made.commit) or "",
    }
    return {key: view.clean(text, _SOURCE) for key, text in tags.items() if text}


def _put_pictures(client: Any, run_id: str, attached: Attached, time: int) -> None:
    """Upload pictures of the image grid, of `time` in milliseconds, and the table of victims."""
    from mlflow import Image

    # Only MLflow's pages need these: a version with another interface still gets the run.
    with contextlib.suppress(AttributeError, TypeError):
        for name, step, image in attached.images:
            client.log_image(run_id, image, key=view.suitable_key(name), step=step, timestamp=time, synchronous=True)
    if attached.table:
        columns = {
            name: [cell if isinstance(cell, str) else Image(cell) for cell in cells]
            for name, cells in attached.table.items()
        }
        with contextlib.suppress(AttributeError, TypeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pandas, about mlflow's code
            client.log_table(run_id, columns, VICTIMS)


def search(target: Target, condition: str, *, deleted: bool = False) -> list[Any]:
    """Return the MLflow runs of the target's experiment that match the filter `condition` (MLflow's syntax), newest
    first; `deleted` True includes deleted MLflow runs."""
    from mlflow.entities import ViewType

    kind = ViewType.ALL if deleted else ViewType.ACTIVE_ONLY
    runs: list[Any] = []
    token = None
    while True:
        page = target.client.search_runs([target.experiment_id], condition, kind, 1000, page_token=token)
        runs += page
        token = page.token
        if not token:
            return runs


def _put(client: Any, info: Any, files: Mapping[str, bytes]) -> str | None:
    """Write files to an MLflow run; return the reason if the files cannot be written, else None."""
    try:
        place = urlsplit(info.artifact_uri)
        if files and place.scheme == "file" and not place.netloc:
            # As MLflow's client does, without a second request for this address.
            _write(Path(url2pathname(place.path)), files)
        elif files:
            with tempfile.TemporaryDirectory() as folder:
                _write(Path(folder), files)
                client.log_artifacts(info.run_id, folder)
    except (ImportError, PermissionError) as error:
        # This machine cannot write to the server's artifact folder: the numbers are uploaded nevertheless.
        return view.clean(f"not uploaded: {error}", _REASON)
    return None


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _client(uri: str) -> Any:
    os.environ.update(store.ENVIRONMENT | _QUIET)
    for name, value in _PATIENCE.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecation warnings from mlflow's imports do not concern the user
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _open_sqlite(uri: str) -> Any:
    """Return MLflow's client; a lock keeps two processes from setting up a new database."""
    path = Path(uri.removeprefix("sqlite:///"))
    with store.locked(path.with_name(f".{path.name}.lock")):
        client = _client(uri)
        _hurry(client)
        client.search_experiments(max_results=1)  # sets up the database
        # Lets others read during a write; the setting stays in the file.
        with contextlib.closing(sqlite3.connect(path, timeout=20)) as connection:
            connection.execute("PRAGMA journal_mode=wal")
    return client


def _hurry(client: Any) -> None:
    """Make sqlite flush to disk less often. A power cut may lose the latest MLflow runs, which are then sent again."""

    def on_connect(connection: Any, pooled: object) -> None:
        connection.execute("PRAGMA synchronous=normal")

    with contextlib.suppress(Exception):  # the engine is not public: without it, uploads take twice as long
        engine = client._tracking_client.store.engine
        event.listen(engine, "connect", on_connect)
        engine.dispose()  # close earlier connections


def _experiment(client: Any, uri: str, name: str) -> str:
    """Return the id of the MLflow experiment `name` in the store at `uri`; create a missing experiment, restore a
    deleted experiment."""
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        artifacts = None
        if uri.startswith("sqlite:///"):  # absolute, as MLflow's default follows the working directory
            folder = re.sub(r"[^\w.-]", "_", name).strip(".")[:_FOLDER] or "_"
            artifacts = (Path(uri.removeprefix("sqlite:///")).parent / "mlartifacts" / folder).as_uri()
        try:
            return str(client.create_experiment(name, artifact_location=artifacts))
        except Exception as error:
            if getattr(error, "error_code", "") != "RESOURCE_ALREADY_EXISTS":
                raise
            experiment = client.get_experiment_by_name(name)
    if experiment.lifecycle_stage == "deleted":
        client.restore_experiment(experiment.experiment_id)
    return str(experiment.experiment_id)


@contextlib.contextmanager
def mlflow_errors(uri: str) -> Iterator[None]:
    """Turn MLflow's errors inside a `with` statement into a `StoreError` with a single line of text, without the
    password in the address `uri`."""
    try:
        yield
    except Exception as error:
        text = str(error).replace(uri, store.shown(uri)).strip() or "no more is known"
        raise StoreError(f"{store.shown(uri)}: {type(error).__name__}: {view.clean(text, 300)}") from error
