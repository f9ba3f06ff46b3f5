"""Three sentences on detection, by a fixed rule from the rows."""

from collections.abc import Iterator, Sequence

from bench.detection.measure import Caught, Row
from bench.detection.thresholds import FALSE_ALARMS
from bench.errors import BenchError

COMPLETE = 0.5  # share of reconstructed examples
Dot = tuple[Row, str, Caught]  # with the name of the round


def dots(rows: Sequence[Row]) -> list[Dot]:
    """Return the dots of the detection picture, (row, name of the round, alarms): a dot for each round and each attack
    in `rows` that reconstructs examples. Attacks that only pick examples among candidates are left out. Raises
    `BenchError` if no attack reconstructs."""
    listed = [(row, name, caught) for row in rows if row.named is None for name, caught in row.caught.items()]
    if not listed:
        raise BenchError("no attack of the run reconstructs examples; bench run --matrix server has some")
    return listed


def uncaught(caught: Caught) -> bool:
    """Return whether the detectors in `caught` fail to catch the attack: their share of alarms is not significantly
    above the share of false alarms, 5 %. The lower end of its 95 % interval is then at most 5 %."""
    return caught.share().low <= FALSE_ALARMS


def corner(rows: Sequence[Row]) -> list[Dot]:
    """Select the attacks that are dangerous and hidden: uncaught in a round (`uncaught`), and able to reconstruct at
    least half of the examples. Return (row of `rows`, name of the round, alarms) for each such attack and round."""
    return [dot for dot in dots(rows) if uncaught(dot[2]) and dot[0].reconstructed.value >= COMPLETE]


def sentences(rows: Sequence[Row]) -> list[str]:
    """Summarise the detection of the attacks in `rows` by a client's detectors, in three sentences. The first gives the
    number of attacks with an alarm in every trial. The second names the attacks that reconstruct at least half of the
    examples without more alarms than false alarms. The third gives the mean share of alarms by round."""
    listed, hidden = dots(rows), corner(rows)
    always = sum(caught.share().value == 1 for _, _, caught in listed)
    return [
        f"Caught in every trial: {always} of {len(listed)} choices of weights, counted by attack and round.",
        "Uncaught and complete (no more alarms than false alarms, half of the examples or more): "
        + ("; ".join(map(_words_of, hidden)) if hidden else "no attack in any round")
        + ".",
        f"Caught on average, by round: {', '.join(_by_round(listed))}.",
    ]


def _words_of(dot: Dot) -> str:
    row, name, caught = dot
    return (
        f"{row.attack}, {name} round ({row.reconstructed.value:.0%} reconstructed, {caught.share().value:.0%} caught)"
    )


def _by_round(listed: Sequence[Dot]) -> Iterator[str]:
    for name in dict.fromkeys(name for _, name, _ in listed):
        shares = [caught.share().value for _, each, caught in listed if each == name]
        yield f"{name} {sum(shares) / len(shares):.0%}"
