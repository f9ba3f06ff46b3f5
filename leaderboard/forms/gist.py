"""Standings in a few sentences: what protects, where, at what cost."""

from collections import Counter
from collections.abc import Iterable, Sequence

from bench.leaderboard.costs import UNDEFENDED
from bench.leaderboard.forms.numbers import epsilon, rate, share
from bench.leaderboard.standings import Standing
from bench.record.names import distinct

LITTLE, MUCH = 0.1, 0.5  # of the examples
POINTS = ("type-2", "type-1", "type-0", "aggregate")
_TRAINS = 0.5  # of the undefended accuracy: below, a setting trains no model


def gist(standings: Sequence[Standing]) -> list[str]:
    """Which settings protect everywhere, from the client's update on, each update but not their mean, behind a trusted
    server alone, each update at the server alone, hide pictures and not whose they are, or do not protect, and which
    lack figures; each setting is in one sentence, with its accuracy.  Beside these, of which the mean of some clients
    hides pictures and not who took part."""
    names = distinct(each.defense for each in standings)
    ranked = [
        each for each in standings if each.defense != UNDEFENDED and not each.missing and not each.faults
    ]
    left = ranked
    undefended = next((each for each in standings if each.defense == UNDEFENDED), None)
    base = undefended.accuracy if undefended else None
    lines = []
    if undefended is not None and undefended.points:
        rates = ", ".join(f"{share(place.leaked)} at {point}" for point, place in undefended.points.items())
        lines.append(
            f"Without a defense attackers reconstruct {rates}, over the conditions in which they get half or more; "
            f"accuracy {share(base)}."
        )
    for words, holds in _KINDS:
        those = [each for each in left if holds(each)]
        left = [each for each in left if each not in those]
        if those:
            settings = "; ".join(_setting(each, names[each.defense], base) for each in those)
            lines.append(f"{words}: {settings}.")
    if named := [each for each in ranked if _names_in_the_mean(each)]:
        settings = "; ".join(
            f"`{names[each.defense]}` (recognised {share(each.points['aggregate'].recognised)})"
            for each in named
        )
        lines.append(
            f"Hide pixels in the mean of some clients (less than {share(LITTLE)} reconstructed), not whose they are: "
            f"{settings}."
        )
    lacking = [each for each in standings if each.missing and not each.faults]
    if lacking:
        settings = "; ".join(_setting(each, names[each.defense], base, _absent(each)) for each in lacking)
        lines.append(f"Not ranked, as figures are missing: {settings}.")
    return lines


def _everywhere(standing: Standing) -> bool:
    return _protects(standing, POINTS)


def _from_the_update_on(standing: Standing) -> bool:
    return _protects(standing, POINTS[1:])


def _each_update(standing: Standing) -> bool:
    return _protects(standing, POINTS[1:3])


def _at_the_server(standing: Standing) -> bool:
    return _protects(standing, POINTS[2:])


def _at_the_server_each(standing: Standing) -> bool:
    return _protects(standing, POINTS[2:3])


def _half(standing: Standing) -> bool:
    place = standing.points.get("type-0")
    return place is not None and place.leaked < MUCH


def _names_in_the_mean(standing: Standing) -> bool:
    place = standing.points.get("aggregate")
    return place is not None and place.leaked < LITTLE and (place.recognised or 0.0) >= MUCH


_KINDS = (
    (
        f"Protect at every point (less than {share(LITTLE)} reconstructed, and recognised above chance, adaptive "
        "attackers included)",
        _everywhere,
    ),
    (
        "Protect from the client's update on, not one example's gradient inside the client",
        _from_the_update_on,
    ),
    ("Protect each client's update, and leave the mean of some clients open", _each_update),
    (
        "Protect what leaves the server, which must be trusted: it sees the client's update before it adds the noise",
        _at_the_server,
    ),
    (
        "Protect each update once it reaches the server, not inside the client, and leave the mean of some clients "
        "open",
        _at_the_server_each,
    ),
    (f"Hide pixels at the server (less than {share(MUCH)} reconstructed), not whose they are", _half),
    (
        f"Do not protect: {share(MUCH)} and more reconstructed at the server by adaptive attackers",
        lambda _: True,
    ),
)


def _protects(standing: Standing, points: Iterable[str]) -> bool:
    """Whether little is reconstructed at these points, as far as the suite has them, and little recognised above
    chance."""
    places = [place for point in points if (place := standing.points.get(point)) is not None]
    return bool(places) and all(
        place.leaked < LITTLE and (place.recognised or 0.0) - (place.chance or 0.0) < LITTLE
        for place in places
    )


def _absent(standing: Standing) -> list[str]:
    """Where it lacks figures, and why: "type-0: not attacked in 9 conditions"."""
    whys = Counter((each.point, each.why) for each in standing.absent)
    return [
        f"{where}: {why.replace('-', ' ')} in {'one condition' if count == 1 else f'{count} conditions'}"
        for (where, why), count in whys.most_common()
    ]


def _setting(standing: Standing, name: str, base: float | None, absent: Sequence[str] = ()) -> str:
    place = standing.points.get("type-0")
    figures = list(absent)
    figures += [] if place is None else [rate(place.leaked, lower_bound=place.lower_bound)]
    if (
        (mean := standing.points.get("aggregate")) is not None
        and place is not None
        and mean.leaked > place.leaked
    ):
        figures.append(f"of the mean {rate(mean.leaked, lower_bound=mean.lower_bound)}")
    if place is not None and place.recognised is not None:
        figures.append(f"recognised {share(place.recognised)}")
    if standing.accuracy is not None:
        trains = base is None or standing.accuracy >= _TRAINS * base
        figures.append(f"accuracy {share(standing.accuracy)}{'' if trains else ': it trains no model'}")
    if standing.epsilon is not None:
        figures.append(f"ε {epsilon(standing.epsilon)}, {standing.epsilon_of}")
    return f"`{name}` ({', '.join(figures)})"
