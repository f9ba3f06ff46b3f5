"""Promise: what is run where there is a GPU (`tests/benchmarks/gpu.py`) runs, and finds what is wrong there.

Rehearsed on the CPU (`tests/rehearsal.py`).
"""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rehearsal import Rehearsal

from bench.attacks.cpl import Cpl
from bench.trip import Reconstruction

HERE = Path(__file__).parent / "benchmarks"
sys.path.append(str(HERE))
import gpu  # noqa: E402
import gpu_checks  # noqa: E402

FEW = {"cpl, plain", "map, adaptive", "analytic, plain", "prune, type-1", "none", "gaussian", "attack, prune"}
# What a machine with a GPU need not have.
ABSENT = (
    "mlflow",
    "lpips",
    "dp_accounting",
    "dask",
    "distributed",
    "altair",
    "itables",
    "pooch",
    "vl_convert",
    "opacus",
    "sqlalchemy",
    "jinja2",
    "cloudpickle",
    "click",
)


@pytest.mark.slow
def test_checks_of_some_entries() -> None:
    with Rehearsal():
        found = {each.name: each for each in gpu_checks.checks("cuda", only=FEW.__contains__)}
    assert {name: each.cases for name, each in found.items()} == {
        "attacks, float64": 3,
        "defenses × points, described": 1,
        "trainings": 2,
        "the same twice": 2,
        "memory of a row": 0,
        "out of memory": 0,
    }
    assert not any(each.failed for each in found.values()), [each.failed for each in found.values()]


@pytest.mark.slow
def test_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that computes otherwise, and one that does not do the same twice."""
    original, calls = Cpl.reconstruct, 0

    def wrong(self: Cpl, reading: Any, *given: Any) -> Reconstruction:
        nonlocal calls
        calls += 1
        result = original(self, reading, *given)
        on_gpu = next(iter(reading.values.values())).is_cuda
        return replace(result, inputs=result.inputs + 1e-5 * calls * on_gpu)

    monkeypatch.setattr(Cpl, "reconstruct", wrong)
    words = {"cpl, plain", "attack, gaussian(at=client, variance=0.001)"}
    with Rehearsal():
        checks = list(gpu_checks.checks("cuda", only=words.__contains__))
    failed = {each.name for each in checks if each.failed}
    assert failed == {"attacks, float64", "the same twice"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "cases"),
    [("attacks, float64", 25), ("defenses × points, described", 90), ("trainings", 25), ("the same twice", 4)],
)
def test_checks_of_every_entry(check: str, cases: int) -> None:
    with Rehearsal():
        (found,) = gpu_checks.checks("cuda", names=(check,))
    assert not found.failed, found.failed
    assert found.cases >= cases


@pytest.mark.slow
def test_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """In little: the shape of each row, and the ratio that its columns give."""
    monkeypatch.setitem(gpu.ONE_CORE, "dlg-lenet", 2)
    with Rehearsal():
        rows = list(gpu.reconstructions("cuda", rows=(3,), cases=(("digits", "dlg-lenet", "cpl", 20),)))
        (whole,) = gpu.preset("cuda", 1.0, "quickstart")
    (row,) = rows
    assert row["ratio"] == pytest.approx(row["a second"] / row["one core"]) and row["rows"] == 3
    assert 0 < whole["answered"] <= whole["cells"]


@pytest.mark.slow
def test_the_training_figure() -> None:
    with Rehearsal():
        (row,) = gpu.training("cuda", rounds=1, defenses=("none",))
    assert row["ratio"] == pytest.approx(row["one core"] / row["device"])


def test_tables_are_written_between_the_marks(tmp_path: Path) -> None:
    check = gpu_checks.Check(name="trainings", cases=3, worst=2e-3, bound=1e-3, failed=("x (0.002)",), seconds=1.0)
    report = {
        "device": "a GPU",
        "torch": "2",
        "bench": "1",
        "core": "a core",
        "checks": [asdict(check)],
        "figures": {"reconstructions": [{"rows": 16, "ratio": 50.123, "none": None}], "training": "mnist: not there"},
    }
    text = gpu.tables(json.loads(json.dumps(report)))
    assert "| trainings | 3 | 0.002 | 0.001 | x (0.002) |" in text
    assert "| 16 | 50.1 | – |" in text and "mnist: not there" in text
    page = f"before\n{gpu.MARKS[0]}\nold\n{gpu.MARKS[1]}\nafter\n"
    once = gpu.written(page, text)
    assert once == gpu.written(once, text) and "old" not in once
    assert once.startswith("before\n") and once.endswith("after\n")
    with pytest.raises(SystemExit, match="one <!-- gpu tables -->"):
        gpu.written("nothing", text)


@pytest.mark.slow
def test_it_needs_little(tmp_path: Path) -> None:
    """Torch and few packages; without a GPU it says so in a line."""
    block = f"import sys; sys.modules.update(dict.fromkeys({ABSENT!r})); sys.argv = ['gpu.py'];"
    run = f"import runpy; runpy.run_path({str(HERE / 'gpu.py')!r}, run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", block + run], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    if torch.cuda.is_available():
        assert done.returncode in (0, 1)
    else:
        assert done.returncode == 1 and done.stderr.startswith("torch sees no GPU here"), done.stderr
