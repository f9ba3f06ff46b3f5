"""`bench run` without a matrix file: turn options such as `--attack` into the content of a matrix file."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import click

from bench.cli import completion
from bench.errors import BenchError
from bench.kinds.known import KINDS, named
from bench.matrix import typed
from bench.matrix.entries import registered
from bench.matrix.messages import Wrong
from bench.matrix.schema import AXES
from bench.registry import entries as registry

_READINGS, _EVALUATIONS = 32, 300


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedAxes:
    """Axes of a matrix (its dimensions), typed as options of `bench run`; each text may hold several comma-separated
    values."""

    dataset: tuple[str, ...] = ()
    """Names of data sets."""
    model: tuple[str, ...] = ()
    """Names of models, with parameters."""
    attack: tuple[str, ...] = ()
    """Names of attacks, with parameters."""
    knowledge: tuple[str, ...] = ()
    """Levels of the attacker's knowledge about the defense: `plain`, `adaptive` or `black-box`."""
    point: tuple[str, ...] = ()
    """Names of interception points, such as `type-1`."""
    grant: tuple[str, ...] = ()
    """Grants to the attacker: permissions beyond the observed update, such as the labels."""
    seed: tuple[str, ...] = ()
    """Seeds of the cells (experiments)."""
    batch: int | None = None
    """Number of examples in a client's local step; None: the default of the setting."""
    readings: int | None = None
    """Number of readings (observed updates) per cell; None: the default of the cell."""
    evaluations: int | None = None
    """Budget of gradient evaluations per reading; None: the default of the cell."""

    def __bool__(self) -> bool:
        return any(getattr(self, field.name) for field in fields(self))


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a click command: add the options of a run without a matrix file, such as `--dataset` and `--batch`."""
    added = (
        *(
            click.option(f"--{axis}", multiple=True, metavar="NAMES", help=words, shell_complete=complete)
            for axis, words, complete in (
                ("attack", "Attacks, such as cpl,map or cpl:restarts=3.", completion.entries("attacks", several=True)),
                ("dataset", "Data sets [default: digits].", completion.entries("datasets", several=True)),
                ("model", "Models [default: dlg-lenet; tables: mlp].", completion.entries("models", several=True)),
                ("point", "Interception points [default: type-2,type-1].", completion.points),
                ("knowledge", "Attackers' knowledge of the defense [default: plain,adaptive].", None),
                ("grant", "Further knowledge of attackers, such as labels.", None),
            )
        ),
        click.option("--batch", type=click.IntRange(1), help="Examples in a client's local step.  [default: 3]"),
        click.option("--seed", multiple=True, metavar="NUMBERS", help="Seeds of the model's weights, such as 0,1,2,3."),
        click.option(
            "--readings", type=click.IntRange(1), help=f"Attacked readings in a cell.  [default: {_READINGS}]"
        ),
        click.option(
            "--evaluations",
            type=click.IntRange(1),
            help=f"Gradient evaluations for each reading.  [default: {_EVALUATIONS}]",
        ),
        click.option("--print-matrix", is_flag=True, help="Print the matrix as TOML, and run nothing."),
    )
    for option in reversed(added):
        command = option(command)
    return command


def document(given: TypedAxes, defenses: tuple[str, ...]) -> dict[str, Any]:
    """Return the content of a matrix file (TOML) as a dictionary, for the typed axes `given` (values of each axis) and
    the typed `defenses`; the undefended baseline `none` is added. Raises `BenchError` with the name of a wrong
    option."""
    datasets = _entries("dataset", given.dataset or ("digits",))
    attacks = _entries("attack", given.attack or ("cpl", "gradinv", "map"))
    values = {
        "dataset": datasets,
        "model": _entries("model", given.model or (_model(datasets),)),
        "federated": [] if given.batch is None else [{"batch": given.batch}],
        "attack": attacks,
        "knowledge": typed.entries(given.knowledge or ("plain", "adaptive"), "--knowledge"),
        "grants": [typed.entries(given.grant, "--grant")] if given.grant else [],
        "point": typed.entries(given.point or ("type-2", "type-1"), "--point"),
        "defense": _entries("defense", ("none", *defenses)),
        "seed": _seeds(given.seed),
    }
    compared = values["defense"][1:] or attacks
    return {
        "title": " on ".join(", ".join(typed.split(entry)[0] for entry in entries) for entries in (compared, datasets)),
        "readings": given.readings or _READINGS,
        "evaluations": given.evaluations or _EVALUATIONS,
        "axes": {axis: values[axis] for axis in AXES if values.get(axis)},
    }


def name(document: dict[str, Any]) -> str:
    """Return a name for the folder of a run without a matrix file, from the title of the matrix `document`: the
    compared entries and the data sets."""
    return "-".join(document["title"].replace(",", "").replace(" on ", " ").split())[:80]


def _seeds(texts: tuple[str, ...]) -> list[Any]:
    numbers = [typed.number_or_text(str(value)) for value in typed.entries(texts, "--seed")] if texts else []
    if wrong := [value for value in numbers if type(value) is not int or value < 0]:
        raise BenchError(f"--seed: {wrong[0]!r} is no seed; give whole numbers from 0, e.g. 0,1,2,3")
    return numbers


def _entries(axis: str, texts: tuple[str, ...]) -> list[Any]:
    values: list[Any] = []
    for value in typed.entries(texts, f"--{axis}"):
        try:
            registered(axis, value, registry)
        except Wrong as error:
            raise BenchError(f"--{axis}: {error}") from None
        values += [value] if value not in values else []
    return values


def _model(datasets: list[Any]) -> str:
    """Return the default model for the data sets; raises `BenchError` if images and tables are mixed."""
    kinds = [named(str(registry.literals("datasets", typed.split(value)[0]).get("kind"))) for value in datasets]
    if len(set(kinds)) > 1:
        several = " and ".join(kind.plural for kind in KINDS.values() if kind in kinds)
        raise BenchError(f"--dataset: {several} need different models; run them one after the other")
    return kinds[0].default_model
