"""Check Python and every dependency against the version ranges in the bench's installed package metadata."""

import platform
import re
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from bench.health.finding import Finding
from bench.registry.entries import DISTRIBUTION

# Runs work without these: tracking is filled in later, and packs replace the loaders' downloads.
_SPARED = ("mlflow", "torchvision", "lpips", "pooch")


def python() -> Finding:
    """Check the interpreter's version against `requires-python`."""
    required = str(metadata.metadata(DISTRIBUTION)["Requires-Python"] or "")
    version = platform.python_version()
    if SpecifierSet(required).contains(version, prereleases=True):
        return Finding("python", "ok", version)
    remedy = f"make an environment with Python {required}"
    return Finding("python", "fail", f"{version}, wanted {required}", remedy)


def dependencies() -> list[Finding]:
    """Return a finding for each declared dependency, except extras."""
    items = map(Requirement, metadata.requires(DISTRIBUTION) or ())
    return [dependency(item) for item in items if item.marker is None or item.marker.evaluate({"extra": ""})]


def dependency(requirement: Requirement) -> Finding:
    """Check the installed version of a dependency: a wrong version fails; a missing package fails, or warns if the
    bench runs without this package."""
    name = re.sub(r"[-_.]+", "-", requirement.name).lower()
    remedy = f"pip install '{requirement.name}{requirement.specifier}'"
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return Finding(name, "warn" if name in _SPARED else "fail", "not installed", remedy)
    if requirement.specifier.contains(version, prereleases=True):
        return Finding(name, "ok", version)
    return Finding(name, "fail", f"{version}, wanted {requirement.specifier}", remedy)
