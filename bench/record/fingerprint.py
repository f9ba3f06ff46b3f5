"""The *source* of a record: what answered a cell, hashed; the question itself is the cell's id.

A finished cell is skipped only if both agree.  An entry's source is its plug-in's file, or the
files of the distribution it came with; for bench's own entries that is bench itself, with its
version and protocol.
"""

import hashlib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from bench import PROTOCOL, __version__
from bench.cell import AttackCell, TrainingCell
from bench.errors import PluginError
from bench.registry import entries as registry
from bench.registry import static as literals

_PACKAGES = ("bench", "bench.attacks", "bench.defenses", "bench.datasets")
_VIEWS = (
    "cli",
    "health",
    "tracking",
    "contracts",
    "leaderboard",
    "sweep",
    "verify.py",
)  # which cell runs where, and what they say of a record is no part of its answer


def own() -> dict[str, Any]:
    """Bench itself: version, protocol, and SHA-256 over the .py files of its packages that take part in
    an answer: not the command line, the sweep, tracking and leaderboard, which only order cells and show records.

    Files are named by import path, so that an editable install and a wheel of it agree.
    """
    return {"version": __version__, "protocol": PROTOCOL, "sha256": _own_hash()}


def source(kind: str, name: str) -> dict[str, Any]:
    """What stands behind one entry: `distribution` and `version`, or the plug-in's `file`, and `sha256`.

    Raises what `registry.origin` raises.
    """
    found = registry.origin(kind, name)
    if found.built_in:
        return {"distribution": found.distribution, **own()}
    if found.distribution is None:
        module = found.target.partition(":")[0]
        place = literals.package_of(module) or found.file
        if place is None:
            raise PluginError(f"{found}: its file cannot be found, so its source cannot be recorded")
        return {"plugin": place.name, "sha256": _hash_below(place)}
    return {
        "distribution": found.distribution,
        "version": found.version,
        "sha256": _distribution_hash(found.distribution, found.target.partition(":")[0]),
    }


def cell_source(cell: AttackCell | TrainingCell) -> dict[str, Any]:
    """What would answer this cell now: bench, and each of its entries.

    Own entries only say that they are bench's; `bench` holds the hash for all of them.
    """
    parts = {"defense": ("defenses", cell.defense), "dataset": ("datasets", cell.dataset)}
    parts["model"] = ("models", cell.model)
    if isinstance(cell, AttackCell):
        parts["attack"] = ("attacks", cell.attack)
    found: dict[str, Any] = {"bench": own()}
    for part, (kind, entry) in sorted(parts.items()):
        shipped = registry.origin(kind, entry.name).built_in
        found[part] = {"distribution": registry.DISTRIBUTION} if shipped else source(kind, entry.name)
    return found


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two sources, in words, one entry a part; empty if nothing does."""
    return [
        f"{part}: {_difference(old.get(part), new.get(part))}"
        for part in sorted({*old, *new})
        if old.get(part) != new.get(part)
    ]


def _difference(old: Any, new: Any) -> str:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return "was not recorded before" if old is None else "is gone" if new is None else f"{old} → {new}"
    if _whence(old) != _whence(new):
        return f"came from {_whence(old)}, now from {_whence(new)}"
    told = [
        f"{key} {old.get(key)} → {new.get(key)}"
        for key in sorted({*old, *new} - {"sha256", "distribution", "plugin"})
        if old.get(key) != new.get(key)
    ]
    if old.get("sha256") != new.get("sha256") and not told:
        told = [f"the files of {_whence(new)} changed"]
    return ", ".join(told)


def _whence(part: Mapping[str, Any]) -> str:
    return f"plug-in {part['plugin']}" if "plugin" in part else str(part.get("distribution", "bench"))


@cache
def _own_hash() -> str:
    files: dict[str, Path] = {}
    for package in _PACKAGES:
        root = literals.file_of(package)
        assert root is not None, f"{package} is imported from nowhere"
        below = _python(root.parent, package.replace(".", "/"))
        files |= {name: path for name, path in below.items() if name.split("/")[1] not in _VIEWS}
    return _hash(files.items())


@cache
def _distribution_hash(distribution: str, module: str) -> str:
    """Installed files; where the install is editable, the sources of the package it points to."""
    files = {
        str(file): Path(str(file.locate()))
        for file in metadata.distribution(distribution).files or ()
        if _counts(file)
    }
    place = literals.package_of(module)
    if place is not None:
        files |= _python(place, place.name) if place.is_dir() else {place.name: place}
    return _hash(files.items())


def _counts(file: metadata.PackagePath) -> bool:
    """Not metadata, scripts (they name the interpreter's path), compiled files or editable links."""
    top = file.parts[0]
    beside = top == ".." or top.startswith("__editable__") or top.endswith((".dist-info", ".pth"))
    return not beside and file.suffix != ".pyc"


@cache
def _hash_below(place: Path) -> str:
    return _hash((_python(place, "") if place.is_dir() else {"": place}).items())


def _python(folder: Path, prefix: str) -> dict[str, Path]:
    return {f"{prefix}/{path.relative_to(folder).as_posix()}": path for path in folder.rglob("*.py")}


def _hash(files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(files):
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()
