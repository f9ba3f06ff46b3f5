"""`bench list`: what there is, read from metadata and source text; imports no entry and no torch."""

import json
from typing import Any

import click

from bench.cli.columns import columns, width
from bench.errors import BenchError
from bench.registry import entries as registry

# kind → (heading, the literal attribute that tells entries of this kind apart, its column)
_SHOWN = {
    "attacks": ("Attacks", "knowledge", "knowledge"),
    "defenses": ("Defenses", "stages", "stage"),
    "datasets": ("Data sets", "kind", "kind"),
    "models": ("Models", "takes", "takes"),
}


@click.command()
@click.argument("kinds", nargs=-1, type=click.Choice(registry.KINDS), metavar="[KIND]...")
@click.option("--plugin", "plugin", multiple=True, metavar="FILE_OR_MODULE", help="Add entries of your own.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(kinds: tuple[str, ...], plugin: tuple[str, ...], as_json: bool) -> None:
    """List attacks, defenses, data sets and models, with source paper and stage or knowledge.

    KIND is attacks, defenses, datasets or models; without it all are listed.
    """
    for spec in plugin:
        registry.add_plugin(spec)
    listing = {
        kind: [_entry(kind, name) for name in registry.names(kind)] for kind in kinds or registry.KINDS
    }
    if as_json:
        click.echo(json.dumps(listing, indent=1, ensure_ascii=False))
    else:
        click.echo("\n\n".join(_section(kind, entries) for kind, entries in listing.items()))


def _entry(kind: str, name: str) -> dict[str, Any]:
    """One entry as JSON; `error` says why where it cannot be read, and the others are not touched."""
    attribute = _SHOWN[kind][1]
    try:
        origin, literals = registry.origin(kind, name), registry.literals(kind, name)
    except BenchError as error:
        return {"name": name, "error": str(error)}
    return {
        "name": name,
        "summary": str(literals.get("__doc__", "")).split("\n")[0],
        "reference": literals.get("reference", ""),
        attribute: literals.get(attribute, ""),
        "target": origin.target,
        "distribution": origin.distribution,
        "version": origin.version,
        "plugin": None if origin.distribution else str(origin.file),
        "own": origin.built_in,
    }


def _section(kind: str, entries: list[dict[str, Any]]) -> str:
    heading, attribute, column = _SHOWN[kind]
    sound = [entry for entry in entries if "error" not in entry]
    rows = [
        (entry["name"], _words(entry[attribute]), str(entry["reference"]), _origin(entry)) for entry in sound
    ]
    parts = [click.style(heading, bold=True, fg="cyan")]
    if rows:
        parts.append(columns(("name", column, "reference", "from"), rows, width()))
    parts += [
        click.style(f"broken: {entry['error']}", fg="red") for entry in entries if "error" in entry
    ] or ([] if rows else ["none"])
    return "\n".join(parts)


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _origin(entry: dict[str, Any]) -> str:
    if entry["own"]:
        return ""
    return entry["plugin"] or f"{entry['distribution']} {entry['version']}"
