"""Cells a second from records to MLflow on sqlite, pictures included, in the process that writes them.

`tox -e benchmark` prints seconds for `CELLS` cells; `cells_per_second` of their median is in the extra
information (`--benchmark-json`).  A disk shared with others shows in the spread.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from bench.cell import AttackCell, DataRef, Entry, Federated
from bench.record import store as records
from bench.record.store import Record
from bench.tracking import store, upload

CELLS, ROUNDS = 50, 5
MARKS = [1, 2, 4, 8, 16, 32, 64, 128, 200]
# Of a record of the preset `quickstart`: as many figures, tags and parameters as one has.
FIGURES = [
    f"{name}{end}"
    for name in ("asr", "asr_strict", "identification", "leaked")
    for end in ("", "_high", "_low")
]
FIGURES += [
    f"{name}_median"
    for name in ("psnr_db", "ssim", "rmse", "evaluations", "outer", "over_floor_db", "snr_db")
]
FIGURES += [f"{name}_share" for name in ("diverged", "missing", "nan")] + [
    "gallery",
    "label_accuracy",
    "pictures",
]
FLOORS = {name: {"asr": 0.0, "beaten": 1.0, "psnr_db_median": 11.7, "rmse_median": 0.26} for name in "abc"}
ENVIRONMENT = {
    name: f"some text about the {name}" for name in ("bench", "device", "numpy", "python", "torch")
}


def write_records(run: Path, *, strip: bool, trail: bool) -> None:
    """`CELLS` attacks on eight readings of two pictures, 28 × 28, each with pictures of its own."""
    for seed in range(CELLS):
        cell = AttackCell(
            dataset=DataRef(name="mnist", sha256="0" * 64), model=Entry(name="dlg-lenet"), seed=seed,
            federated=Federated(batch=2), defense=Entry(name="prune", params={"share": 0.9, "at": "client"}),
            attack=Entry(name="cpl", params={f"option{number}": number for number in range(12)}), point="type-1",
        )  # fmt: skip
        random = np.random.default_rng(seed)
        arrays = {name: random.random((8, 2, 1, 28, 28)) for name in ("truth", "reconstruction")}
        if trail:
            arrays["trail"] = random.random((len(MARKS), 8, 2, 1, 28, 28))
        summary: dict[str, Any] = {name: number / 7 for number, name in enumerate(FIGURES)}
        summary |= {
            "floors": FLOORS,
            "loss_history": [[mark, 1 / mark] for mark in MARKS],
            "notes": ["x" * 80] * 5,
        }
        summary |= {"trail_evaluations": MARKS} if trail else {}
        records.write(
            run,
            Record(
                id=cell.id, status="done", cell=cell.model_dump(mode="json"), source={"sha256": "5" * 64},
                summary=summary, victims=[], environment=ENVIRONMENT, cost={"wall_seconds": 4.2, "peak_mb": 800.0},
                arrays=records.write_arrays(run, arrays) if strip else None,
            ),
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.benchmark(group=f"{CELLS} cells to sqlite")
@pytest.mark.parametrize(
    ("strip", "trail"), [(False, False), (True, False), (True, True)], ids=["numbers", "strip", "strip-trail"]
)
def test_cells_to_sqlite(
    benchmark: Callable[..., object], tmp_path: Path, *, strip: bool, trail: bool
) -> None:
    write_records(tmp_path / "source", strip=strip, trail=trail)
    names = iter(range(100))

    def fresh() -> tuple[tuple[upload.Target, Path], dict[str, Any]]:
        """The same records as a run of its own, in a store that has its schema."""
        run = tmp_path / f"r{next(names)}"
        run.mkdir()
        for part in ("records", "arrays"):
            if (tmp_path / "source" / part).exists():
                (run / part).symlink_to(tmp_path / "source" / part)
        return (upload.open_target(run, store.default_uri(run)), run), {}

    own = []

    def sent(target: upload.Target, run: Path) -> None:
        before = time.process_time()
        assert upload.send(target, run, store.cells(run)).count == CELLS
        own.append(time.process_time() - before)

    benchmark.pedantic(sent, setup=fresh, rounds=ROUNDS, warmup_rounds=1)  # type: ignore[attr-defined]
    # The processor's time as well: what an idle machine would take, with a disk that keeps up.
    benchmark.extra_info["cells_per_cpu_second"] = CELLS / median(own)  # type: ignore[attr-defined]
    if benchmark.stats:  # type: ignore[attr-defined]
        took = benchmark.stats.stats.median  # type: ignore[attr-defined]
        benchmark.extra_info["cells_per_second"] = CELLS / took  # type: ignore[attr-defined]
