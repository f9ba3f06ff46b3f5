"""Shell completion for entry names, presets, interception points and cell ids, without heavy imports."""

from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def entries(kind: str, *, several: bool = False) -> Completer:
    """Return a completion function for a click option: it completes the names of registered entries of the `kind`
    "attacks", "defenses", "datasets" or "models". `several` True completes the last name in a comma-separated list."""

    def complete(context: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
        from bench.registry import entries as registry

        return _starting(registry.names(kind), typed, several=several)

    return complete


def every_entry(context: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """Return shell completions for the name of any registered entry; `typed` is the beginning of the name. `context`
    and `option` come from click."""
    from bench.registry import entries as registry

    return _starting(sorted({name for kind in registry.KINDS for name in registry.names(kind)}), typed)


def points(context: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """Return shell completions for a comma-separated list of interception points; `typed` is the beginning of the list.
    `context` and `option` come from click."""
    from bench.points import POINTS

    return _starting(POINTS, typed, several=True)


def matrices(context: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """Return shell completions for the name of a preset, or of a TOML file in the current folder; `typed` is the
    beginning of the name. `context` and `option` come from click."""
    from bench.matrix.document import preset_names

    files = sorted(path.name for path in Path().glob("*.toml"))
    return _starting([*preset_names(), *files], typed)


def cells(context: click.Context, option: click.Parameter, typed: str) -> list[CompletionItem]:
    """Return shell completions for the id of a cell (an experiment) below `runs/`, to eight digits; `typed` is the
    beginning of the id. `context` and `option` come from click."""
    return _starting(sorted({path.stem[:8] for path in Path("runs").glob("*/records/*.json")}), typed)


def _starting(names: Iterable[str], typed: str, *, several: bool = False) -> list[CompletionItem]:
    before, comma, last = typed.rpartition(",") if several else ("", "", typed)
    return [CompletionItem(f"{before}{comma}{name}") for name in names if name.startswith(last)]
