"""RECORDS.md from the record classes: each field, its type, the docstring below the field."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

from _make.markdown import HEAD, table
from bench import cell, epsilon
from bench.record import schema

INTRODUCTION = """\
# Records

One JSON file for each finished cell, `RUN/records/<id>.json`, written atomically after its arrays
`RUN/arrays/<sha256>.npz` (float32 `truth` and `reconstruction`: reading, example, \\*shape, paired; of some attacks
`trajectory`: mark, reading, example, \\*shape).  Numbers are finite; an absent value is `null`.  `bench.record.store`
reads and writes records and names a wrong field.  MLflow and the tables are views of the records.

Two runs agree bit for bit when `cell`, `status`, `reason` and `result` are equal (`bench.record.equality`), at equal
device, processor, thread count and chunk.  A learned metric (LPIPS, ST-LPIPS) that a machine lacks is not compared.
`provenance`, `cost` and `environment` describe the run.

The id of a cell is the SHA-256 of its canonical JSON.  No part of the id: the path of a weights file, the `series` of
weights (tables count the seeds of a series together), the kept checkpoints, grants that are not given.
"""


def page() -> str:
    """A section for each class of a record and its cell, the record first."""
    classes = [each for module in (schema, epsilon, cell) for each in _classes(Path(inspect.getfile(module)))]
    classes.sort(key=lambda each: each.name != "Record")
    parts = [HEAD.format(sources="bench/record/schema.py, bench/epsilon.py or bench/cell.py") + INTRODUCTION]
    for each in classes:
        if rows := [*_rows(each)]:
            about = ast.get_docstring(each)
            parts += [f"## {each.name.removeprefix('_')}\n", *([about + "\n"] if about else [])]
            parts += [table(["field", "type", "meaning"], rows)]
    return "\n".join(parts)


def _classes(path: Path) -> Iterator[ast.ClassDef]:
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node


def _rows(of: ast.ClassDef) -> Iterator[list[str]]:
    for node, after in zip(of.body, [*of.body[1:], ast.Pass()], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield [f"`{node.target.id}`", f"`{_type(node)}`", _docstring(after)]


def _docstring(node: ast.stmt) -> str:
    """A string statement's text on a single line; empty for other statements."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""


def _type(field: ast.AnnAssign) -> str:
    """The type without pydantic constraints."""
    kind = field.annotation
    if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "Annotated" and isinstance(kind.slice, ast.Tuple):
        kind = kind.slice.elts[0]
    return ast.unparse(kind)
