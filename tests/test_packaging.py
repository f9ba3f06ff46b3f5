"""What is built and what it needs: no deleted module in a wheel, no import that is not declared."""

import ast
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from tests.trees import parsed

from bench.health import versions
from bench.scoring import st_lpips_metric

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
FOLDERS = PROJECT["tool"]["setuptools"]["package-dir"]
# Calls the backend as pip and `python -m build` do, from the folder of the sources.
BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, f"build_{sys.argv[1]}")(sys.argv[2]))
"""


def build(kind: str, sources: Path, place: Path) -> set[str]:
    """Build `sources`; the names of the files in what was built."""
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", BUILD, kind, str(place)],
        cwd=sources,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    file = place / done.stdout.splitlines()[-1]
    if kind == "wheel":
        with zipfile.ZipFile(file) as wheel:
            return set(wheel.namelist())
    with tarfile.open(file) as sdist:
        return {name.partition("/")[2] for name in sdist.getnames()}


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    for folder in set(FOLDERS.values()):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs" / "_make", copy / "docs" / "_make")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.mark.slow
def test_a_deleted_module_does_not_come_back(sources: Path, tmp_path: Path) -> None:
    modules = {
        sources / "bench" / "gone.py": "bench/gone.py",
        sources / "defenses" / "gone.py": "bench/defenses/gone.py",
    }
    for path in modules:
        path.touch()
    first = build("wheel", sources, tmp_path)
    assert first >= {*modules.values(), "bench/py.typed", "bench/presets/quickstart.toml"}
    shipped = [path for kind in ("*.xz", "*.webp") for path in (ROOT / "bench" / "reference").rglob(kind)]
    assert first >= {path.relative_to(ROOT).as_posix() for path in shipped}
    assert not [name for name in first if not name.startswith(("bench/", "gradient_leakage_bench-"))]
    assert (sources / "build").is_dir(), "the second build finds what the first left"
    for path in modules:
        path.unlink()
    assert first - build("wheel", sources, tmp_path) == {*modules.values()}
    assert not [name for name in build("sdist", sources, tmp_path) if name.endswith("gone.py")]


def imported() -> set[str]:
    """The top-level modules that the package imports anywhere."""
    modules = set()
    for folder in set(FOLDERS.values()):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(parsed(path)):
                if isinstance(node, ast.Import):
                    modules |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    modules.add(node.module.partition(".")[0])
    return modules - set(sys.stdlib_module_names) - {"bench"}


def test_the_package_of_st_lpips_is_the_declared_one() -> None:
    (line,) = PROJECT["project"]["optional-dependencies"]["st-lpips"]
    assert line == str(versions.ST_LPIPS)
    metric, reason = st_lpips_metric.load(Path("absent"))
    assert metric is None and reason == f"no package {versions.ST_LPIPS.name}; pip install '{line}'"


def test_every_import_is_declared() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    users = (extras[name] for name in extras if name != "dev")
    lines = [*PROJECT["project"]["dependencies"], *(line for each in users for line in each)]
    declared = {re.split(r"[^\w.-]", line)[0].lower().replace("_", "-") for line in lines}
    owners = metadata.packages_distributions()
    for module in imported() & {*owners}:
        names = {name.lower().replace("_", "-") for name in owners[module]}
        assert names & declared, f"{module} is imported; declare one of {sorted(names)} in pyproject.toml"
