"""`bench check NAME`: check that a registered entry or plug-in keeps its contracts; exit code 1 if any is broken."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from bench.cli import common
from bench.errors import BenchError
from bench.registry import entries as registry
from bench.registry import files

if TYPE_CHECKING:
    from bench.contracts.base import Outcome

_COLOURS = {"ok": "green", "broken": "red", "skipped": "yellow"}


@click.command()
@click.argument("name")
@click.option("--kind", type=click.Choice(registry.KINDS), help="Kind of entry, if two kinds share the name.")
@common.plugins
@common.params_option("--set", "params", "Parameter of the entry.")
@common.data_dir
@common.json_flag
def command(name: str, kind: str | None, params: dict[str, Any], data_dir: Path | None, as_json: bool) -> None:
    """Run the contracts (tests of required properties) on an attack, defense, data set, model or detector.

    Each contract is ok, broken or skipped, with the reason. Exit code 1 for a broken contract."""
    kinds = [kind] if kind else [other for other in registry.KINDS if name in registry.names(other)]
    if not kinds:
        lacking = f"nothing is called {name!r}; `bench list` shows all names"
        raise BenchError(files.remedy(name, "bench check NAME") or lacking)
    from bench.contracts.run import check  # imports torch

    results = {each: check(each, name, params, data_dir=data_dir) for each in kinds}
    if as_json:
        common.print_json([_as_json(each, name, params, outcomes) for each, outcomes in results.items()])
    else:
        for number, (each, outcomes) in enumerate(results.items()):
            click.echo("\n" * (number > 0), nl=False)
            _print(each, name, outcomes)
    sys.exit(any(outcome.status == "broken" for outcomes in results.values() for outcome in outcomes))


def _as_json(kind: str, name: str, params: dict[str, Any], outcomes: "list[Outcome]") -> dict[str, Any]:
    contracts = [
        {
            "name": outcome.contract.name,
            "promise": outcome.contract.promise,
            "status": outcome.status,
            "reason": outcome.reason,
        }
        for outcome in outcomes
    ]
    return {"kind": kind, "name": name, "params": params, "contracts": contracts}


def _print(kind: str, name: str, outcomes: "list[Outcome]") -> None:
    click.echo(f"{click.style(name, bold=True, fg='cyan')}  {registry.SINGULAR[kind]}")
    rows = [
        (Text(each.status, _COLOURS[each.status]), each.contract.name, each.reason or each.contract.promise)
        for each in outcomes
    ]
    common.print_table(("", "contract", "promise, or what is wrong"), rows)
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in _COLOURS}
    click.echo(", ".join(f"{count} {status}" for status, count in counts.items() if count))
