"""Standings in ten lines: what protects, where, at what cost."""

from collections import Counter
from collections.abc import Iterable, Sequence

from bench.leaderboard.costs import UNDEFENDED
from bench.leaderboard.forms.numbers import ALL, epsilon, fine, interval, share
from bench.leaderboard.standings import Place, Standing
from bench.record.names import distinct

LITTLE, MUCH = 0.1, 0.5  # of the examples
POINTS = ("type-2", "type-1", "type-0", "aggregate")
_TRAINS = 0.5  # of the undefended accuracy: below, a setting trains no model
_USELESS = "†"


def gist(standings: Sequence[Standing]) -> list[str]:
    """Markdown lines: what attackers get without a defense; then which settings protect everywhere, from the client's
    update on, each update but not their mean, behind a trusted server alone, each update at the server alone, hide
    pictures and not whose they are, or do not protect; each setting in one line, with its accuracy and ε.

    Beside these, of which the mean of some clients hides pictures and not who took part, and which lack figures.
    """
    names = distinct(each.defense for each in standings)
    ranked = [each for each in standings if each.defense != UNDEFENDED and not each.missing and not each.faults]
    left = ranked
    undefended = next((each for each in standings if each.defense == UNDEFENDED), None)
    base = undefended.accuracy if undefended else None
    lines = []
    if undefended is not None and undefended.points:
        rates = ", ".join(f"{share(place.leaked)} at {point}" for point, place in undefended.points.items())
        lines.append(
            f"Without a defense attackers reconstruct {rates}, over the conditions in which they get half or more; "
            f"accuracy {share(base)}.  Below, reconstructed and recognised are at type-0, as the server reads one "
            f"client.  A setting's accuracy follows its name; {_USELESS}: less than half of that, so that it trains no "
            "model."
        )
    for words, holds in _KINDS:
        those = [each for each in left if holds(each)]
        left = [each for each in left if each not in those]
        if those:
            settings = ", ".join(_setting(each, names[each.defense], base) for each in those)
            figures = ", ".join([*_figures(those), *([] if holds in _LEAKING else [_proof(those)])])
            lines.append(f"**{words}** ({figures}): {settings}.")
    if named := [each for each in ranked if _names_in_the_mean(each)]:
        settings = ", ".join(f"`{names[each.defense]}`" for each in named)
        places = [each.points["aggregate"] for each in named]
        lines.append(
            f"**The mean of some clients hides their pixels, not who is in it** (at aggregate: "
            f"{_reconstructed(places)}, {_recognised(places)}): {settings}."
        )
    lacking = [each for each in standings if each.missing and not each.faults]
    if lacking:
        settings = "; ".join(
            f"{_setting(each, names[each.defense], base)} ({', '.join([*_absent(each), *_figures([each])])})"
            for each in lacking
        )
        lines.append(f"**Not ranked, as figures are missing**: {settings}.")
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


def _most(standing: Standing) -> bool:
    return not _half(standing)


def _names_in_the_mean(standing: Standing) -> bool:
    place = standing.points.get("aggregate")
    return place is not None and place.leaked < LITTLE and not _unrecognised(place)


_LEAKING = (_half, _most)


_KINDS = (
    ("Protect at every point, from adaptive attackers too", _everywhere),
    ("Protect from the client's update on, not inside the client", _from_the_update_on),
    ("Hide each client's update, not the mean of some clients", _each_update),
    ("Protect what leaves the server, which must be trusted: it adds the noise itself", _at_the_server),
    ("Hide each update at the server, not as it leaves the client, and not the mean of some", _at_the_server_each),
    (f"Reconstructed in part at the server, less than {share(MUCH)}", _half),
    ("Reconstructed for the most part at the server by adaptive attackers", _most),
)


def _protects(standing: Standing, points: Iterable[str]) -> bool:
    """Whether little is reconstructed at these points, as far as the suite has them, and little recognised above
    chance."""
    places = [place for point in points if (place := standing.points.get(point)) is not None]
    return bool(places) and all(place.leaked < LITTLE and _unrecognised(place) for place in places)


def _unrecognised(place: Place) -> bool:
    return (place.recognised or 0.0) - (place.chance or 0.0) < LITTLE


def _absent(standing: Standing) -> list[str]:
    """Where it lacks figures, and why: "type-0: not attacked in 9 conditions"."""
    whys = Counter((each.point, each.why) for each in standing.absent)
    return [
        f"{where}: {why.replace('-', ' ')} in {'one condition' if count == 1 else f'{count} conditions'}"
        for (where, why), count in whys.most_common()
    ]


def _setting(standing: Standing, name: str, base: float | None) -> str:
    """Its name, and what it costs: "`fed-cdp` 9 %† (ε 0.97, one example removed)"."""
    text, costs = f"`{name}`", list[str]()
    if standing.accuracy is not None:
        trains = base is None or standing.accuracy >= _TRAINS * base
        text += f" {share(standing.accuracy)}{'' if trains else _USELESS}"
    if standing.diverged:
        costs.append(f"{len(standing.diverged)} of {len(standing.costs)} nets diverged")
    if standing.epsilon is not None:
        costs.append(f"ε {epsilon(standing.epsilon)}, {standing.epsilon_of}")
    return f"{text} ({'; '.join(costs)})" if costs else text


def _proof(those: Sequence[Standing]) -> str:
    """The most that anybody recognises of them, where ε proves it of each."""
    ceilings = [each.points["type-0"].ceiling for each in those if "type-0" in each.points]
    known = [ceiling for ceiling in ceilings if ceiling is not None and ceiling < ALL]
    if not known or len(known) < len(ceilings):
        return "a lower bound: no ε proves it"
    least, most = fine(min(known)), fine(max(known))  # to whole percents a bound could fall below itself
    return f"by ε at most {most if least == most else f'{least} to {most}'}"


def _figures(those: Sequence[Standing]) -> list[str]:
    """What leaks of them at the server, and of the mean of some clients where that is more."""
    figures = []
    at = [each.points["type-0"] for each in those if "type-0" in each.points]
    if at:
        figures.append(_reconstructed(at))
    more = [mean for each in those if (mean := _more_of_the_mean(each)) is not None]
    if more:
        of = "" if len(more) == len(those) else f" for {len(more)} of {len(those)}"
        figures.append(f"of the mean {_rates(more)}{of}")
    if at and any(place.recognised is not None for place in at):
        figures.append(_recognised(at))
    return figures


def _more_of_the_mean(standing: Standing) -> Place | None:
    mean, place = standing.points.get("aggregate"), standing.points.get("type-0")
    return mean if mean is not None and place is not None and mean.leaked > place.leaked else None


def _reconstructed(places: Sequence[Place]) -> str:
    return f"reconstructed {_rates(places)}"


def _rates(places: Sequence[Place]) -> str:
    bound = "≥ " if any(place.lower_bound for place in places) else ""
    return bound + _range(place.leaked for place in places)


def _recognised(places: Iterable[Place]) -> str:
    return "recognised " + _range(place.recognised for place in places if place.recognised is not None)


def _range(values: Iterable[float]) -> str:
    """The least and the most of some shares: 0–37 %."""
    every = list(values)
    least, most = min(every), max(every)
    return share(most) if share(least) == share(most) else interval((least, most))
