"""Cell → what its attacker holds, and the harness's checks of it: the defended round, without attack and score."""

from dataclasses import dataclass

from bench.answer.checks import Diagnosis, diagnose
from bench.answer.context import Memory, RunContext
from bench.answer.gallery import granted_gallery
from bench.answer.readings import take_reading
from bench.answer.reconstruct import attacker_of
from bench.answer.setup import prepare
from bench.answer.victims import batches_of, draw_victims, trained_at, truth_at
from bench.cell import AttackCell
from bench.points import point as point_of
from bench.record.cascade import left
from bench.trip import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is attacked of a cell's readings, and what the harness alone knows of all of them."""

    reading: Reading
    diagnosis: Diagnosis


def observe_cell(cell: AttackCell, context: RunContext, memory: Memory) -> Observation:
    """Run the cell's round with its defense and read what its point shows.

    Raises `NotApplicable` where it cannot be run or the attack refuses the reading.
    """
    point = point_of(cell.point)
    setup = prepare(cell, context, memory)  # data, model, weights, clients, the defense's stages
    victims = draw_victims(cell, setup.source, point)
    batches = batches_of(cell, setup, victims, point)
    truth = truth_at(victims, point)
    gallery = granted_gallery(cell, setup.data, truth)
    # all that the attacker holds
    reading = take_reading(cell, setup, point, victims, batches, memory.simulations, gallery)
    attacker = attacker_of(cell, reading)
    trained = trained_at(cell, setup, victims, point)
    diagnosis = diagnose(cell, setup, point, reading, batches, attacker, truth, trained, gallery)
    rows = left(cell, context.run)
    return Observation(reading=reading if len(rows) == len(reading) else reading.of(rows), diagnosis=diagnosis)
