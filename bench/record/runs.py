"""Which run a command means: the folder that was named, or the newest one below `runs/`."""

from pathlib import Path

from bench.errors import BenchError

BELOW = Path("runs")


def newest_run(below: Path = BELOW) -> Path:
    """The folder below `below` whose records changed last; raises `BenchError` where none has records."""
    return runs_by_age(below)[0]


def runs_by_age(below: Path = BELOW) -> list[Path]:
    """The folders below `below` that have records, the one whose records changed last first; raises `BenchError` where
    there is none."""
    runs = [path.parent for path in below.glob("*/records") if path.is_dir()]
    if not runs:
        raise BenchError(f"{below}/: no run with records there; give the folder of a run")
    return sorted(runs, key=lambda run: ((run / "records").stat().st_mtime, run.name), reverse=True)


def checked_run(run: Path | None) -> Path:
    """`run`, or the newest one if None; raises `BenchError` for a folder without records."""
    if run is None:
        return newest_run()
    if not (run / "records").is_dir():
        raise BenchError(f"{run}: no folder records/ there; give the folder of a run")
    return run
