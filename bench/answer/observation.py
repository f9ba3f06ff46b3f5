"""Observe a cell (an experiment): run the defended round, take the attacker's readings, and check them."""

from collections.abc import Sequence

from bench.answer.checks import diagnose
from bench.answer.context import Memory, RunContext
from bench.answer.crafted import choices, choose, received, server_of
from bench.answer.readings import take_reading
from bench.answer.setup import Setup, combined_rounds, load_data, prepare
from bench.answer.truth import CellTruth, draw_truth
from bench.answer.values import Observation
from bench.answer.victims import batches_of
from bench.cell import AttackCell
from bench.federated.batches import Batches
from bench.trip import Reading, Server, Tensors


def observe_cell(
    cell: AttackCell, truth: CellTruth, context: RunContext, memory: Memory, crafted: Sequence[Tensors] = ()
) -> Observation:
    """Run the defended round of the cell (an experiment) on its true examples `truth`; return the attacker's readings
    (observed updates) at the cell's interception point, with their checks (`Diagnosis`). In a cascade (attacks one
    after the other), readings whose examples all leaked to earlier attacks are left out.

    - `context`: the run's folders, device and limits.
    - `memory`: simulated readings that the worker keeps between cells.
    - `crafted`: model weights that an attacking server (grant `server`) has already chosen, name → (*shape) for each
      choice. Empty: the attack chooses them now if granted.

    Raises `NotApplicable` for a cell that cannot run, or if the attack refuses the readings, and `PluginError` for
    wrong weights."""
    setup = prepare(cell, truth.source, context)
    batches = batches_of(cell, setup, truth.victims, truth.point)
    sent, seen = attacked_rounds(cell, setup, truth, batches, crafted)
    if sent:
        setup = sent[-1]
    rounds = sent if cell.grants.varies else combined_rounds(cell, setup, context)
    reading = take_reading(cell, setup, truth, batches, memory.simulations, rounds, seen)
    diagnosis = diagnose(cell, setup, truth, reading, batches)
    if len(truth.rows) < len(reading):
        reading, diagnosis = reading.of(truth.rows), diagnosis.of(truth.rows)
    return Observation(reading=reading, diagnosis=diagnosis)


def attacked_rounds(
    cell: AttackCell, setup: Setup, truth: CellTruth, batches: Sequence[Batches], crafted: Sequence[Tensors] = ()
) -> tuple[list[Setup], Reading | None]:
    """Let an attacking server choose the weights that clients receive in the rounds of `cell` (an experiment). Return
    two values: the setup of each round, `setup` with the chosen weights, and the readings (observed updates) that the
    server saw before its last choice (None if it chose no weights after a round).

    The list of setups has an item for each round with the grant `server = "rounds"`, a single item if the server
    chooses the same weights for all rounds, and no item for a server that only listens.

    - `setup`: the values for the round, with honest weights.
    - `truth`, `batches`: true examples, and the clients' batches, for the readings that the server sees between rounds.
    - `crafted`: weights that the attack has already chosen, name → (*shape) for each choice; it chooses the remaining
      weights now.

    Raises `PluginError` for wrong weights, and `NotApplicable` if the attack cannot choose weights."""
    sent, seen = [received(cell, setup, weights) for weights in crafted], None
    while len(sent) < choices(cell):
        if sent:
            seen = take_reading(cell, setup, truth, batches, None, sent, seen)
        sent.append(received(cell, setup, choose(cell, server_of(cell, setup, truth, seen))))
    return sent, seen


def known_to_server(cell: AttackCell, context: RunContext, memory: Memory, crafted: Sequence[Tensors] = ()) -> Server:
    """Return the knowledge of the attacking server before the next round of the cell (an experiment), for an attack
    that chooses the weights in another process. Earlier rounds of the cell are run with the weights in `crafted`.

    - `context`: the run's folders, device and limits.
    - `memory`: data sets that the worker keeps between cells.
    - `crafted`: the server's weights in the rounds before, name → (*shape) for each round."""
    truth = draw_truth(cell, load_data(cell, context, memory), context.run)
    setup = prepare(cell, truth.source, context)
    batches = batches_of(cell, setup, truth.victims, truth.point)
    sent = [received(cell, setup, weights) for weights in crafted]
    seen = take_reading(cell, setup, truth, batches, None, sent) if sent else None
    return server_of(cell, setup, truth, seen)


def draw_and_observe(
    cell: AttackCell, context: RunContext, memory: Memory, crafted: Sequence[Tensors] = ()
) -> Observation:
    """Draw the true examples of the cell (an experiment), run the defended round, and return the attacker's readings
    (observed updates) with their checks.

    - `context`: the run's folders, device and limits.
    - `memory`: data sets and simulated readings that the worker keeps between cells.
    - `crafted`: model weights that an attacking server (grant `server`) has already chosen, name → (*shape) for each
      choice. Empty: the attack chooses them now if granted.

    Raises `NotApplicable` for a cell that cannot run, or if the attack refuses the readings."""
    truth = draw_truth(cell, load_data(cell, context, memory), context.run)
    return observe_cell(cell, truth, context, memory, crafted)
