"""The run folder of a command: a named folder, or the newest folder below `runs/`."""

from pathlib import Path

from bench.errors import BenchError

BELOW = Path("runs")


def newest_run(below: Path = BELOW) -> Path:
    """Return the run folder with the latest record; raises `BenchError` if no folder has records."""
    return runs_by_age(below)[0]


def runs_by_age(below: Path = BELOW) -> list[Path]:
    """Return the run folders below `below`, latest record first; raises `BenchError` if no folder has records."""
    runs = [path.parent for path in below.glob("*/records") if path.is_dir()]
    if not runs:
        raise BenchError(f"{below}/: no run with records there; give the folder of a run")
    return sorted(runs, key=lambda run: ((run / "records").stat().st_mtime, run.name), reverse=True)


def checked_run(run: Path | None) -> Path:
    """Return the run folder `run` after a check that it has records; None gives the newest run folder. Raises
    `BenchError` for a folder without records."""
    if run is None:
        return newest_run()
    if not (run / "records").is_dir():
        raise BenchError(f"{run}: no folder records/ there; give the folder of a run")
    return run
