"""The strongest knowledge of a defense that an attack accepts."""

from bench.cell import Knowledge

_STRONGEST_FIRST: tuple[Knowledge, ...] = ("adaptive", "black-box", "plain")


def strongest(attack: type) -> Knowledge:
    """Return the strongest knowledge of the defense that the attack class accepts: `adaptive` (its public description),
    otherwise `black-box` (runs of the round on chosen examples), otherwise `plain` (no knowledge). A matrix with
    `informed = true` gives this knowledge to each attack."""
    accepted = tuple(getattr(attack, "knowledge", ("plain",)))
    return next((each for each in _STRONGEST_FIRST if each in accepted), "plain")
