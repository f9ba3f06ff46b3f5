"""`bench describe NAME`: show an entry's parameters with defaults, units, bounds and sources."""

import dataclasses
import inspect
from difflib import get_close_matches
from typing import Any

import click

from bench.cli import common, completion
from bench.cli.list import words
from bench.errors import BenchError, UnknownName
from bench.parameters import Parameter, parameters
from bench.registry import entries as registry
from bench.registry import files

# Keys that `_print` formats separately or omits.
_SAID = ("name", "doc", "parameters", "kind", "target", "distribution", "version", "file")


@click.command()
@click.argument("name", shell_complete=completion.every_entry)
@click.option("--kind", type=click.Choice(registry.KINDS), help="Kind of entry, if two kinds share the name.")
@common.plugins
@common.json_flag
def command(name: str, kind: str | None, as_json: bool) -> None:
    """Show an attack, defense, data set, model or detector: parameters, defaults, units, reference."""
    kind = kind or _kind(name)
    entry, origin = registry.load(kind, name), registry.origin(kind, name)
    declared = parameters(entry)
    content = {
        "name": name,
        "kind": kind,
        "doc": _doc(entry),
        **{key: value for key, value in registry.literals(kind, name).items() if not key.startswith("_")},
        "target": origin.target,
        "distribution": origin.distribution,
        "version": origin.version,
        "file": str(origin.file),
        "parameters": [_as_json(item) for item in declared],
    }
    if kind == "defenses":
        strength = entry.strength  # type: ignore[attr-defined]  # a `Defense`
        content["strength"] = strength and (dataclasses.asdict(strength) if as_json else strength.words())
    if as_json:
        common.print_json(content)
    else:
        _print(content, declared)


def _kind(name: str) -> str:
    """Return the named entry's kind; raises `UnknownName`, or `BenchError` if two kinds share the name."""
    kinds = [kind for kind in registry.KINDS if name in registry.names(kind)]
    if len(kinds) > 1:
        raise BenchError(f"{name!r} is the name of several: say --kind {' or --kind '.join(kinds)}")
    if not kinds and (remedy := files.remedy(name, "bench describe NAME")) is not None:
        raise UnknownName(remedy)
    if not kinds:
        every = sorted({known for kind in registry.KINDS for known in registry.names(kind)})
        near = get_close_matches(name, every, n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise UnknownName(f"nothing is called {name!r}; {hint}`bench list` shows all names")
    return kinds[0]


def _doc(entry: type) -> str:
    doc = inspect.cleandoc(vars(entry).get("__doc__") or "")
    return "" if doc.startswith(f"{entry.__name__}(") else doc


def _as_json(item: Parameter) -> dict[str, Any]:
    required = item.default is dataclasses.MISSING
    return {**dataclasses.asdict(item), "default": None if required else item.default, "required": required}


def _print(content: dict[str, Any], declared: tuple[Parameter, ...]) -> None:
    heading = click.style(content["name"], bold=True, fg="cyan")
    click.echo(f"{heading}  {registry.SINGULAR[content['kind']]}\n\n{content['doc']}\n")
    lines = [(key, words(value)) for key, value in content.items() if key not in _SAID]
    origin = f"{content['distribution']} {content['version']}" if content["distribution"] else "--plugin"
    for key, text in (*lines, ("from", origin), ("file", content["file"]), ("class", content["target"])):
        click.echo(f"{key + ':':<12} {text}")
    if not declared:
        click.echo("\nIt takes no parameters.")
        return
    rows = []
    for item in declared:
        default = "required" if item.default is dataclasses.MISSING else words(item.default)
        rows.append((item.name, item.type, default, item.unit, _bounds(item), item.meaning, item.source))
    click.echo()
    common.print_table(("parameter", "type", "default", "unit", "bounds", "meaning", "source"), rows)


def _bounds(item: Parameter) -> str:
    bounds = ((">", item.above), ("≥", item.low), ("≤", item.high))
    return ", ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)
