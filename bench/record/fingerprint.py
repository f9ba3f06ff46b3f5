"""Fingerprints (hashes) of the code for a cell; a record is used only while its code is unchanged.

Bench's code: every file reached by imports from `bench.answer.run`.  Code of an attack, defense, data set or model: its
module, and every other local file reached by imports.  Leaderboard, matrices, sweep and command line are not reached.
"""

import ast
import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from importlib import metadata
from pathlib import Path

from bench import PROTOCOL, __version__
from bench.cell import AttackCell, TrainingCell
from bench.errors import PluginError
from bench.record.schema import Code, Provenance
from bench.registry import entries as registry
from bench.registry import static

_CORE = "bench.answer.run"
_INSTALLED = {"site-packages", "dist-packages"}  # folders of installed packages
Left = tuple[int, ...]  # readings that a cascade left, by number


@cache
def own() -> Code:
    """Return the bench's version as a `Code`: the hash over all source files that compute results, and the package's
    version. An editable install and a wheel have equal hashes. A record with another hash is out of date."""
    return Code(origin=registry.DISTRIBUTION, version=__version__, protocol=PROTOCOL, sha256=_hash(_core()))


def of_entry(kind: str, name: str) -> Code:
    """Return the version of the code behind a registered attack, defense, data set or model as a `Code`, with a hash
    over its source files: a change of the code makes older results out of date. `kind` is the entry's kind, such as
    "attacks", and `name` its name. Raises `UnknownName` for an unknown name, and `PluginError` for a name from two
    sources or a missing file."""
    return _of_origin(registry.origin(kind, name))


@cache  # planning asks for every cell
def _of_origin(origin: registry.Origin) -> Code:
    module = origin.target.partition(":")[0]
    file = static.file_of(module) or origin.file
    if file is None:
        raise PluginError(f"{origin}: its file cannot be found, so its code cannot be recorded")
    files = {name: path for name, path in reached(module, file).items() if name not in _core()}
    if origin.built_in:
        return Code(origin=registry.DISTRIBUTION, sha256=_hash(files))
    if origin.distribution is None:
        place = static.package_of(module) or file
        whole = _below(place) if place.is_dir() else {}
        return Code(origin=place.name, plugin=True, sha256=_hash(_unnamed(files, module) | whole))
    sha256 = _hash(_installed(origin.distribution, module) | files)
    return Code(origin=origin.distribution, version=origin.version, sha256=sha256)


def of_cell(cell: AttackCell | TrainingCell) -> Provenance:
    """Return the versions of all code that computes a cell (experiment), as hashes: of the bench, attack, defense, data
    set and model. A record with other hashes is out of date."""
    attack = of_entry("attacks", cell.attack.name) if isinstance(cell, AttackCell) else None
    return Provenance(
        bench=own(),
        defense=of_entry("defenses", cell.defense.name),
        dataset=of_entry("datasets", cell.dataset.name),
        model=of_entry("models", cell.model.name),
        attack=attack,
    )


def changed(old: Provenance, new: Provenance) -> list[str]:
    """Explain why a record is out of date: return a line of text for each difference between its code hashes and
    weights, `old`, and the present ones, `new`, such as a changed defense."""
    parts = ((field.name, getattr(old, field.name), getattr(new, field.name)) for field in fields(Provenance))
    return [f"{name}: {_difference(then, now)}" for name, then, now in parts if then != now]


def _difference(old: Code | str | Left | None, new: Code | str | Left | None) -> str:
    if isinstance(old, tuple) or isinstance(new, tuple):
        return f"{_many(old)} → {_many(new)}"
    if not isinstance(old, Code) or not isinstance(new, Code):
        return "was not recorded before" if old is None else "is gone" if new is None else f"{old} → {new}"
    if (old.origin, old.plugin) != (new.origin, new.plugin):
        return f"came from {_origin(old)}, now from {_origin(new)}"
    pairs = (("version", old.version, new.version), ("protocol", old.protocol, new.protocol))
    versions = [f"{name} {then} → {now}" for name, then, now in pairs if then != now]
    return ", ".join(versions) or f"the files of {_origin(new)} changed"


def _many(left: Code | str | Left | None) -> str:
    return f"{len(left)} readings" if isinstance(left, tuple) else "all readings"


def _origin(code: Code) -> str:
    return f"plug-in {code.origin}" if code.plugin else code.origin


@cache
def _core() -> Mapping[str, Path]:
    file = static.file_of(_CORE)
    assert file is not None, f"{_CORE} is imported from nowhere"
    return reached(_CORE, file)


@cache
def reached(module: str, file: Path) -> Mapping[str, Path]:
    """Find all source files whose change may change an entry's results, for the entry's hash: module name → file. These
    are `module` and all local modules that it imports, directly or through others, also inside functions. `file` is the
    file of `module`. Python's library and installed packages are not local."""
    files, waiting = {module: file}, [module]
    while waiting:
        name = waiting.pop()
        for imported in _imports(name, files[name]):
            path = _local(imported, files[name])
            if path is not None and imported not in files:
                files[imported] = path
                waiting.append(imported)
    return files


def _imports(module: str, file: Path) -> Iterator[str]:
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError):
        return
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            start = ".".join(part for part in (above if node.level else "", node.module or "") if part)
            names = [start]
            folder = _file(start)
            if folder is None or folder.name == "__init__.py":  # of a plain module, names are no modules
                names += [f"{start}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))


def _local(module: str, importer: Path) -> Path | None:
    """Return the file of a local module, or of a module in the importer's folder; None for other modules."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return None
    beside = importer.parent / f"{module.replace('.', '/')}.py"
    if _file(top) is None:
        return beside if beside.is_file() else None
    if top != "bench" and _is_installed(_file(top), importer):
        return None
    return _file(module)


@cache
def _file(module: str) -> Path | None:
    return None if module.partition(".")[0] in sys.stdlib_module_names else static.file_of(module)


def _is_installed(file: Path | None, importer: Path) -> bool:
    package = None if file is None else _package_folder(file)
    return package is not None and package != _package_folder(importer)


@cache
def _package_folder(file: Path) -> Path | None:
    """Return the folder or file directly below a folder of installed packages that contains `file`; None outside."""
    path = file.resolve()
    return next((path for path in (path, *path.parents) if _holds_packages(path.parent)), None)


@cache
def _holds_packages(folder: Path) -> bool:
    """Return whether packages are installed in `folder`, also by `pip install --target`."""
    return folder.name in _INSTALLED or any(folder.glob("*.dist-info"))


def _unnamed(files: Mapping[str, Path], module: str) -> dict[str, Path]:
    """Return the files with "" in place of the module's name, so that a renamed plug-in keeps its fingerprint."""
    return {("" if name == module else name): path for name, path in files.items()}


def _installed(distribution: str, module: str) -> dict[str, Path]:
    files = {
        str(file): Path(str(file.locate())) for file in metadata.distribution(distribution).files or () if _counts(file)
    }
    place = static.package_of(module)
    if place is not None:
        files |= _below(place) if place.is_dir() else {place.name: place}
    return files


def _counts(file: metadata.PackagePath) -> bool:
    """Return whether a file belongs to the code: no metadata, script, compiled file or editable link. Scripts contain
    the interpreter's path."""
    top = file.parts[0]
    beside = top == ".." or top.startswith("__editable__") or top.endswith((".dist-info", ".pth"))
    return not beside and file.suffix != ".pyc"


def _below(folder: Path) -> dict[str, Path]:
    return {f"{folder.name}/{path.relative_to(folder).as_posix()}": path for path in folder.rglob("*.py")}


def _hash(files: Mapping[str, Path]) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        content = path.read_bytes() if path.is_file() else b""
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
