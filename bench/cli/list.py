"""`bench list`: list registered entries from package metadata and source text, without importing entries or torch."""

from typing import Any

import click

from bench.cli import common
from bench.cli.words import meant
from bench.errors import BenchError
from bench.registry import entries as registry
from bench.registry import files

# kind → (heading, literal attribute shown for its entries, column heading)
_SHOWN = {
    "attacks": ("Attacks", "knowledge", "knowledge"),
    "defenses": ("Defenses", "stages", "stage"),
    "datasets": ("Data sets", "kind", "kind"),
    "models": ("Models", "takes", "takes"),
    "detectors": ("Detectors", "looks_at", "looks at"),
}


def _known(context: click.Context, argument: click.Parameter, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return the typed kinds; raises `UsageError` that suggests the nearest kind, or `BenchError` for a file."""
    for kind in kinds:
        if kind not in registry.KINDS:
            if (file := files.remedy(kind, "bench list")) is not None:
                raise BenchError(file)
            remedy = meant(kind, registry.KINDS, f"there are {', '.join(registry.KINDS)}")
            raise click.UsageError(f"there are no {kind!r} to list; {remedy}", context)
    return kinds


@click.command()
@click.argument("kinds", nargs=-1, callback=_known, metavar="[KIND]...")
@common.plugins
@common.json_flag
def command(kinds: tuple[str, ...], as_json: bool) -> None:
    """List attacks, defenses, data sets, models and detectors, with source paper and stage or knowledge.

    KIND is attacks, defenses, datasets, models or detectors; without KIND all are listed."""
    kinds = kinds or registry.KINDS
    listing = {kind: [_entry(kind, name) for name in registry.names(kind)] for kind in kinds}
    if as_json:
        common.print_json(listing)
        return
    for kind, entries in listing.items():
        click.echo("\n" * (kind != kinds[0]), nl=False)
        _print(kind, entries)


def _entry(kind: str, name: str) -> dict[str, Any]:
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


def _print(kind: str, entries: list[dict[str, Any]]) -> None:
    heading, attribute, column = _SHOWN[kind]
    rows = [
        (entry["name"], words(entry[attribute]), str(entry["reference"]), _origin(entry))
        for entry in entries
        if "error" not in entry
    ]
    click.secho(heading, bold=True, fg="cyan")
    if rows:
        common.print_table(("name", column, "reference", "from"), rows)
    for entry in entries:
        if "error" in entry:
            click.secho(f"broken: {entry['error']}", fg="red")
    if not entries:
        click.echo("none")


def words(value: object) -> str:
    """Return a parameter's or attribute's `value` as text for a list; sequences have no brackets."""
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _origin(entry: dict[str, Any]) -> str:
    return "" if entry["own"] else entry["plugin"] or f"{entry['distribution']} {entry['version']}"
