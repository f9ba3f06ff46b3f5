"""`bench assess`: report how much leaks from a user's client, the facts that decide, and defenses that would help."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench.cli import common
from bench.cli.words import duration
from bench.errors import BenchError
from bench.sanitize import first_line, sanitize

if TYPE_CHECKING:
    from bench.assess.result import Assessment, Figure, Remedy

_MINUTES = click.option(
    "--minutes", type=click.FloatRange(0.5), default=10.0, show_default=True, help="Time for all attacks, on two cores."
)
_OUT = click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("leak"),
    show_default=True,
    help="Folder of the report.",
)


def _limits(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, float]:
    from bench.assess.result import FIGURES

    limits: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = -1.0
        if name not in FIGURES or not 0 <= limits[name] <= 1:
            raise BenchError(
                f"--fail-above {text}: write FIGURE=SHARE, with {', '.join(FIGURES)} and a share in 0 to 1"
            )
    return limits


_FAIL_ABOVE = click.option(
    "--fail-above",
    "limits",
    multiple=True,
    metavar="FIGURE=SHARE",
    callback=_limits,
    help="Exit with code 1 if FIGURE exceeds SHARE or is not measured, such as recognised=.2.",
)


class _Group(click.Group):
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            return "reading", self.commands["reading"], args
        return super().resolve_command(ctx, args)


@click.group(cls=_Group, subcommand_metavar="READING.npz | COMMAND …")
def command() -> None:
    """Assess how much leaks from the update of your own client, with the facts that decide and defenses that would
    help.

    The report is a page in --out, with pictures and report.json. The pictures show private examples.

    \b
    bench assess reading.npz --model dlg-lenet --truth truth.npz --public public.npz
    """


@command.command()
@click.argument("reading_file", type=common.FILE, metavar="READING.npz")
@common.reading_model
@click.option("--truth", type=common.FILE, required=True, help="True `inputs` and `labels` (.npz).")
@click.option("--public", type=common.FILE, help="Public `inputs` and `labels` (.npz).")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the attacks.")
@_OUT
@_MINUTES
@_FAIL_ABOVE
@common.plugins
@common.json_flag
def reading(
    reading_file: Path,
    model: str,
    model_params: dict[str, Any],
    weights: Path | None,
    truth: Path,
    public: Path | None,
    seed: int,
    out: Path,
    minutes: float,
    limits: dict[str, float],
    as_json: bool,
) -> None:
    """Assess the client behind a reading file (an observed update), as written by `api.save_reading`."""
    from bench import api
    from bench.cli.attack import examples, opened

    made, _ = opened(reading_file, model, model_params, weights, public)
    true = examples(truth, "inputs", "labels")
    with Bar(minutes, quiet=as_json) as watch:
        result = api.assess(made, true["inputs"], true["labels"], out=out, minutes=minutes, seed=seed, watch=watch)
    show(result, limits, as_json=as_json)


@command.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--clients",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="Number of clients, the app's `num-partitions`.",
)
@click.option(
    "--partition",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Number of the attacked client, `partition-id`.",
)
@common.params_option("--run-config", "config", "Value of the app's run config, in place of the app's default.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the app and of the attacks."
)
@_OUT
@_MINUTES
@_FAIL_ABOVE
@common.json_flag
def flower(
    folder: Path,
    clients: int,
    partition: int,
    config: dict[str, Any],
    seed: int,
    out: Path,
    minutes: float,
    limits: dict[str, float],
    as_json: bool,
) -> None:
    """Assess a client of the Flower app in FOLDER.

    The app's ServerApp makes the first message, and its ClientApp trains on the message, in this process, without Ray.
    The app's own code runs.

    \b
    pip install '.[flower]'
    bench assess flower ./my-app
    """
    try:
        from bench.assess.flower import run_client
    except ImportError as error:
        raise BenchError(
            f"Flower cannot be imported ({first_line(error)}); pip install 'gradient-leakage-bench[flower]'"
        ) from None
    import torch

    from bench import api

    torch.manual_seed(seed)
    if not as_json:
        click.echo(f"the app's server makes a message, its client {partition} of {clients} trains", err=True)
    with redirect_stdout(sys.stderr):
        client = run_client(folder, partition=partition, clients=clients, config=config)
    with Bar(minutes, quiet=as_json) as watch:
        result = api.assess(client.recording, out=out, minutes=minutes, seed=seed, notes=client.notes, watch=watch)
    show(result, limits, as_json=as_json)


@command.command("nvflare-filter")
@click.argument("typed", metavar="PACKAGE.MODULE:FILTER(…)")
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    default=0.1,
    show_default=True,
    help="Learning rate of the clients.",
)
@click.option(
    "--trials",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="Updates attacked behind the filter, and without a filter.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the client and of the attack."
)
@common.json_flag
def nvflare_filter(typed: str, rate: float, trials: int, seed: int, as_json: bool) -> None:
    """Assess an NVFLARE filter: measure how many of a client's examples are recognised behind the filter.

    The client has 16 examples of the data set digits, and sends the weight difference of a single step. The attacker
    knows the filter, the label and all other examples.

    \b
    bench assess nvflare-filter "nvflare.app_common.filters.svt_privacy:SVTPrivacy(epsilon=0.1)"
    """
    try:
        from bench.assess.nvflare import assess_filter, parse
    except ImportError as error:
        raise BenchError(
            f"NVFLARE cannot be imported ({first_line(error)}); pip install 'gradient-leakage-bench[nvflare]'"
        ) from None
    from dataclasses import asdict

    from bench.assess.nvflare import digits_client
    from bench.assess.remedies import of_what

    with redirect_stdout(sys.stderr):
        found = assess_filter(parse(typed, Path.cwd()), rate=rate, trials=trials, seed=seed)
    if as_json:
        common.print_json([asdict(each) for each in found])
        return
    click.echo(of_what(digits_client(seed=seed)))
    _print_remedies(found)


class Bar:
    """Progress display for an assessment, on standard error: first the planned time, then a bar over the assessment's
    parts."""

    def __init__(self, minutes: float, *, quiet: bool) -> None:
        console = Console(stderr=True)
        self._quiet, self._minutes = quiet, minutes
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("measuring the speed of this machine", total=None)
        self._seconds: dict[str, float] = {}

    def __enter__(self) -> "Bar":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def planned(self, parts: Sequence[tuple[str, float]]) -> None:
        self._seconds = dict(parts)
        total = sum(self._seconds.values())
        if not self._quiet:
            least = f"about {duration(total)}, less if an attack ends early (--minutes {self._minutes:g})"
            self._bar.console.print(least)
        self._bar.update(self._task, total=max(total, 1.0))

    def began(self, part: str) -> None:
        self._bar.update(self._task, description=part)

    def ended(self, part: str) -> None:
        self._bar.advance(self._task, self._seconds.get(part, 0.0))


def show(result: "Assessment", limits: dict[str, float], *, as_json: bool) -> None:
    """Print the report `result` of an assessment as text, or as JSON if `as_json`. `limits` map the name of a measured
    share (`reconstructed`, `identified` or `recognised`) to its largest allowed value. Then exit the process: with code
    1 if a share for the client's update exceeds its limit or was not measured, otherwise with code 0."""
    above = [
        f"{name}: " + ("not measured" if figure is None else f"{figure.share.value:.1%} is above {limit:.1%}")
        for name, limit in limits.items()
        if (figure := result.figure(name)) is None or figure.share.value > limit
    ]
    if as_json:
        common.print_json({**result.json(), "above": above})
    else:
        _print(result)
        for line in above:
            click.echo(f"fail: {line}")
    sys.exit(bool(above))


def _print(result: "Assessment") -> None:
    from bench.assess.result import TITLES

    click.echo(f"{result.verdict}\n")
    for listener in result.listeners:
        click.echo(f"{TITLES[listener.name]}: {sanitize(listener.reads, 200)}")
        rows = [(name, *_texts(each)) for name, each in listener.figures.items()]
        common.print_table(("figure", "share", "95 %", "chance", "ceiling"), rows)
        common.print_table(("attack", "result", "s"), [(a.attack, a.line, f"{a.seconds:g}") for a in listener.attempts])
        click.echo("")
    click.echo(f"check of the training: {result.declaration}")
    for line in (*result.notes, *result.decides):
        click.echo(f"- {line}")
    click.echo(f"\nWhat would help: {result.remedies_of}")
    _print_remedies(result.remedies)
    shown = any(each.picture for each in result.listeners)
    what = "with pictures of private examples" if shown else "without pictures, as no attack gave one"
    click.echo(f"\n{result.page}: the report, {what} ({duration(result.seconds)})")


def _print_remedies(remedies: "Sequence[Remedy]") -> None:
    from bench.assess.page import percent

    rows = [(each.defense, *_texts(each.recognised), percent(each.kept)) for each in remedies]
    if rows:
        common.print_table(("defense", "recognised", "95 %", "chance", "ceiling", "accuracy"), rows)
    for each in remedies:
        if each.note:
            click.echo(f"- {each.defense}: {each.note}")


def _texts(figure: "Figure | None") -> tuple[str, str, str, str]:
    """Return a figure's share, its 95 % interval, its chance level and its ceiling, in words."""
    from bench.assess.page import percent

    if figure is None:
        return "–", "", "", ""
    share = figure.share
    interval = f"{100 * share.low:.0f}–{100 * share.high:.0f} %"
    return f"{percent(share.value)} of {figure.of}", interval, percent(figure.chance), percent(figure.ceiling)
