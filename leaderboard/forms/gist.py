"""Standings in a few sentences: what protects, where, at what cost."""

from collections.abc import Iterable, Sequence

from bench.leaderboard.costs import UNDEFENDED
from bench.leaderboard.forms.numbers import formatted, rate, share
from bench.leaderboard.standings import Place, Standing
from bench.record.names import distinct

LITTLE, MUCH = 0.1, 0.5  # of the examples
CLIENT = ("type-2", "type-1", "type-0")


def gist(standings: Sequence[Standing]) -> list[str]:
    """Which settings leak nowhere, at the server alone not, only what they hide, or all the same; each setting is in
    one sentence, with its accuracy where it protects."""
    names = distinct(each.defense for each in standings)
    left = [each for each in standings if each.defense != UNDEFENDED and not each.missing and not each.faults]
    undefended = next((each for each in standings if each.defense == UNDEFENDED), None)
    lines = []
    if undefended is not None and undefended.points:
        rates = ", ".join(f"{share(place.leaked)} at {point}" for point, place in undefended.points.items())
        lines.append(f"Without a defense {rates} comes back; accuracy {share(undefended.accuracy)}.")
    for words, holds in _KINDS:
        those = [each for each in left if holds(each)]
        left = [each for each in left if each not in those]
        if those:
            lines.append(f"{words}: {'; '.join(_setting(each, names[each.defense]) for each in those)}.")
    return lines


def _nowhere(standing: Standing) -> bool:
    return all(_little(standing.points.get(point)) for point in CLIENT) and not _recognised(standing, CLIENT)


def _server(standing: Standing) -> bool:
    return _little(standing.points.get("type-0")) and not _recognised(standing, ("type-0",))


def _pixels(standing: Standing) -> bool:
    return _little(standing.points.get("type-0"))


def _half(standing: Standing) -> bool:
    place = standing.points.get("type-0")
    return place is not None and place.leaked < MUCH


_KINDS = (
    (
        f"Less than {share(LITTLE)} comes back or is recognised at any point, adaptive attackers included",
        _nowhere,
    ),
    ("The same at the server alone", _server),
    (f"Less than {share(LITTLE)} comes back at the server, but attackers recognise more of it", _pixels),
    (f"Less than {share(MUCH)} comes back at the server", _half),
    (f"{share(MUCH)} and more comes back at the server to who knows the defense", lambda standing: True),
)


def _little(place: Place | None) -> bool:
    return place is not None and place.leaked < LITTLE


def _recognised(standing: Standing, points: Iterable[str]) -> bool:
    """Whether more than chance and `LITTLE` of the examples is recognised at one of these points."""
    places = (standing.points.get(point) for point in points)
    return any(
        place is not None
        and place.recognised is not None
        and place.recognised - (place.chance or 0.0) >= LITTLE
        for place in places
    )


def _setting(standing: Standing, name: str) -> str:
    place = standing.points.get("type-0")
    figures = [] if place is None else [rate(place.leaked, lower_bound=place.lower_bound)]
    if place is not None and place.recognised is not None:
        figures.append(f"recognised {share(place.recognised)}")
    if standing.accuracy is not None:
        figures.append(f"accuracy {share(standing.accuracy)}")
    if standing.epsilon is not None:
        figures.append(f"ε {formatted(standing.epsilon, '.2g')}")
    return f"`{name}` ({', '.join(figures)})"
