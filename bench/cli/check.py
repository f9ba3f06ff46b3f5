"""`bench check NAME`: the contracts of one entry, your own included; exit code 1 where one is broken."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.cli.columns import columns, width
from bench.errors import BenchError
from bench.registry import entries as registry

if TYPE_CHECKING:
    from bench.contracts.base import Outcome

_COLOURS = {"ok": "green", "broken": "red", "skipped": "yellow"}


@click.command()
@click.argument("name")
@click.option(
    "--kind", type=click.Choice(registry.KINDS), help="Only this one, where two kinds share the name."
)
@click.option("--plugin", "plugin", multiple=True, metavar="FILE_OR_MODULE", help="Add entries of your own.")
@click.option("--set", "settings", multiple=True, metavar="PARAMETER=VALUE", help="A parameter of the entry.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where data sets are.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    name: str,
    kind: str | None,
    plugin: tuple[str, ...],
    settings: tuple[str, ...],
    data_dir: Path | None,
    as_json: bool,
) -> None:
    """Run the contracts on one attack, defense, data set or model.

    Each contract is ok, broken or skipped, with the reason.  The exit code is 1 where one is broken.
    """
    for spec in plugin:
        registry.add_plugin(spec)
    params = dict(_parameter(text) for text in settings)
    kinds = [kind] if kind else [other for other in registry.KINDS if name in registry.names(other)]
    if not kinds:
        raise BenchError(f"nothing is called {name!r}; `bench list` shows all names")
    from bench.contracts.run import check  # torch, and everything that the contracts look at

    results = {each: check(each, name, params, data_dir=data_dir) for each in kinds}
    if as_json:
        content = [_as_json(each, name, params, outcomes) for each, outcomes in results.items()]
        click.echo(json.dumps(content, indent=1, ensure_ascii=False))
    else:
        click.echo("\n\n".join(_text(each, name, outcomes) for each, outcomes in results.items()))
    sys.exit(int(any(outcome.status == "broken" for outcomes in results.values() for outcome in outcomes)))


def _parameter(text: str) -> tuple[str, Any]:
    """`key=value`: a number, true, false or a list as in JSON, anything else as the text it is."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise BenchError(f"--set {text}: write PARAMETER=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _as_json(kind: str, name: str, params: dict[str, Any], outcomes: "list[Outcome]") -> dict[str, Any]:
    return {
        "kind": kind,
        "name": name,
        "params": params,
        "contracts": [
            {
                "name": outcome.contract.name,
                "promise": outcome.contract.promise,
                "status": outcome.status,
                "reason": outcome.reason,
            }
            for outcome in outcomes
        ],
    }


def _text(kind: str, name: str, outcomes: "list[Outcome]") -> str:
    heading = f"{click.style(name, bold=True, fg='cyan')}  {registry.SINGULAR[kind]}"
    rows = [
        (outcome.status, outcome.contract.name, outcome.reason or outcome.contract.promise)
        for outcome in outcomes
    ]
    table = columns(("", "contract", "promise, or what is wrong"), rows, width())
    for status, colour in _COLOURS.items():
        table = "\n".join(
            click.style(status, fg=colour) + line.removeprefix(status)
            if line.startswith(f"{status} ")
            else line
            for line in table.split("\n")
        )
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in _COLOURS}
    return "\n".join(
        [heading, table, ", ".join(f"{count} {status}" for status, count in counts.items() if count)]
    )
