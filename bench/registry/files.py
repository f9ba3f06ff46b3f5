"""Names of the entries in a Python file, from its source text, for an error where a file stands in place of a name."""

import ast
from collections.abc import Iterator
from pathlib import Path

from bench.registry.plugins import kebab

_LARGEST = 1 << 20  # bytes
SINGULAR = {  # kind of entry → word for an entry
    "attacks": "attack",
    "defenses": "defense",
    "datasets": "data set",
    "models": "model",
    "detectors": "detector",
}
_NO_ENTRIES = ("Transform",)  # base classes in the same packages that make no entry


def remedy(name: str, typed: str) -> str | None:
    """Return the rest of an error message for a `name` of an attack, defense, data set, model or detector that is the
    path of a Python file: the names in the file, and the command or option with the file as a plug-in. None if `name`
    does not end in `.py`. The file is read as text, and not run.

    - `name`: the given name.
    - `typed`: command or option to type, with NAME in place of the name, such as `bench check NAME`."""
    if not name.endswith(".py"):
        return None
    path = Path(name)
    if not path.is_file():
        return f"{name!r} is no name, and no such file is here"
    try:
        named = list(_entries(path))
    except (OSError, ValueError, SyntaxError) as error:
        return f"{name!r} is a file, and no name; it cannot be read: {str(error).splitlines()[0]}"
    if not named:
        return f"{name!r} is a file, and no name; it defines no attack, defense, data set, model or detector"
    command = typed.replace("NAME", named[0][1] if len(named) == 1 else "NAME")
    listed = ", ".join(f"{SINGULAR[kind]} {entry!r}" for kind, entry in named)
    return f"{name!r} is a file, and no name; type `{command} --plugin {name}` (in the file: {listed})"


def _entries(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) for each public class with an entry's base class, directly or through the file's classes."""
    if path.stat().st_size > _LARGEST:
        raise ValueError("it is larger than 1 MB")
    tree = ast.parse(path.read_bytes())
    kinds = dict(_imported(tree))  # class name in the file → kind of entry
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        bases = [kind for base in node.bases if (kind := kinds.get(ast.unparse(base).rpartition(".")[2])) is not None]
        if bases:
            kinds[node.name] = bases[0]
            if not node.name.startswith("_"):
                yield bases[0], _own_name(node) or kebab(node.name)


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            package, _, rest = node.module.partition(".")
            kind = rest.partition(".")[0]
            if package == "bench" and kind in SINGULAR:
                yield from ((each.asname or each.name, kind) for each in node.names if each.name not in _NO_ENTRIES)


def _own_name(node: ast.ClassDef) -> str | None:
    """Return the class attribute `name`, if it is a text and no field."""
    for item in node.body:
        if (
            isinstance(item, ast.Assign)
            and ast.unparse(item.targets[0]) == "name"
            and isinstance(item.value, ast.Constant)
            and isinstance(item.value.value, str)
        ):
            return item.value.value
    return None
