"""`bench run` without a matrix file: the axes are typed, and written out as the matrix that they are."""

import tomllib
from collections.abc import Callable
from typing import Any

import click

from bench.cli import completion
from bench.errors import BenchError
from bench.kinds.known import KINDS, named
from bench.matrix import typed
from bench.matrix.entries import registered
from bench.matrix.messages import Wrong
from bench.registry import entries as registry

_READINGS, _EVALUATIONS = 32, 300
_ORDER = ("dataset", "model", "federated", "attack", "knowledge", "grants", "point", "defense", "seed")


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a run without a matrix file."""
    added = (
        *(
            click.option(f"--{axis}", name, multiple=True, metavar="NAMES", help=words, shell_complete=complete)
            for axis, name, words, complete in (
                ("attack", "attacks", "E.g. cpl,map or cpl:restarts=3.", completion.entries("attacks", several=True)),
                ("dataset", "datasets", "[default: digits]", completion.entries("datasets", several=True)),
                ("model", "models", "[default: dlg-lenet; tables: mlp]", completion.entries("models", several=True)),
                ("point", "points", "[default: type-2,type-1]", completion.points),
                ("knowledge", "knowledge", "[default: plain,adaptive]", None),
                ("grant", "grants", "What attackers know, e.g. labels.", None),
            )
        ),
        click.option("--batch", type=click.IntRange(1), help="Examples of a client's step.  [default: 3]"),
        click.option("--seed", "seeds", multiple=True, metavar="NUMBERS", help="Of the weights, e.g. 0,1,2,3."),
        click.option("--readings", type=click.IntRange(1), help=f"Victims of a cell.  [default: {_READINGS}]"),
        click.option("--evaluations", type=click.IntRange(1), help=f"Of each.  [default: {_EVALUATIONS}]"),
        click.option("--print-matrix", is_flag=True, help="Print the matrix as TOML, and run nothing."),
    )
    for option in reversed(added):
        command = option(command)
    return command


def text(
    *,
    defenses: tuple[str, ...],
    datasets: tuple[str, ...],
    models: tuple[str, ...],
    attacks: tuple[str, ...],
    knowledge: tuple[str, ...],
    points: tuple[str, ...],
    grants: tuple[str, ...],
    seeds: tuple[str, ...],
    batch: int | None,
    readings: int | None,
    evaluations: int | None,
) -> str:
    """The matrix of what was typed.  `none` is always among the defenses: what a defense changes is seen beside it."""
    chosen: dict[str, Any] = {
        "dataset": _entries("dataset", datasets or ("digits",)),
        "attack": _entries("attack", attacks or ("cpl", "gradinv", "map")),
        "knowledge": typed.entries(knowledge or ("plain", "adaptive"), "--knowledge"),
        "point": typed.entries(points or ("type-2", "type-1"), "--point"),
        "defense": _entries("defense", ("none", *defenses)),
    }
    chosen["model"] = _entries("model", models or (_model(chosen["dataset"]),))
    if grants:
        chosen["grants"] = [typed.entries(grants, "--grant")]
    if seeds:
        numbers = [typed.number_or_text(str(value)) for value in typed.entries(seeds, "--seed")]
        if wrong := [value for value in numbers if type(value) is not int or value < 0]:
            raise BenchError(f"--seed: {wrong[0]!r} is no seed; give whole numbers from 0, e.g. 0,1,2,3")
        chosen["seed"] = numbers
    if batch is not None:
        chosen["federated"] = [{"batch": batch}]
    axes: dict[str, Any] = {axis: chosen[axis] for axis in _ORDER if axis in chosen}
    compared = chosen["defense"][1:] or chosen["attack"]
    title = " on ".join(", ".join(_name(value) for value in values) for values in (compared, chosen["dataset"]))
    budgets = {"readings": readings or _READINGS, "evaluations": evaluations or _EVALUATIONS}
    return typed.matrix_text(title, axes, budgets)


def name(content: str) -> str:
    """The run of such a matrix, by what it compares."""
    title: str = tomllib.loads(content)["title"]
    return "-".join(title.replace(",", "").replace(" on ", " ").split())[:80]


def _entries(axis: str, texts: tuple[str, ...]) -> list[typed.Typed]:
    """The values of an axis of registered entries, each once.  Raises `BenchError` naming the option."""
    values: list[typed.Typed] = []
    for value in typed.entries(texts, f"--{axis}"):
        try:
            registered(axis, value, registry)
        except Wrong as error:
            raise BenchError(f"--{axis}: {error}") from None
        values += [value] if value not in values else []
    return values


def _model(datasets: list[typed.Typed]) -> str:
    """The default model of the data.  Raises `BenchError` for data of several kinds."""
    kinds = [named(str(registry.literals("datasets", _name(value)).get("kind"))) for value in datasets]
    if len(set(kinds)) > 1:
        several = " and ".join(kind.plural for kind in KINDS.values() if kind in kinds)
        raise BenchError(f"--dataset: {several} need different models; run them one after the other")
    return kinds[0].default_model


def _name(value: typed.Typed) -> str:
    return value if isinstance(value, str) else str(value["name"])
