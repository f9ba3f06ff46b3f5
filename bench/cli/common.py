"""Options and printing functions shared by several commands."""

import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from bench.errors import BenchError
from bench.leaderboard.forms.tables import Table
from bench.matrix.typed import number_or_text
from bench.record.runs import checked_run
from bench.registry import entries as registry
from bench.sanitize import LONGEST, sanitize

PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)


def _add(context: click.Context, option: click.Parameter, plugins: tuple[str, ...]) -> None:
    for plugin in plugins:
        registry.add_plugin(plugin)


def _params(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not key or not sign:
            raise BenchError(f"{option.opts[0]} is KEY=VALUE, got {text!r}")
        params[key] = number_or_text(value)
    return params


def params_option(flag: str, name: str, text: str) -> Callable[..., Any]:
    """Return a decorator that adds an option for an entry's parameters (such as an attack's) to a click command; the
    user types KEY=VALUE, several times if needed. `flag` is the option, such as `--set`. `name` is the argument through
    which the command function gets the parameters; `text` is the help."""
    return click.option(flag, name, multiple=True, metavar="KEY=VALUE", callback=_params, help=text)


data_dir = click.option("--data-dir", type=PATH, help="Folder of data sets [default: $BENCH_DATA].")
device = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Device of attacks and trainings.",
)
rows = click.option(
    "--rows",
    type=click.IntRange(1),
    help="Readings in an attacked batch, from several cells [default: as many as fit a GPU; on a CPU a cell at a "
    "time].",
)
jobs = click.option("--jobs", type=click.IntRange(1), help="Worker processes, one thread each [default: cores].")
json_flag = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_plugin = partial(
    click.option,
    "--plugin",
    "plugins",
    multiple=True,
    metavar="FILE|MODULE",
    help="Register your own entries: a Python file or a module.",
)
plugin_files = _plugin()  # for commands that pass the files on
plugins = _plugin(expose_value=False, callback=_add)
_model = click.option("--model", required=True, metavar="NAME", help="Registered model behind the reading.")
_model_param = params_option("--model-param", "model_params", "Parameter of the model.")
_weights = click.option(
    "--weights", type=FILE, help="Weights of the model: .safetensors, .npz or .pt [default: from the reading file]."
)
_tracking_uri = click.option(
    "--tracking-uri", metavar="URI", help="MLflow server or store [default: mlflow.db next to the run folder]."
)
_no_tracking = click.option("--no-tracking", is_flag=True, help="Leave MLflow for a later `bench sync`.")
run = click.argument("run", type=PATH, required=False, callback=lambda context, argument, run: checked_run(run))


def tracking(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a click command: add the options `--tracking-uri` and `--no-tracking`, for uploads to MLflow."""
    return _tracking_uri(_no_tracking(command))


def reading_model(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a click command on a reading file (an observed update): add the options `--model`, `--model-param` and
    `--weights`, for the model behind the reading."""
    with_params: Callable[..., Any] = _model_param(_weights(command))
    return _model(with_params)


def print_json(content: Any) -> None:
    click.echo(json.dumps(content, indent=1, ensure_ascii=False))


def console(least: int = 80) -> Console:
    """Return a rich console for standard output: as wide as the terminal, but at least `least` and at most 140 columns;
    100 columns without a terminal."""
    width = shutil.get_terminal_size((100, 24)).columns
    return Console(width=min(max(width, least), 140), highlight=False)


def _printable(cell: str) -> Text:
    return Text("\n".join(sanitize(line, LONGEST) for line in cell.split("\n")))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None:
    """Print a table: `rows` of cells of text, below the column titles `heads`. Columns wrap to the terminal's width;
    empty columns are left out."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=any(heads))
    filled = [column for column in range(len(heads)) if any(row[column] for row in rows)]
    for column in filled:
        table.add_column(heads[column], overflow="fold")
    for row in rows:  # text, not markup: names and paths are shown as they are
        table.add_row(*(_printable(cell) if isinstance(cell := row[column], str) else cell for column in filled))
    console(least=40).print(table)
