"""Records for tests of tracking: small, typed, with pictures of eight by eight pixels."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.cell import AttackCell, DataRef, Entry, Federated
from bench.record import store
from bench.record.schema import (
    AttackResult,
    Code,
    Cost,
    Environment,
    ExampleScore,
    Provenance,
    ReadingScore,
    Record,
    Share,
    Summary,
)

FEDERATED = Federated(algorithm="fedavg", steps=4, partition="two-shard")
CELL = AttackCell(
    dataset=DataRef(name="digits", sha256="0" * 64), model=Entry(name="dlg-lenet"), federated=FEDERATED,
    defense=Entry(name="prune", params={"share": 0.7}), attack=Entry(name="cpl", params={"outer": 300}),
    point="type-1", readings=2,
)  # fmt: skip
PROVENANCE = Provenance(bench=Code(origin="gradient-leakage-bench", sha256="5" * 64, protocol=1))
ENVIRONMENT = Environment(
    bench="1", torch="2", numpy="2", python="3", platform="Linux", device="cpu", device_name="x", threads=1, cores=1,
)  # fmt: skip
SHADES = np.linspace(0, 1, 2 * 64, dtype=np.float32).reshape(2, 1, 1, 8, 8)
READING = ReadingScore(status="ok", examples=(ExampleScore(status="ok", success=True, psnr_db=21.0),))


def summary(asr: float = 0.5, **changes: Any) -> Summary:
    none = Share(value=0.0, low=0.0, high=1.0)
    values: dict[str, Any] = {
        "readings": 2, "examples": 2, "asr": Share(value=asr, low=0.1, high=0.9), "asr_strict": None,
        "lower_bound": False, "readings_leaked": none, "identification": none, "identification_chance": None,
        "gallery": 0, "medians": {"psnr_db": 21.0}, "label_accuracy": None, "evaluations_median": 1.0,
        "outer_median": 1.0, "diverged_share": 0.0, "nan_share": 0.0, "missing_share": 0.0, "priors": {},
        "prior_beaten": None, "beats_prior": None,
    }  # fmt: skip
    return Summary(**{**values, **changes})


def record(cell_id: str = "a1", *, asr: float = 0.5, result: Any = None, **changes: Any) -> Record:
    """A finished attack; `result` is another result, or changes fields of its own."""
    if result is None or isinstance(result, dict):
        result = replace(AttackResult(readings=(READING, READING), summary=summary(asr)), **(result or {}))
    values: dict[str, Any] = {
        "id": cell_id, "status": "done", "cell": CELL, "provenance": PROVENANCE, "environment": ENVIRONMENT,
        "cost": Cost(wall_seconds=2.5), "result": None if "reason" in changes else result,
    }  # fmt: skip
    return Record(**{**values, **changes})


def write(run: Path, cell_id: str, *, result: Any = None, arrays: Any = None, **changes: Any) -> Path:
    """A record of two readings in the run, with its arrays, and others where they are named."""
    arrays = {"truth": SHADES, "reconstruction": 1 - SHADES, **(arrays or {})}
    result = {"arrays": store.write_arrays(run, arrays), **(result or {})}
    return store.write(run, record(cell_id, result=result, **changes))
