"""Check storage: data folders, free disk space, MLflow's store and its telemetry."""

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from bench.folders import folders
from bench.health.finding import Finding

_LEAST_FREE = 2 * 1024**3  # bytes; a standard suite's records and arrays need less


def data(data_dir: Path | None) -> list[Finding]:
    """Return a finding for each existing data folder, in search order (`data_dir` first); a warning if no data folder
    exists."""
    places = folders(data_dir)
    there = [Finding("data", "ok", str(place)) for place in places if place.is_dir()]
    detail = f"no data folder (looked in {', '.join(map(str, places)) or 'nowhere'})"
    return there or [Finding("data", "warn", detail, "`bench data` says how to get data")]


def disk(folder: Path) -> Finding:
    """Check the free space on the disk of `folder`, to which runs are written."""
    free = shutil.disk_usage(folder).free
    detail = f"{free / 1024**3:.1f} GiB free in {folder}"
    if free < _LEAST_FREE:
        return Finding("disk", "warn", detail, "free some, or give --run a folder on another disk")
    return Finding("disk", "ok", detail)


def store(folder: Path) -> Finding:
    """Check that SQLite, which holds MLflow's store, can write and lock files in `folder`, the folder of the runs."""
    try:
        with (
            tempfile.TemporaryDirectory(dir=folder, prefix=".bench-doctor-") as place,
            closing(sqlite3.connect(Path(place) / "probe.db")) as connection,
        ):
            connection.execute("CREATE TABLE probe (x)")
            connection.commit()
    except (OSError, sqlite3.Error) as error:
        return Finding("mlflow store", "fail", f"{folder}: {error}", "choose a local folder that you may write to")
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if uri.startswith("file:") or (uri and ":" not in uri):
        remedy = f"unset MLFLOW_TRACKING_URI or give it a sqlite:/// or http:// address, not {uri}"
        return Finding("mlflow store", "warn", "MLflow no longer writes its file store", remedy)
    return Finding("mlflow store", "ok", uri or f"{folder} is writable")


def telemetry() -> Finding:
    """Check whether MLflow's telemetry is off. The bench turns it off for its own processes; otherwise only the
    environment variable MLFLOW_DISABLE_TELEMETRY=true does."""
    setting = os.environ.get("MLFLOW_DISABLE_TELEMETRY")
    if setting is not None and setting.lower() != "true":
        detail = f"MLFLOW_DISABLE_TELEMETRY={setting} leaves it on"
        return Finding("mlflow telemetry", "warn", detail, "set MLFLOW_DISABLE_TELEMETRY=true")
    detail = "off" if setting else "bench turns it off for its own processes"
    return Finding("mlflow telemetry", "ok", detail)
