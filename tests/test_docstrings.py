"""Docstrings say the role of each field and argument, of None, and of the errors for the user."""

import ast
import re
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path

import pytest
from tests.trees import parsed

ROOT = Path(__file__).parent.parent
PACKAGE = ("bench", "attacks", "defenses", "datasets", "leaderboard")
TELLING = {"model", "seed", "path", "device", "generator", "key", "rng"}  # names that tell their role
ERRORS = {"BenchError", "NotApplicable"}  # with their subclasses
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Package:
    """The syntax trees of the modules below some folders."""

    def __init__(self, trees: dict[str, ast.Module]) -> None:
        self.trees = trees

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        nodes = (node for tree in self.trees.values() for node in ast.walk(tree))
        return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}

    def ancestors(self, node: ast.ClassDef) -> Iterator[ast.ClassDef]:
        """The class's bases in the package, nearest first."""
        for base in node.bases:
            for name in _names(base):
                if name in self.classes and name != node.name:
                    yield self.classes[name]
                    yield from self.ancestors(self.classes[name])

    def is_error(self, name: str) -> bool:
        node = self.classes.get(name)
        return node is not None and not ERRORS.isdisjoint(each.name for each in (node, *self.ancestors(node)))

    def members(self) -> Iterator[tuple[str, ast.ClassDef | None, ast.ClassDef | Function]]:
        """(place, enclosing class, node) for each public class, function and method."""
        for name, tree in self.trees.items():
            yield from self._below(name, None, tree.body)

    def _below(
        self, place: str, owner: ast.ClassDef | None, body: list[ast.stmt]
    ) -> Iterator[tuple[str, ast.ClassDef | None, ast.ClassDef | Function]]:
        for node in body:
            if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
                here = f"{place}::{node.name}" if owner is None else f"{place}.{node.name}"
                yield here, owner, node
                if isinstance(node, ast.ClassDef):
                    yield from self._below(here, node, node.body)


def _names(node: ast.AST) -> set[str]:
    """Identifiers in an expression, with those in quoted annotations."""
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return found | {name for text in texts for name in re.findall(r"\w+", text)}


def fields_without_text(package: Package) -> list[str]:
    """Public fields of public data classes and pydantic models without a string below; `parameter(…)` has a text."""
    found = []
    for place, _, node in package.members():
        if not (isinstance(node, ast.ClassDef) and _has_fields(package, node)):
            continue
        for field, below in zip(node.body, [*node.body[1:], None], strict=True):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and not field.target.id.startswith("_")
                and "ClassVar" not in _names(field.annotation)
                and not (isinstance(field.value, ast.Call) and "parameter" in _names(field.value.func))
                and not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant))
            ):
                found.append(f"{place}.{field.target.id}")
    return found


def _has_fields(package: Package, node: ast.ClassDef) -> bool:
    family = [node, *package.ancestors(node)]
    return any("dataclass" in ast.unparse(mark) for mark in node.decorator_list) or any(
        _names(base) & {"BaseModel", "NamedTuple", "TypedDict"} for each in family for base in each.bases
    )


def arguments_without_role(package: Package) -> list[str]:
    """Arguments that a docstring leaves out, in functions with two or more.

    Left out may be an argument with a telling name, or with a class of the package or of click as its type; all options
    of a command (`help` describes each); all arguments of a method that a base class describes.
    """
    described = {name for name, node in package.classes.items() if ast.get_docstring(node)}
    found = []
    for place, owner, node in package.members():
        if isinstance(node, ast.ClassDef) or not (text := ast.get_docstring(node)) or _is_command(node):
            continue
        if owner is not None and _inherits(package, owner, node.name):
            continue
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        arguments = [each for each in every if each.arg not in ("self", "cls")]
        if len(arguments) < 2:
            continue
        words = set(re.findall(r"\w+", text))
        for each in arguments:
            types = _names(each.annotation) if each.annotation else set()
            if each.arg not in words | TELLING and not types & (described | {"click"}):
                found.append(f"{place}({each.arg})")
    return found


def _is_command(node: Function) -> bool:
    return any(re.search(r"\bclick\b|\.command\b", ast.unparse(mark)) for mark in node.decorator_list)


def _inherits(package: Package, owner: ast.ClassDef, name: str) -> bool:
    return any(
        isinstance(each, Function) and each.name == name and ast.get_docstring(each)
        for ancestor in package.ancestors(owner)
        for each in ancestor.body
    )


def none_without_meaning(package: Package) -> list[str]:
    """Functions that may return None, with a docstring that does not say when."""
    return [
        place
        for place, _, node in package.members()
        if isinstance(node, Function)
        and node.returns is not None
        and ast.unparse(node.returns).endswith("| None")
        and not re.search(r"\bNone\b", ast.get_docstring(node) or "None")
    ]


def errors_without_mention(package: Package) -> list[str]:
    """Functions that raise an error for the user, with a docstring that does not say so."""
    found = []
    for place, owner, node in package.members():
        if isinstance(node, Function) and (text := ast.get_docstring(node)) and not _is_command(node):
            raised = {
                name
                for each in ast.walk(node)
                if isinstance(each, ast.Raise) and each.exc is not None
                for name in _names(each.exc.func if isinstance(each.exc, ast.Call) else each.exc)
            }
            inherits = owner is not None and _inherits(package, owner, node.name)
            if not inherits and any(map(package.is_error, raised)) and not re.search(r"\b[Rr]aises?\b", text):
                found.append(place)
    return found


RULES = (fields_without_text, arguments_without_role, none_without_meaning, errors_without_mention)
PLANTED = '''
class BenchError(Exception): ...
class Leak(BenchError): ...
@dataclass
class Point:
    x: float
    """The first coordinate."""
    y: float
    z: float = parameter(0, "the third")
def shift(x, by: Point, seed) -> Point | None:
    """Move a point."""
    raise Leak("outside")
'''


@pytest.mark.parametrize(
    ("rule", "found"), list(zip(RULES, (["p::Point.y"], ["p::shift(x)"], ["p::shift"], ["p::shift"]), strict=True))
)
def test_a_rule_finds_a_planted_gap(rule, found) -> None:
    plain = PLANTED.replace("class Point:", 'class Point:\n    """A place."""')
    assert rule(Package({"p": ast.parse(plain)})) == found
    mended = plain.replace("y: float", 'y: float\n    """The second."""').replace(
        "Move a point", "Move a point by `x`, None if outside; raises Leak"
    )
    assert rule(Package({"p": ast.parse(mended)})) == []


@cache
def package() -> Package:
    files = sorted(file for place in PACKAGE for file in (ROOT / place).rglob("*.py"))
    return Package({str(file.relative_to(ROOT)): parsed(file) for file in files})


@pytest.mark.parametrize("rule", RULES)
def test_docstrings_of_the_package(rule) -> None:
    assert rule(package()) == []
