"""`bench advise`: print families of defenses that hide examples from a listener, with strength, accuracy and proof."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.cli import common

if TYPE_CHECKING:
    from bench.leaderboard.tradeoff import Standing
    from bench.record.tradeoff import Tradeoff

_LISTENERS = ("server", "mean", "client", "inside")


@click.command()
@click.argument("runs", nargs=-1, type=common.PATH)
@click.option(
    "--listener", type=click.Choice(_LISTENERS), default="server", show_default=True, help="Position of the attacker."
)
@click.option(
    "--accuracy-loss",
    "loss",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="List only families that lose at most PERCENT of the undefended accuracy.",
)
@click.option(
    "--level",
    type=click.Choice(["L1", "L2", "L3"]),
    default="L1",
    show_default=True,
    help="Bound on leaked examples (docs/TRADEOFF.md).",
)
@click.option("--picture", type=common.PATH, help="Draw accuracy against named examples: .svg or .png.")
@click.option("--html", type=common.PATH, help="Write a page with all listeners.")
@common.json_flag
def command(
    runs: tuple[Path, ...],
    listener: str,
    loss: float | None,
    level: str,
    picture: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Print the defenses that hide examples from LISTENER, each with its weakest sufficient strength and its accuracy.

    LISTENER is the attacker's position in a round. The attacker knows the defense, the label and all other examples,
    and names an example: picks it among candidates. Level L1: at most chance + 5 points of the examples are named; L2:
    at most 20 %; L3: at most 5 % are reconstructed. RUNS are folders of `bench calibrate`, shown together with the
    shipped results.

    Columns: kept, the share of the undefended accuracy; named, in the first round; later, halfway through the training;
    any attacker, the largest share that ε allows, with a single reading (observed update) of a client and with all its
    readings; ε of a reading as the paper states it, as it is proved, and a lower bound from `bench audit --board`; L1
    proved, the weakest strength at which ε proves L1, and the accuracy kept. A strength trains no model if less than
    half of the undefended gain over a constant guess is left.

    \b
    bench advise --listener server --accuracy-loss 6
    bench advise runs/tradeoff --listener mean --picture tradeoff.svg
    """
    from bench.errors import BenchError
    from bench.leaderboard import tradeoff as board
    from bench.leaderboard.forms import frontier
    from bench.record import tradeoff as values
    from bench.reference.tradeoff import other_settings, with_shipped

    own = [values.read(path) for path in runs]
    for line in other_settings(*own):
        click.echo(line, err=True)
    tradeoff = with_shipped(*own)
    if tradeoff is None:
        raise BenchError("no figures are shipped yet; `bench calibrate --defense NAME` makes some")
    if as_json:
        common.print_json(_json(tradeoff, board.listener_of(listener)))
    else:
        show(tradeoff, listener, level, loss)
    if picture is not None:
        frontier.save(tradeoff, board.listener_of(listener), picture)
        click.echo(f"drawn: {picture}", err=as_json)
    if html is not None:
        from bench.leaderboard.forms import tradeoff_page
        from bench.record.files import write_atomically

        write_atomically(html, tradeoff_page.render(tradeoff).encode())
        click.echo(f"written: {html}", err=as_json)


def listeners(tradeoff: "Tradeoff") -> Iterator[str]:
    """Yield the names of the listeners (attackers at an interception point) against which `tradeoff` has measured a
    defense family. Possible names, in this order: "server", "mean", "client", "inside". `tradeoff` is a table of
    leakage and accuracy for defense families."""
    from bench.leaderboard import tradeoff as board

    for name, (point, _) in board.LISTENERS.items():
        if any(point in (row.point, *row.also) for row in tradeoff.rows):
            yield name


def show(tradeoff: "Tradeoff", listener: str, level: str, loss: float | None = None) -> None:
    """Print a table of the ranked defense families for each data set and model of `tradeoff`, then findings in words.

    - `tradeoff`: table of leakage and accuracy for defense families, such as the shipped table.
    - `listener`: the attacker's position: "server", "mean", "client" or "inside".
    - `level`: "L1" or "L2", bounds on the share of examples that the attacker picks among candidates, or "L3", a bound
      on the share of reconstructed examples.
    - `loss`: largest accuracy loss in percent of the undefended accuracy; None prints all families."""
    from bench.leaderboard import tradeoff as board

    point, meaning = board.LISTENERS[listener]
    click.echo(f"listener {listener} ({point}): {meaning}")
    for (dataset, model), ranked in board.standings(tradeoff, point).items():
        click.echo(f"\n{dataset} · {model}: undefended accuracy {board.undefended(tradeoff, dataset, model)}")
        if level not in board.levels_of(ranked):
            click.echo("reconstructed examples are not measured here")
            continue
        chosen = ranked if loss is None else board.advised(ranked, level, loss)
        if chosen:
            combined = any(level in each.at and each.at[level].all_updates is not None for each in chosen)
            leaked = f"{board.leakage(level)},\nlater,{' all updates,' if combined else ''} %"
            heads = [
                "rank",
                f"defense at {level}",
                "kept",
                leaked,
                "any attacker",
                board.READING.replace(": ", ":\n"),
                "L1 proved",
            ]
            common.print_table(heads, [_line(tradeoff, each, level) for each in chosen])
        else:
            click.echo(f"no family reaches {level} with a loss of at most {loss:g} % of the undefended accuracy")
    for row in tradeoff.rows:
        if row.absent is not None and point in (row.point, *row.also):
            click.echo(f"\n{row.family}: {row.absent}")
    click.echo("")
    for line in board.findings(tradeoff, point):
        click.echo(line)
    click.echo("")


def show_ranks(own: "Tradeoff") -> None:
    """Print the rank that each defense family in `own`, the result of a user's calibration, has among the shipped
    families: a line for each listener (an attacker's position), data set and model."""
    from bench.leaderboard import tradeoff as board
    from bench.reference.tradeoff import with_shipped

    whole = with_shipped(own)
    assert whole is not None  # the own rows are in
    places = {(row.dataset, row.model) for row in own.rows}
    for family in dict.fromkeys(row.family for row in own.rows):
        for dataset, model in sorted(places):
            accuracy = board.undefended(whole, dataset, model)
            click.echo(f"\n{family} on {dataset}, {model}, undefended accuracy {accuracy}")
            for listener in listeners(own):
                ranked = board.standings(whole, board.LISTENERS[listener][0]).get((dataset, model), ())
                if line := board.rank_line(ranked, family):
                    click.echo(f"  {listener:7}{line}")
    click.echo("")


def _line(tradeoff: "Tradeoff", each: "Standing", level: str) -> tuple[str, ...]:
    from bench.leaderboard import tradeoff as board
    from bench.leaderboard.forms.numbers import bracketed
    from bench.record.tradeoff import PROVED, PROVED_ALL

    at = each.at.get(level)
    if at is None:
        return ("·", each.row.family, "–", board.reason(each, level), "", "", "")
    shares = [(at.share, at.low, at.high), at.trained, at.all_updates]
    return (
        str(each.rank),
        board.setting(each.row, at),
        f"{each.kept[level]:.1%}",
        "\n".join(bracketed(*share) for share in shares if share is not None),
        board.ceilings(each.row, at).replace(", ", "\n"),
        board.epsilons(tradeoff, each.row, at),
        "\n".join(dict.fromkeys(board.proof(tradeoff, each.row, name) for name in (PROVED, PROVED_ALL))),
    )


def _json(tradeoff: "Tradeoff", point: str) -> dict[str, Any]:
    from dataclasses import asdict

    from bench.leaderboard import tradeoff as board
    from bench.record.tradeoff import federation

    return {
        federation(dataset, model): [
            {
                "family": each.row.family,
                "rank": each.rank,
                "levels": {name: {**asdict(at), "kept": each.kept[name]} for name, at in each.at.items()},
                "audit": _audit(tradeoff, each),
            }
            for each in ranked
        ]
        for (dataset, model), ranked in board.standings(tradeoff, point).items()
    }


def _audit(tradeoff: "Tradeoff", each: "Standing") -> dict[str, Any] | None:
    from dataclasses import asdict

    from bench.leaderboard import tradeoff as board

    at = each.at.get("L1")
    found = None if at is None else tradeoff.audit(each.row, board.setting(each.row, at))
    return None if found is None else asdict(found)
