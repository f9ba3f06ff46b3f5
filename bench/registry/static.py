"""Constant class attributes, read from the source text with `ast`, without importing the class.

`bench list` must be fast and must not run plug-in code, so parent packages are not imported either.  Works for wheels
and for editable installs."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import resolve_name
from pathlib import Path

from bench.errors import PluginError

_COMPUTED = object()  # a value that only the class's code gives; it hides a base class's constant


def file_of(module: str) -> Path | None:
    """Return the source file of `module`, a dotted name; None for a missing or built-in module, or a folder without
    `__init__.py`."""
    return dict(_steps(module)).get(module)


def package_of(module: str) -> Path | None:
    """Find the code that belongs to `module`, a dotted name: return the folder of its topmost package, or the path of a
    single-file module; None if missing. If a module lies in a folder without `__init__.py`, this folder is its
    package."""
    for prefix, file in _steps(module):
        if file is not None:
            return file.parent if file.name == "__init__.py" or "." in prefix else file
    return None


def read(module: str, name: str, file: Path | None = None) -> dict[str, object]:
    """Read the documentation of a class from the source text, without running its code: the constant class attributes
    of the class `name` in `module`, with inherited attributes and `__doc__`. An attribute counts if a constant is
    assigned, without annotation or with `ClassVar`; dataclass fields do not count. Base classes are read in the same
    file or through `from … import`. `file` is the file of a `--plugin FILE`; None finds the module. Raises
    `PluginError` for a missing class or an unreadable file."""
    path = file or file_of(module)
    if path is None:
        raise PluginError(f"there is no module {module!r}")
    definition = _find(module, name, path)
    if definition is None:
        raise PluginError(f"{path}: there is no class {name!r}")
    scope, node = definition
    literals = {key: value for key, value in dict(_inherited(scope, node)).items() if value is not _COMPUTED}
    doc = ast.get_docstring(node)
    return {**literals, "__doc__": doc} if doc else literals


def line_of(module: str, name: str, file: Path | None = None) -> int:
    """Return the line number at which the class `name` begins in the source file of `module`, for messages in a CI; 1
    if the module only imports the class. `file` is the file of a `--plugin FILE`; None finds the module. Raises
    `PluginError` for an unreadable file."""
    path = file or file_of(module)
    definition = _scope(module, path).classes.get(name) if path else None
    return definition.lineno if definition else 1


def _steps(module: str) -> Iterator[tuple[str, Path | None]]:
    """Yield the packages on the way to a dotted module name: (`a`, its file), (`a.b`, its file), … The file is None for
    a folder without `__init__.py`. The sequence ends before a missing module."""
    locations: list[str] | None = None
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        prefix = ".".join(parts[:depth])
        spec = _spec(prefix, locations)
        if spec is None:
            return
        source = spec.origin if spec.has_location and str(spec.origin).endswith(".py") else None
        yield prefix, Path(source) if source else None
        locations = None
        if spec.submodule_search_locations is not None:
            locations = list(spec.submodule_search_locations)
        if locations is None:
            return


def _spec(name: str, locations: list[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, locations)
        except KeyError:  # a folder without __init__.py inside another asks for its imported parent
            spec = _bare(name, locations or [])
        if spec is not None:
            return spec
    return None


def _bare(name: str, locations: list[str]) -> ModuleSpec | None:
    folders = [Path(location) / name.rpartition(".")[2] for location in locations]
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(folder) for folder in folders if folder.is_dir()]
    return spec if spec.submodule_search_locations else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """Names in a file: `classes` maps a class name to its syntax tree, `imported` maps a name to its origin (module,
    name there)."""

    classes: dict[str, ast.ClassDef]
    imported: dict[str, tuple[str, str]]


@cache
def _scope(module: str, path: Path) -> _Scope:
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise PluginError(f"{path}: cannot be read ({error.strerror})") from None
    except (SyntaxError, ValueError) as error:
        raise PluginError(f"{path}:{getattr(error, 'lineno', None) or 1}: {str(error).split(' (')[0]}") from None
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    classes: dict[str, ast.ClassDef] = {}
    imported: dict[str, tuple[str, str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            classes[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            try:
                source = resolve_name("." * node.level + (node.module or ""), package)
            except ImportError:
                continue
            imported |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
    return _Scope(classes=classes, imported=imported)


def _find(module: str, name: str, path: Path, depth: int = 0) -> tuple[_Scope, ast.ClassDef] | None:
    scope = _scope(module, path)
    if name in scope.classes:
        return scope, scope.classes[name]
    return _imported(scope, name, depth) if name in scope.imported else None


def _imported(scope: _Scope, name: str, depth: int = 0) -> tuple[_Scope, ast.ClassDef] | None:
    module, original = scope.imported[name]
    path = file_of(module) if depth < 8 else None  # two files may import a name from each other
    return _find(module, original, path, depth + 1) if path else None


def _inherited(scope: _Scope, node: ast.ClassDef, depth: int = 0) -> Iterator[tuple[str, object]]:
    """Yield (name, value) of a class's attributes, first those of the farthest base class. A later value replaces an
    earlier one."""
    for base in reversed(node.bases):
        name = base.id if isinstance(base, ast.Name) else ""
        if name in scope.classes and depth < 16 and scope.classes[name] is not node:
            yield from _inherited(scope, scope.classes[name], depth + 1)
        elif name in scope.imported and depth < 16:
            definition = _imported(scope, name)
            if definition is not None:
                yield from _inherited(*definition, depth + 1)
    yield from _literals(node)


def _literals(node: ast.ClassDef) -> Iterator[tuple[str, object]]:
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and "ClassVar" in ast.unparse(statement.annotation):
            if statement.value is None:
                continue  # an annotation alone sets nothing
            targets, value = [statement.target], statement.value
        else:
            continue
        try:
            literal: object = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            literal = _COMPUTED
        yield from ((target.id, literal) for target in targets if isinstance(target, ast.Name))
