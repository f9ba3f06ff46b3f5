"""Observe a cell (an experiment): run the defended round, take the attacker's readings, and check them."""

from bench.answer.checks import diagnose
from bench.answer.context import Memory, RunContext
from bench.answer.crafted import choose, received, server_of
from bench.answer.readings import take_reading
from bench.answer.setup import load_data, prepare
from bench.answer.truth import CellTruth, draw_truth
from bench.answer.values import Observation
from bench.answer.victims import batches_of
from bench.cell import AttackCell
from bench.trip import Tensors


def observe_cell(
    cell: AttackCell, truth: CellTruth, context: RunContext, memory: Memory, crafted: Tensors | None = None
) -> Observation:
    """Run the defended round of the cell (an experiment) on its true examples `truth`; return the attacker's readings
    (observed updates) at the cell's interception point, with their checks (`Diagnosis`). In a cascade (attacks one
    after the other), readings whose examples all leaked to earlier attacks are left out.

    - `context`: the run's folders, device and limits.
    - `memory`: data sets and simulated readings that the worker keeps between cells.
    - `crafted`: model weights that an attacking server (grant `server`) has already chosen, name → (*shape). None: the
      attack chooses them now if granted.

    Raises `NotApplicable` for a cell that cannot run, or if the attack refuses the readings, and `PluginError` for
    wrong weights."""
    setup = prepare(cell, context, memory)
    if cell.grants.server != "listen":
        setup = received(cell, setup, crafted or choose(cell, server_of(cell, setup, truth)))
    batches = batches_of(cell, setup, truth.victims, truth.point)
    reading = take_reading(cell, setup, truth, batches, memory.simulations)
    diagnosis = diagnose(cell, setup, truth, reading, batches)
    if len(truth.rows) < len(reading):
        reading, diagnosis = reading.of(truth.rows), diagnosis.of(truth.rows)
    return Observation(reading=reading, diagnosis=diagnosis)


def draw_and_observe(
    cell: AttackCell, context: RunContext, memory: Memory, crafted: Tensors | None = None
) -> Observation:
    """Draw the true examples of the cell (an experiment), run the defended round, and return the attacker's readings
    (observed updates) with their checks.

    - `context`: the run's folders, device and limits.
    - `memory`: data sets and simulated readings that the worker keeps between cells.
    - `crafted`: model weights that an attacking server (grant `server`) has already chosen, name → (*shape). None: the
      attack chooses them now if granted.

    Raises `NotApplicable` for a cell that cannot run, or if the attack refuses the readings."""
    truth = draw_truth(cell, load_data(cell, context, memory), context.run)
    return observe_cell(cell, truth, context, memory, crafted)
