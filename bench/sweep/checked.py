"""The contract check for plug-in defenses, made during a run."""

from bench.answer.place import Here
from bench.cell import AnyCell
from bench.contracts.run import broken_contracts
from bench.isolation.foreign import foreign
from bench.isolation.helper import HelperDied
from bench.isolation.isolation import Isolation


def broken(cell: AnyCell, place: Here | Isolation) -> tuple[str, ...]:
    """Test the plug-in defense in `cell` (the experiment), for a remark in the record: return the contracts (tested
    promises, such as "draws by its key alone") that the defense breaks, with reasons; empty for the bench's own
    defenses. `place` runs the defense's code."""
    if isinstance(place, Here) or not foreign("defenses", cell.defense.name):
        return ()
    try:
        return place.ask(broken_contracts, "defenses", cell.defense)
    except HelperDied as error:
        return (f"all: {error}",)
