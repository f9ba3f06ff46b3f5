"""`bench doctor`: each fault is seen and comes with a remedy, and never stops the other checks."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from tests import runs

from bench.health import machine, names, storage, versions
from bench.registry import entries as registry
from bench.registry import static as literals

SOUND: dict[str, Any] = {"torch": "2.12.0", "torchvision": "0.27.0", "cuda": None, "gpus": [], "threads": 1}


def _fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> None:
    """Modules that an interpreter started from here finds before the installed ones."""
    for name, text in modules.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


TORCH = """
__version__ = "9.0"
class version: cuda = "13.0"
class cuda:
    device_count = staticmethod(lambda: 1)
    get_device_name = staticmethod(lambda index: "A Device")
get_num_threads = lambda: 4096
"""


def test_a_broken_torchvision_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "raise RuntimeError('operator torchvision::nms does not exist')"
    _fake(tmp_path, monkeypatch, torch=TORCH, torchvision=broken)
    probed = machine.probe(timeout=30)
    pair, cores = machine.pair(probed), machine.cores(probed)
    assert pair.state == "fail"
    assert "torch 9.0 works" in pair.detail and "operator torchvision::nms does not exist" in pair.detail
    assert "install both from one index" in pair.remedy
    assert machine.gpu(probed).detail == "A Device"
    assert cores.state == "warn" and "OMP_NUM_THREADS=" in cores.remedy


@pytest.mark.parametrize(
    ("torch", "message"),
    [
        ("raise ImportError('libcudart.so.13: cannot open')", "ImportError: libcudart.so.13: cannot open"),
        ("import os; os._exit(7)", "ended with code 7"),
        ("import time; time.sleep(60)", "took more than 0.5 s"),
    ],
)
def test_a_torch_that_does_not_come_up_fails_and_the_probe_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: str, message: str
) -> None:
    _fake(tmp_path, monkeypatch, torch=torch)
    finding = machine.pair(machine.probe(timeout=0.5 if "sleep" in torch else 30))
    assert finding.state == "fail" and message in finding.detail and finding.remedy


def test_no_torchvision_is_a_warning_and_a_sound_pair_is_ok() -> None:
    without = {key: value for key, value in SOUND.items() if key != "torchvision"}
    assert machine.pair(without).state == "warn"
    assert machine.pair(SOUND).state == "ok"
    assert machine.gpu(SOUND).detail == "none: torch is built for the CPU alone"


@pytest.mark.parametrize(
    ("wanted", "state", "remedy"),
    [
        ("click>=8", "ok", ""),
        ("click>=900,<901", "fail", "pip install 'click<901,>=900'"),
        ("no-such-distribution-here>=1", "fail", "pip install 'no-such-distribution-here>=1'"),
    ],
)
def test_versions_are_held_against_their_ranges(wanted: str, state: str, remedy: str) -> None:
    finding = versions.dependency(Requirement(wanted))
    assert (finding.state, finding.remedy) == (state, remedy)


def test_what_a_bare_machine_lacks_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_SPARED", ("no-such-distribution-here",))
    assert versions.dependency(Requirement("no_such.distribution-here")).state == "warn"


def test_every_declared_dependency_is_looked_at_and_no_extra() -> None:
    looked = {finding.name for finding in versions.dependencies()}
    assert {"torch", "mlflow", "pydantic"} <= looked
    assert "tox" not in looked


def test_the_store_needs_a_folder_that_sqlite_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert storage.store(tmp_path).state == "ok"
    assert list(tmp_path.iterdir()) == []  # nothing is left behind
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:///somewhere")
    assert storage.store(tmp_path).state == "warn"

    def locked(*arguments: object) -> None:
        raise sqlite3.OperationalError("locking protocol")

    monkeypatch.setattr(sqlite3, "connect", locked)
    finding = storage.store(tmp_path)
    assert finding.state == "fail" and "locking protocol" in finding.detail


def test_only_the_word_true_turns_telemetry_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
    assert storage.telemetry().state == "ok"
    for value, state in {"true": "ok", "1": "warn", "false": "warn"}.items():
        monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", value)
        assert storage.telemetry().state == state


def test_a_full_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert storage.disk(tmp_path).state in ("ok", "warn")
    monkeypatch.setattr(storage, "_LEAST_FREE", 2**70)
    assert storage.disk(tmp_path).state == "warn"


def _distribution(tmp_path: Path, name: str, **files: str) -> None:
    info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    for file, text in files.items():
        (info / file.replace("__", ".")).write_text(text)


def test_another_distribution_with_a_module_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names.packages().state == "ok"
    _distribution(tmp_path, "frappe-bench", top_level__txt="bench\n")
    monkeypatch.syspath_prepend(tmp_path)
    finding = names.packages()
    assert finding.state == "fail" and "frappe-bench" in finding.detail
    assert "pip uninstall frappe-bench" in finding.remedy


def test_a_checkout_on_the_path_that_shadows_datasets_is_seen(tmp_path: Path) -> None:
    def state(path: Path) -> str:
        """With this folder on the path; in a process of its own, as pytest may have the checkout on its path."""
        return subprocess.run(
            [sys.executable, "-P", "-c", "from bench.health import names; print(names.shadows().state)"],
            env={**os.environ, "PYTHONPATH": str(path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.strip()

    checkout = Path(__file__).parent.parent
    ours = literals.file_of("bench.datasets")
    assert ours is not None
    # on a wheel install the checkout's folder is another file: then nothing of ours is shadowed
    assert state(checkout) == ("warn" if ours.parent == checkout / "datasets" else "ok")
    assert state(tmp_path) == "ok"


def test_another_command_of_the_same_name_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bench").write_text("#!/bin/sh\n")
    (tmp_path / "bench").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert names.command().state == "warn"
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert names.command().state == "ok"


def test_broken_and_doubled_entries_fail_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _distribution(tmp_path, "acme-x", entry_points__txt="[bench.models]\nmlp = nowhere:X\nlost = nowhere:X\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry._installed.cache_clear()
    try:
        findings = {finding.name: finding for finding in names.entries(load=True)}
    finally:
        monkeypatch.undo()
        registry._installed.cache_clear()
    doubled, broken = findings["model mlp"], findings["model lost"]
    assert "taken twice" in doubled.detail and "acme-x 1.0" in broken.detail
    assert (doubled.state, broken.state) == ("fail", "fail")


@pytest.mark.parametrize("vision", ["__version__ = '9'", "raise RuntimeError('operator torchvision::nms')"])
def test_the_exit_code_says_whether_anything_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vision: str
) -> None:
    _fake(tmp_path, monkeypatch, torch=TORCH, torchvision=vision)
    (tmp_path / "torchvision" / "ops.py").write_text("")
    (tmp_path / "empty").mkdir()
    broken = "raise" in vision
    findings = json.loads(runs.ran("doctor", "--json", "--run", tmp_path / "empty", code=int(broken)))
    failed = [item["name"] for item in findings if item["state"] == "fail"]
    assert failed == (["torch + torchvision"] if broken else [])
    assert all(item["remedy"] for item in findings if item["state"] != "ok")
