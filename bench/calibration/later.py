"""Strengths at trained weights: raise a strength calibrated in the first round, until it also meets its level halfway
through a training.

A training with a stronger defense has other weights, so each measured strength has separate trainings."""

from collections.abc import Callable, Iterable, Sequence

from bench.calibration.ladder import next_trained, raised
from bench.calibration.measure import TUNING, Federation, Runner, at, draw_of, listed, missing_figure, trained_cells
from bench.calibration.run import LEVELS_OF, Listener
from bench.calibration.trainings import trainings
from bench.matrix.expand import FactsOf
from bench.matrix.read import Matrix

# Seeds of the trainings whose weights are attacked for the calibration. Trainings differ more than readings of one
# training: four trainings determine a strength to a factor of 1.6, 16 trainings to 1.1.
TRAINED = tuple(range(201, 217))


def hold_later(
    matrix: Matrix,
    federation: Federation,
    listeners: Iterable[Listener],
    facts: FactsOf,
    run: Runner,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Raise the calibrated strengths in `listeners` until they meet the same levels (largest permitted shares of named
    examples) at trained weights, too. A level without such a strength has the position None afterwards.

    - `matrix`, `federation`: the calibration's matrix; the attacks and trainings of a data set and model in it.
    - `listeners`: measurements of defense families at interception points; changed in place.
    - `facts`: function that returns a data set's properties.
    - `run`: function that runs cells (experiments) and returns their records (results).
    - `say`: function that gets a line of progress per turn."""
    open_ = tuple(each for each in listeners if each.strength is not None and _first(each))
    while wanted := [(listener, position) for listener in open_ for position in _wanted(listener)]:
        say(f"trained weights: {listed(at(listener.defense, position) for listener, position in wanted)}")
        _measure(matrix, federation, wanted, facts, run)
    for listener in open_:
        if listener.absent is None:
            _raise(listener)


def _first(listener: Listener) -> dict[float, float]:
    """Return level → position in the first round, for the levels of a board that the family reaches."""
    results = [listener.calibrated[level] for level in LEVELS_OF[listener.question] if level in listener.calibrated]
    return {each.level: each.position for each in results if each.position is not None}


def _wanted(listener: Listener) -> tuple[float, ...]:
    if listener.absent is not None:
        return ()
    assert listener.strength is not None
    diverged = [position for position, records in listener.trained.items() if not records]
    counts = listener.trained_counts
    if diverged and not counts:
        return ()
    return next_trained(counts, _first(listener), listener.chance, listener.strength, diverged)


def _measure(
    matrix: Matrix, federation: Federation, wanted: Sequence[tuple[Listener, float]], facts: FactsOf, run: Runner
) -> None:
    defenses = [at(listener.defense, position) for listener, position in wanted]
    trained = trainings(matrix, federation, defenses, TRAINED, facts, run, halfway=True)
    planned = [
        trained_cells(matrix, listener.attacks(federation), defense, records, TUNING, facts, draw_of(position))
        for (listener, position), defense, records in zip(wanted, defenses, trained, strict=True)
    ]
    records = run([cell for cells in planned for cell in cells])
    for (listener, position), cells in zip(wanted, planned, strict=True):
        answered = tuple(records[item.cell.id] for item in cells)
        if (missing := missing_figure(answered)) is not None:
            listener.absent = missing  # otherwise each turn would want the same strength again
            listener.calibrated.clear()
        else:
            listener.trained[position] = answered


def _raise(listener: Listener) -> None:
    counts = listener.trained_counts
    assert listener.strength is not None
    for level in LEVELS_OF[listener.question]:
        first = listener.calibrated.get(level)
        if not counts or first is None or first.position is None:
            continue
        result = raised(counts, first.level, first.position, listener.chance, listener.strength)
        if result.position != first.position:  # otherwise the first round decides, with its interval
            listener.calibrated[level] = result
