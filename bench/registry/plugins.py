"""Import of the module given by `--plugin FILE_OR_MODULE`, and search for the classes to register.

A file path or module name gives the same module under the same name in every process, so instances can be pickled
between processes."""

import dataclasses
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from bench.errors import PluginError


def module(spec: str, role: str = "--plugin") -> ModuleType:
    """Import the module `spec`, a path that ends in `.py` or an importable module's name. `role` begins error messages.
    Raises `PluginError` with file and line for any exception inside the module."""
    if not spec.endswith(".py"):
        return _named(spec, role)
    path = Path(spec).resolve()
    if not path.is_file():
        raise PluginError(f"{role} {spec}: no such file")
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"bench_plugin_{re.sub(r'[^0-9a-zA-Z]', '_', path.stem)}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    file_spec = importlib.util.spec_from_file_location(name, path)
    assert file_spec is not None and file_spec.loader is not None  # files ending in .py always have a loader
    loaded = importlib.util.module_from_spec(file_spec)
    sys.modules[name] = loaded  # dataclasses look up their module while it is executed
    try:
        file_spec.loader.exec_module(loaded)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise PluginError(f"{role} {error_line(error, path)}") from None
    return loaded


def entries(loaded: ModuleType, bases: Mapping[str, type]) -> Iterator[tuple[str, str, type]]:
    """Yield (kind, name, class) for each attack, defense, data set, model and detector in the module `loaded`: each
    concrete class with a base class in `bases`, a map such as "attacks" → `Attack`. The name is the class attribute
    `name`, or otherwise the class name in kebab case. A class with a leading underscore is left out."""
    for attribute, entry in vars(loaded).items():
        if not isinstance(entry, type) or inspect.isabstract(entry) or attribute.startswith("_"):
            continue
        if not f"{entry.__module__}.".startswith(f"{loaded.__name__}.") or entry.__name__ != attribute:
            continue
        for kind, base in bases.items():
            if issubclass(entry, base):
                yield kind, _name(entry), entry


def error_line(error: BaseException, path: Path | None = None) -> str:
    """Describe the exception `error` in a line, with the last traceback line in `path` (None: in any file)."""
    kind, text = type(error).__name__, (str(error).strip() or "no message").splitlines()[0]
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {kind}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    in_file = [frame for frame in frames if path is not None and Path(frame.filename) == path]
    places = [f"{frame.filename}:{frame.lineno}: " for frame in in_file or frames[-1:] if os.sep in frame.filename]
    return f"{places[-1] if places else ''}{kind}: {text}"


def _named(spec: str, role: str) -> ModuleType:
    try:
        return importlib.import_module(spec)
    except (Exception, SystemExit) as error:
        reason = error_line(error)
        if isinstance(error, ModuleNotFoundError) and f"{spec}.".startswith(f"{error.name}."):
            reason = "no such module is installed; for a file give its path, ending in .py"
        raise PluginError(f"{role} {spec}: {reason}") from None


def _name(entry: type) -> str:
    fields = {item.name for item in dataclasses.fields(entry)} if dataclasses.is_dataclass(entry) else set()
    name = vars(entry).get("name")
    if isinstance(name, str) and "name" not in fields:
        return name
    return kebab(entry.__name__)


def kebab(name: str) -> str:
    """Return the `name` of a class in kebab case, such as `round-off` for `RoundOff`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).lower()
