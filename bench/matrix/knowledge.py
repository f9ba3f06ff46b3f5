"""The strongest knowledge of a defense that an attack accepts."""

from bench.cell import Knowledge

_STRONGEST_FIRST: tuple[Knowledge, ...] = ("adaptive", "black-box", "plain")


def strongest(attack: type) -> Knowledge:
    """Return `adaptive` if the attack class accepts it, else `black-box`, else `plain`."""
    accepted = tuple(getattr(attack, "knowledge", ("plain",)))
    return next((each for each in _STRONGEST_FIRST if each in accepted), "plain")
