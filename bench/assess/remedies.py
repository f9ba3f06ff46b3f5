"""The same client behind families of defenses, each at the strength that the board calibrated for the server."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from bench.assess.client import Client
from bench.assess.recognition import SERVER, TRIALS, examples_behind, recognised
from bench.assess.result import Remedy
from bench.defenses.base import Defense
from bench.errors import BenchError, NotApplicable
from bench.leaderboard import tradeoff as board
from bench.matrix.typed import entries
from bench.record import tradeoff as values
from bench.record.tradeoff import AtLevel, Row, Tradeoff
from bench.reference.store import FOLDER
from bench.registry import entries as registry

FAMILIES = 5
_LEAST = 4  # trials for each defense


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of the board at its calibrated strength."""

    defense: str
    """The defense with its parameters, as typed after `--defense`."""
    level: str
    """Level of the strength; empty for a family without a strength."""
    kept: float
    """Share of the undefended accuracy that remains on the board."""
    note: str
    """The board's caveat; empty without caveat."""

    def measured(self, client: Client, trials: int, seed: int) -> Remedy:
        """Return the `client` behind this family in `trials` trials, with the board's accuracy."""
        (parsed,) = entries([self.defense], "--defense")
        params = {} if isinstance(parsed, str) else {key: value for key, value in parsed.items() if key != "name"}
        defense = registry.instance("defenses", parsed if isinstance(parsed, str) else parsed["name"], params)
        found = measured(client, defense, self.defense, trials, seed)
        note = "; ".join(each for each in (found.note, self.note) if each)
        return replace(found, level=self.level, kept=self.kept, note=note)


def families() -> tuple[Family, ...]:
    """Return five families of the shipped board for the listener `server`: the ranked families first, at the strength
    for L1, then families whose strength leaks later or hides nothing."""
    shipped = values.read(FOLDER / values.FILE)
    ((_, ranked),) = list(board.standings(shipped, SERVER.name).items())[:1]
    found = [_family(shipped, each.row, each.at.get("L1")) for each in ranked]
    return tuple(each for each in found if each is not None)[:FAMILIES]


def _family(shipped: Tradeoff, row: Row, useful: AtLevel | None) -> Family | None:
    at = useful or row.at("L1") or next((each for each in row.at_levels if each.level == "point"), None)
    if at is None:  # no strength in the family's range hides examples
        return None
    note = "" if useful is not None else board.reason(row, "L1")
    level = "" if at.value is None else "L1"
    return Family(defense=board.setting(row, at), level=level, kept=shipped.kept(row, at), note=note)


def remedies(client: Client, seconds: float, *, seed: int = 0) -> Iterator[Remedy]:
    """Yield the client as it is, then behind each family, in about `seconds`."""
    none: Defense = registry.instance("defenses", "none", {})
    began = time.monotonic()
    measured(client, none, "none", 1, seed)
    fit = int(seconds / (1 + FAMILIES) / (time.monotonic() - began))
    trials = min(TRIALS, max(_LEAST, fit))
    yield measured(client, none, "none", trials, seed)
    for family in families():
        yield family.measured(client, trials, seed)


def measured(client: Client, defense: Defense, name: str, trials: int, seed: int) -> Remedy:
    """Return the `client` behind a `defense` with the `name`, measured in `trials` trials; the board has no figures."""
    try:
        figure, note = recognised(client, defense, trials=trials, seed=seed), ""
    except (BenchError, NotApplicable) as error:
        figure, note = None, str(error)
    return Remedy(defense=name, level="", recognised=figure, kept=1.0 if name == "none" else None, note=note)


def of_what(client: Client) -> str:
    """Return the reading behind `remedies`, in words."""
    return (
        f"the gradient over {examples_behind(client)} of the client's examples, for an attacker who knows the defense, "
        "the label and all other examples; strength and accuracy are the board's (MNIST, mlp, 120 examples a client)"
    )
