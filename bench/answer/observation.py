"""Cell → the attacker's reading, and the harness's checks on the round: the trip without attack and scores."""

from bench.answer.checks import diagnose
from bench.answer.context import Memory, RunContext
from bench.answer.readings import take_reading
from bench.answer.setup import load_data, prepare
from bench.answer.truth import CellTruth, draw_truth
from bench.answer.values import Observation
from bench.answer.victims import batches_of
from bench.cell import AttackCell


def observe_cell(cell: AttackCell, truth: CellTruth, context: RunContext, memory: Memory) -> Observation:
    """Run the defended round and observe it at the cell's point.

    Raises `NotApplicable` for a cell that cannot run, or a reading refused by the attack.
    """
    setup = prepare(cell, context, memory)
    batches = batches_of(cell, setup, truth.victims, truth.point)
    reading = take_reading(cell, setup, truth, batches, memory.simulations)
    diagnosis = diagnose(cell, setup, truth, reading, batches)
    if len(truth.rows) < len(reading):
        reading, diagnosis = reading.of(truth.rows), diagnosis.of(truth.rows)
    return Observation(reading=reading, diagnosis=diagnosis)


def draw_and_observe(cell: AttackCell, context: RunContext, memory: Memory) -> Observation:
    """`observe_cell` with a new truth, for a process or a turn without a drawn truth."""
    return observe_cell(cell, draw_truth(cell, load_data(cell, context, memory), context.run), context, memory)
