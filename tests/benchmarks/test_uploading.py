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
from tests.records import MACHINE, PROVENANCE, READING, cell_ids, summary

from bench.cell import AttackCell, DataRef, Entry, Federated
from bench.record import store as records
from bench.record.metrics import METRICS
from bench.record.schema import (
    AttackConditions,
    AttackResult,
    Cost,
    Distortion,
    PriorScore,
    Record,
    SelfCheck,
    Share,
    Trajectory,
)
from bench.tracking import upload

CELLS, ROUNDS = 50, 5
MARKS = (1, 2, 4, 8, 16, 32, 64, 128, 200)
PRIOR = PriorScore(asr=0.0, psnr_db_median=11.7, rmse_median=0.26, beaten=1.0)
# As many figures, tags and parameters as a record of the preset `quickstart` has.
SUMMARY = summary(
    asr_strict=Share(value=0.1, low=0.0, high=0.2),
    identification_chance=0.1,
    label_accuracy=0.9,
    prior_beaten=1.0,
    medians={metric.name: 3.0 for metric in METRICS},
    priors=dict.fromkeys("abc", PRIOR),
)
CONDITIONS = AttackConditions(
    weights_norm=26.0, round=0, gradient_norm_median=2.3, mode="eval", client_examples=11, examples_per_reading=3
)


def write_records(run: Path, *, grid: bool, trajectory: bool) -> None:
    """`CELLS` attacks on eight readings of two pictures, 28 × 28, each with pictures of its own."""
    for seed in range(CELLS):
        cell = AttackCell(
            dataset=DataRef(name="mnist", sha256="0" * 64),
            model=Entry(name="dlg-lenet"),
            seed=seed,
            federated=Federated(batch=2),
            defense=Entry(name="prune", params={"share": 0.9, "at": "client"}),
            attack=Entry(name="cpl", params={f"option{number}": number for number in range(12)}),
            point="type-1",
        )
        random = np.random.default_rng(seed)
        arrays = {name: random.random((8, 2, 1, 28, 28)) for name in ("truth", "reconstruction")}
        if trajectory:
            arrays["trajectory"] = random.random((len(MARKS), 8, 2, 1, 28, 28))
        result = AttackResult(
            readings=(READING,) * 8,
            summary=SUMMARY,
            notes=("x" * 80,) * 5,
            conditions=CONDITIONS,
            distortion=Distortion(snr_db_median=1.0, snr_db_least=0.5, cosine_median=0.2),
            self_check=SelfCheck(distance_at_truth=1.0, distance_at_public=2.0),
            trajectory=Trajectory(losses=tuple(1 / mark for mark in MARKS), evaluations=MARKS),
            arrays=records.write_arrays(run, arrays) if grid else None,
        )
        records.write(
            run,
            Record(
                id=cell.id,
                status="done",
                cell=cell,
                provenance=PROVENANCE,
                result=result,
                environment=MACHINE,
                cost=Cost(wall_seconds=4.2, cpu_seconds=4.0, peak_mb=800.0, attack_seconds=3.0),
            ),
        )


@pytest.mark.slow
@pytest.mark.benchmark(group=f"{CELLS} cells to sqlite")
@pytest.mark.parametrize(
    ("grid", "trajectory"), [(False, False), (True, False), (True, True)], ids=["numbers", "grid", "grid-trajectory"]
)
def test_cells_to_sqlite(benchmark: Callable[..., object], tmp_path: Path, *, grid: bool, trajectory: bool) -> None:
    write_records(tmp_path / "source", grid=grid, trajectory=trajectory)
    names = iter(range(100))

    def fresh() -> tuple[tuple[upload.Target, Path], dict[str, Any]]:
        """The same records as a run of its own, in a store that has its schema."""
        run = tmp_path / f"r{next(names)}"
        run.mkdir()
        for part in ("records", "arrays"):
            if (tmp_path / "source" / part).exists():
                (run / part).symlink_to(tmp_path / "source" / part)
        return (upload.open_target(run), run), {}

    seconds = []

    def sent(target: upload.Target, run: Path) -> None:
        before = time.process_time()
        assert upload.send(target, run, cell_ids(run)).count == CELLS
        seconds.append(time.process_time() - before)

    benchmark.pedantic(sent, setup=fresh, rounds=ROUNDS, warmup_rounds=1)  # type: ignore[attr-defined]
    # The processor's time as well: what an idle machine would take, with a disk that keeps up.
    benchmark.extra_info["cells_per_cpu_second"] = CELLS / median(seconds)  # type: ignore[attr-defined]
    if benchmark.stats:  # type: ignore[attr-defined]
        took = benchmark.stats.stats.median  # type: ignore[attr-defined]
        benchmark.extra_info["cells_per_second"] = CELLS / took  # type: ignore[attr-defined]
