"""`bench describe NAME`: one entry in full: parameters with defaults, units, bounds and sources."""

import dataclasses
import inspect
import json
from typing import Any

import click

from bench.cli.columns import columns, width
from bench.errors import BenchError, UnknownName
from bench.parameters import Parameter, parameters
from bench.registry import entries as registry


@click.command()
@click.argument("name")
@click.option("--kind", type=click.Choice(registry.KINDS), help="Needed where two kinds share the name.")
@click.option("--plugin", "plugin", multiple=True, metavar="FILE_OR_MODULE", help="Add entries of your own.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str, kind: str | None, plugin: tuple[str, ...], as_json: bool) -> None:
    """Show one attack, defense, data set or model: parameters, defaults, units, reference."""
    for spec in plugin:
        registry.add_plugin(spec)
    kind = kind or _kind(name)
    entry, origin, literals = (
        registry.load(kind, name),
        registry.origin(kind, name),
        registry.literals(kind, name),
    )
    declared = parameters(entry)
    content = {
        "name": name,
        "kind": kind,
        "doc": _doc(entry),
        **{key: value for key, value in literals.items() if not key.startswith("_")},
        "target": origin.target,
        "distribution": origin.distribution,
        "version": origin.version,
        "file": str(origin.file),
        "parameters": [_as_json(item) for item in declared],
    }
    click.echo(json.dumps(content, indent=1, ensure_ascii=False) if as_json else _text(content, declared))


def _kind(name: str) -> str:
    """The one kind that has the name; raises `UnknownName` or `BenchError` where two have it."""
    kinds = [kind for kind in registry.KINDS if name in registry.names(kind)]
    if len(kinds) > 1:
        raise BenchError(f"{name!r} is the name of several: say --kind {' or --kind '.join(kinds)}")
    if not kinds:
        raise UnknownName(_unknown(name))
    return kinds[0]


def _unknown(name: str) -> str:
    from difflib import get_close_matches  # only when something is wrong

    every = sorted({known for kind in registry.KINDS for known in registry.names(kind)})
    near = get_close_matches(name, every, n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"nothing is called {name!r}; {hint}`bench list` shows all names"


def _doc(entry: type) -> str:
    """The class's own docstring; a dataclass without one gets its signature, which says nothing."""
    doc = inspect.cleandoc(vars(entry).get("__doc__") or "")
    return "" if doc.startswith(f"{entry.__name__}(") else doc


def _as_json(item: Parameter) -> dict[str, Any]:
    content = dataclasses.asdict(item)
    required = item.default is dataclasses.MISSING
    return {**content, "default": None if required else item.default, "required": required}


def _text(content: dict[str, Any], declared: tuple[Parameter, ...]) -> str:
    kind = registry.SINGULAR[content["kind"]]
    lines = [f"{click.style(content['name'], bold=True, fg='cyan')}  {kind}", "", content["doc"], ""]
    known = ("name", "doc", "parameters", "kind", "target", "distribution", "version", "file")
    facts = [(key, _value(value)) for key, value in content.items() if key not in known]
    came = f"{content['distribution']} {content['version']}" if content["distribution"] else "--plugin"
    facts += [("from", came), ("file", content["file"]), ("class", content["target"])]
    lines += [f"{key + ':':<12} {value}" for key, value in facts]
    rows = [
        (item.name, item.type, _default(item), item.unit, _bounds(item), item.meaning, item.source)
        for item in declared
    ]
    heads = ("parameter", "type", "default", "unit", "bounds", "meaning", "source")
    lines += ["", columns(heads, rows, width()) if rows else "It takes no parameters."]
    return "\n".join(lines)


def _value(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _default(item: Parameter) -> str:
    return "required" if item.default is dataclasses.MISSING else _value(item.default)


def _bounds(item: Parameter) -> str:
    bounds = ((">", item.above), ("≥", item.low), ("≤", item.high))
    return ", ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)
