"""Versions: Python and every dependency against the ranges that the installed metadata declares."""

import platform
import re
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from bench.health.finding import Finding
from bench.registry.entries import DISTRIBUTION

# What a run can do without: tracking is filled in later, and packs replace the loaders' downloads.
_SPARED = ("mlflow", "torchvision", "lpips", "pooch")


def python() -> Finding:
    """The interpreter against `requires-python`."""
    wanted = str(metadata.metadata(DISTRIBUTION)["Requires-Python"] or "")
    found = platform.python_version()
    if SpecifierSet(wanted).contains(found, prereleases=True):
        return Finding("python", "ok", found)
    return Finding("python", "fail", f"{found}, wanted {wanted}", f"make an environment with Python {wanted}")


def dependencies() -> list[Finding]:
    """One finding per declared dependency, extras left out."""
    wanted = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or ()]
    return [dependency(item) for item in wanted if item.marker is None or item.marker.evaluate({"extra": ""})]


def dependency(wanted: Requirement) -> Finding:
    """What is installed of one requirement; a wrong version fails, a missing one fails unless spared."""
    name = re.sub(r"[-_.]+", "-", wanted.name).lower()
    remedy = f"pip install '{wanted.name}{wanted.specifier}'"
    try:
        found = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return Finding(name, "warn" if name in _SPARED else "fail", "not installed", remedy)
    if wanted.specifier.contains(found, prereleases=True):
        return Finding(name, "ok", found)
    return Finding(name, "fail", f"{found}, wanted {wanted.specifier}", remedy)
