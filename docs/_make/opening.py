"""README's table: defenses that hide different points, at most eight rows."""

from collections.abc import Sequence

from _make.markdown import paragraph, table
from bench.leaderboard.costs import UNDEFENDED
from bench.leaderboard.forms.numbers import NONE, epsilon, rate, share
from bench.leaderboard.standings import Place, Standing
from bench.record.names import distinct

LITTLE = 0.1  # share reconstructed, or recognised above chance
TRAINS = 0.5  # share of the undefended accuracy
ROWS = 8
HEADS = {"type-1": "update leaves client", "type-0": "update at server", "aggregate": "mean of {clients} clients"}
SERVER = "type-0"
MEAN = "aggregate"


def chosen(standings: Sequence[Standing]) -> list[Standing]:
    """No defense, then by rank the most accurate ranked setting in each group that hides the same points and names."""
    groups: dict[tuple[bool, ...], list[Standing]] = {}
    for each in standings:
        if each.defense != UNDEFENDED and not each.missing and not each.faults:
            groups.setdefault(_hidden(each), []).append(each)
    best = [max(group, key=lambda each: (-len(each.diverged), each.accuracy or 0.0)) for group in groups.values()]
    first = [each for each in standings if each.defense == UNDEFENDED]
    return [*first, *sorted(best, key=lambda each: each.rank)][:ROWS]


def opening(version: str, standings: Sequence[Standing], clients: int) -> str:
    """The table with the rule below; `clients`: number in the mean."""
    names = distinct(each.defense for each in standings)
    base = next((each.accuracy for each in standings if each.defense == UNDEFENDED), None)
    heads = ["defense", *(head.format(clients=clients) for head in HEADS.values()), "recognised", "accuracy", "ε"]
    rows = [
        [
            f"`{names[each.defense]}`",
            *(_leaked(each.points.get(point)) for point in HEADS),
            share(each.points[SERVER].recognised) if SERVER in each.points else NONE,
            _accuracy(each, base),
            NONE
            if each.epsilon is None
            else f"{epsilon(each.epsilon)}, {(each.epsilon_of or '').removeprefix('one ')}",
        ]
        for each in chosen(standings)
    ]
    chance = first.points[SERVER].chance if (first := chosen(standings)[0]).points.get(SERVER) else None
    note = (
        "Columns 2 to 4: share of training examples that some attack reconstructs from a client's update as it leaves "
        "the client, from the same update at the server, and from the mean of clients' updates.  ≥: the "
        "true share may be higher, because an attack failed (diverged, crashed) on the other examples, or no attack "
        f"knew the defense.  {_above(chosen(standings))}"
        f"*Recognised*: an attack at the server picks the true example out of candidates (chance: {share(chance)}).  "
        "Accuracy: mean over nets; †: below half of the undefended accuracy.  ε: neighbouring data sets "
        "differ as named.  A row shows the most accurate of the settings with shares below "
        f"{share(LITTLE)} in the same columns, 2 to 5.  All "
        f"{len(standings)} settings: [{version}](docs/results/{version}.md), `bench leaderboard --reference`."
    )
    return f"{table(heads, rows)}\n{paragraph(note)}"


def _above(rows: Sequence[Standing]) -> str:
    """Sentence on the rows that leak more than no defense from the mean, if all are within its 95 % interval."""
    base = rows[0].points.get(MEAN)
    more = [row.points[MEAN].leaked for row in rows[1:] if MEAN in row.points]
    if base is None or not (more := [leaked for leaked in more if leaked > base.leaked]):
        return ""
    low, high = base.interval
    if max(more) > high:
        return ""
    interval = f"({share(low)} to {share(high)})"
    return f"Masks and shared noise cancel in the mean; shares above `none`'s lie in its 95 % interval {interval}.  "


def _hidden(standing: Standing) -> tuple[bool, ...]:
    places = [standing.points.get(point) for point in HEADS]
    server = standing.points.get(SERVER)
    return (*(place is not None and place.leaked < LITTLE for place in places), server is None or _unrecognised(server))


def _unrecognised(place: Place) -> bool:
    return (place.recognised or 0.0) - (place.chance or 0.0) < LITTLE


def _leaked(place: Place | None) -> str:
    return NONE if place is None else rate(place.leaked, lower_bound=place.lower_bound)


def _accuracy(standing: Standing, base: float | None) -> str:
    trains = base is None or standing.accuracy is None or standing.accuracy >= TRAINS * base
    of = f" ({len(standing.diverged)} of {len(standing.costs)} nets diverged)" if standing.diverged else ""
    return f"{share(standing.accuracy)}{'' if trains else '†'}{of}"
