"""The assessed client behind shipped families of defenses, each at the strength calibrated for an attacker at the
server."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bench.assess.client import Client
from bench.assess.recognition import SERVER, TRIALS, examples_behind, recognised
from bench.assess.result import Remedy
from bench.defenses.base import Defense
from bench.errors import BenchError, NotApplicable
from bench.leaderboard import tradeoff as board
from bench.matrix.typed import entries, split
from bench.record.tradeoff import Tradeoff
from bench.reference.tradeoff import shipped_tradeoff
from bench.registry import entries as registry

FAMILIES = 5
_LEAST = 4  # trials for each defense


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A shipped family of defenses (a defense at all its strengths), at the strength calibrated against an attacker at
    the server."""

    defense: str
    """The defense with its parameters, as typed after `--defense`."""
    level: str
    """Level (`L1` or `L2`, a bound on the share of recognised examples) for which the strength is calibrated; empty for
    a family without a strength."""
    kept: float
    """Share of the undefended test accuracy that remains with the defense, from the shipped trade-off (measurements of
    accuracy and leakage for each family), in [0, 1]."""
    note: str
    """Caveat about the family from the shipped trade-off; empty without caveat."""

    def measured(self, client: Client, trials: int, seed: int) -> Remedy:
        """Measure the share of the client's examples that an attacker recognises (picks among candidates) behind this
        family, in `trials` trials drawn by `seed`. The returned `Remedy` also has the family's accuracy from the
        shipped trade-off."""
        (parsed,) = entries([self.defense], "--defense")
        defense = registry.instance("defenses", *split(parsed))
        found = measured(client, defense, self.defense, trials, seed)
        note = "; ".join(each for each in (found.note, self.note) if each)
        return replace(found, level=self.level, kept=self.kept, note=note)


def families() -> tuple[Family, ...]:
    """Return the defense families with which an assessment compares a client's update: at most five of those shipped,
    each at the strength calibrated against an attacker at the server. First come the families that meet the level L1 (a
    bound on the share of recognised examples), best rank first, then families that leak later in training or hide no
    examples. Empty if no trade-off is shipped."""
    shipped = shipped_tradeoff()
    if shipped is None:
        return ()
    ((_, ranked),) = list(board.standings(shipped, SERVER.name).items())[:1]
    found = [_family(shipped, each) for each in ranked]
    return tuple(each for each in found if each is not None)[:FAMILIES]


def _family(shipped: Tradeoff, standing: board.Standing) -> Family | None:
    row, useful = standing.row, standing.at.get("L1")
    at = useful or row.at("L1") or next((each for each in row.at_levels if each.level == "point"), None)
    if at is None:  # no strength in the family's range hides examples
        return None
    note = "" if useful is not None else board.reason(standing, "L1")
    level = "" if at.value is None else "L1"
    return Family(defense=board.setting(row, at), level=level, kept=shipped.kept(row, at), note=note)


def trials_within(client: Client, seconds: float, *, seed: int = 0) -> tuple[int, float]:
    """Return how many trials of `remedies`, for each defense, fit into `seconds` (at least 4), and the seconds that all
    trials will take. A first trial for each defense of `client` is timed on this machine. `seed` draws the trials."""
    none: Defense = registry.instance("defenses", "none", {})
    measured(client, none, "none", 1, seed)  # the first call is slower
    began = time.monotonic()
    for _ in remedies(client, 1, seed=seed):
        pass
    each = time.monotonic() - began
    trials = min(TRIALS, max(_LEAST, int(seconds / each)))
    return trials, trials * each


def remedies(client: Client, trials: int, *, seed: int = 0) -> Iterator[Remedy]:
    """Yield a `Remedy` with the share of the client's examples that an attacker recognises (picks among candidates):
    first without a defense, then behind each shipped family of defenses, in `trials` trials each, drawn by `seed`."""
    yield measured(client, registry.instance("defenses", "none", {}), "none", trials, seed)
    for family in families():
        yield family.measured(client, trials, seed)


def measured(client: Client, defense: Defense, name: str, trials: int, seed: int) -> Remedy:
    """Measure the share of the client's examples that an attacker recognises (picks among candidates) behind `defense`,
    in `trials` trials drawn by `seed`. `name` is the defense's name in the result. The result gives no accuracy
    (`kept`). If the measurement is impossible, the result's `note` gives the reason."""
    try:
        figure, note = recognised(client, defense, trials=trials, seed=seed), ""
    except (BenchError, NotApplicable) as error:
        figure, note = None, str(error)
    return Remedy(defense=name, level="", recognised=figure, kept=1.0 if name == "none" else None, note=note)


def of_what(client: Client) -> str:
    """Return a text for the report that describes the gradient on which defenses for `client` are compared, such as the
    number of examples behind it."""
    return (
        f"the gradient over {examples_behind(client)} of the client's examples, for an attacker who knows the defense, "
        "the label and all other examples; strength and accuracy are the board's (MNIST, mlp, 120 examples a client)"
    )
