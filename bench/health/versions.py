"""Check Python and every dependency against the version ranges in the bench's installed package metadata."""

import platform
import re
from dataclasses import replace
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from bench.health.finding import Finding
from bench.registry.entries import DISTRIBUTION

_ABSENT = "not installed"
# Runs work without these: tracking is filled in later, and packs replace the loaders' downloads.
_SPARED = ("mlflow", "torchvision", "lpips", "pooch")
ST_LPIPS = Requirement("stlpips_pytorch==0.0.2")  # the extra `st-lpips`


def python() -> Finding:
    """Check the interpreter's version against `requires-python`."""
    required = str(metadata.metadata(DISTRIBUTION)["Requires-Python"] or "")
    version = platform.python_version()
    if SpecifierSet(required).contains(version, prereleases=True):
        return Finding("python", "ok", version)
    remedy = f"make an environment with Python {required}"
    return Finding("python", "fail", f"{version}, wanted {required}", remedy)


def dependencies() -> list[Finding]:
    """Check the installed version of each dependency that the bench declares, except extras; return a finding for
    each."""
    items = map(Requirement, metadata.requires(DISTRIBUTION) or ())
    return [dependency(item) for item in items if item.marker is None or item.marker.evaluate({"extra": ""})]


def st_lpips() -> Finding:
    """Check the package of the optional metric ST-LPIPS: its absence is no fault, another version is a warning."""
    finding = dependency(ST_LPIPS)
    if finding.detail == _ABSENT:
        return Finding(finding.name, "ok", f"{_ABSENT}: no ST-LPIPS of images; {finding.remedy}")
    return finding if finding.state == "ok" else replace(finding, state="warn")


def dependency(requirement: Requirement) -> Finding:
    """Check the installed version of a dependency: a wrong version fails; a missing package fails, or warns if the
    bench runs without this package."""
    name = re.sub(r"[-_.]+", "-", requirement.name).lower()
    remedy = f"pip install '{requirement.name}{requirement.specifier}'"
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return Finding(name, "warn" if name in _SPARED else "fail", _ABSENT, remedy)
    if requirement.specifier.contains(version, prereleases=True):
        return Finding(name, "ok", version)
    return Finding(name, "fail", f"{version}, wanted {requirement.specifier}", remedy)
