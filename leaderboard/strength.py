"""Flag defenses that change updates less in their training than in the attacked round.

Attacks read a single round, but accuracy and ε belong to a whole training. Such a defense would combine a low success
rate from the attacked round with a high accuracy from the training."""

from collections.abc import Iterable, Sequence

from bench.cell import AttackCell, Federated, TrainingCell
from bench.leaderboard.conditions import data_and_model
from bench.leaderboard.flags import OTHER_STRENGTH, ROUND_DEPENDENT, Flag
from bench.leaderboard.worst import GRADIENT_FREE, SNR_CAP_DB, WorstCase
from bench.points import POINTS, Scope
from bench.record.names import entry_text
from bench.record.schema import Record, Spot, TrainingResult
from bench.registry.mixing import mixes_alone

WEAKER = 0.25  # ratio of squared changes: half the noise
ROUNDING = 1e-9  # ratio of squared norms: no change
Trained = tuple[TrainingCell, TrainingResult]


def trained_with(records: Iterable[Record]) -> dict[tuple[str, str], list[Trained]]:
    """Group the finished trainings in `records` (results of experiments) by data, model and defense, to compare them
    with attacks. Return (data and model as JSON, defense) → trainings, each as (cell, result); a cell is an
    experiment's configuration."""
    trained: dict[tuple[str, str], list[Trained]] = {}
    for record in records:
        if isinstance(record.cell, TrainingCell) and record.training is not None:
            key = data_and_model(record.cell), entry_text(record.cell.defense)
            trained.setdefault(key, []).append((record.cell, record.training))
    return trained


def strength(point: str, worst: WorstCase, trained: Sequence[Trained]) -> list[Flag]:
    """Return flags (warnings) if a defense changes updates less in its trainings than in the attacked readings
    (observed updates). The low success rate and the high accuracy would then belong to different strengths.

    - `point`: name of the attackers' interception point.
    - `worst`: results of all attacks on the defense at the point.
    - `trained`: trainings with the defense, each as (cell, result), from `trained_with`.

    Random noise must not be clearly weaker in training. Masks, clips and mixtures depend on gradients and examples: a
    flag is raised only if these change nothing in training. Points inside the client are not compared."""
    if not worst.attacked or POINTS[point].scope not in (Scope.UPDATE, Scope.AGGREGATE):
        return []
    answered = [r for each in worst.records.values() for r in each if r.attack is not None]
    random = any(r.attack.conditions.random for r in answered if r.attack is not None)
    cell = answered[0].cell if answered else None  # all have the same defense
    if isinstance(cell, AttackCell) and mixes_alone(cell):
        random = False
    looked = [(cell, result) for cell, result in trained if result.spots]
    later = (_later(result, point, random=random) for _, result in looked)
    elsewhere = (_elsewhere(cell, result.spots[0], point, worst, random=random) for cell, result in looked)
    texts = {ROUND_DEPENDENT: next(filter(None, later), None), OTHER_STRENGTH: next(filter(None, elsewhere), None)}
    return [Flag(code, text) for code, text in texts.items() if text]


def _later(result: TrainingResult, point: str, *, random: bool) -> str | None:
    """Return a flag's text if a later training round changes updates at `point` less than the first; None otherwise.
    For a defense with random noise (`random`), less means a squared change below `WEAKER` times the first round's,
    absolutely and as a share of the update, after the decay of noise that ε counts. Otherwise, less means no change at
    all."""
    first = result.spots[0]
    before, least = _share(first, point), WEAKER * _decay(result)
    for spot in result.spots[1:]:
        now = _share(spot, point)
        less = spot.changes[point] < least * first.changes[point] and now < least * before
        if (less and before > ROUNDING) if random else (_idle(spot) and not _idle(first)):
            return (
                f"at {point} the defense changes less in round {spot.round} of its training than in round "
                f"{first.round}: {_words(now, before)}"
            )
    return None


def _elsewhere(cell: TrainingCell, first: Spot, point: str, worst: WorstCase, *, random: bool) -> str | None:
    """Return a flag's text if the first training round changes updates less than the attacked round; None otherwise.
    The change at `point` must be smaller by three measures: in gradient units, in the sent update's units, and as a
    share of the squared norm. `random` is True for a defense with random noise: an update averaged over more examples
    and steps may then have proportionally less noise."""
    if POINTS[point].scope is not Scope.UPDATE:
        return None
    now, unit, rows = _share(first, point), cell.federated.unit, _rows(cell.federated)
    for record in (r for name, each in worst.records.items() if not name.startswith(GRADIENT_FREE) for r in each):
        attacked, result = record.cell, record.attack
        if not isinstance(attacked, AttackCell) or result is None:
            continue
        snr, norm = result.distortion.snr_db_median, result.conditions.gradient_norm_median
        if snr is None or snr >= SNR_CAP_DB or norm is None:
            continue
        there, least = 10 ** (-snr / 10), WEAKER * min(1.0, _rows(attacked.federated) / rows)
        ratio = first.changes[point] / (there * norm**2)
        less = ratio < least and ratio * (unit / attacked.federated.unit) ** 2 < least and now < least * there
        if less if random else _idle(first):
            words = f"at {point} the defense changes less in its training than where it is attacked"
            return f"{words}: {_words(now, there)}"
    return None


def _idle(spot: Spot) -> bool:
    return all(_share(spot, point) < ROUNDING for point in spot.changes)


def _decay(result: TrainingResult) -> float:
    """Return the noise variance σ² in the last round divided by σ² in the first round, as counted in ε; at most 1."""
    pairs = [each.multiplier for each in result.privacy.figures if each.multiplier and each.multiplier[0]]
    return min((min(1.0, (last / first) ** 2) for first, last in pairs), default=1.0)


def _share(spot: Spot, point: str) -> float:
    return spot.changes[point] / spot.signal if spot.signal else float("inf")


def _rows(federated: Federated) -> int:
    return federated.batch * federated.steps


def _words(now: float, before: float) -> str:
    return f"by {now:.2g} of the squared norm, {before:.2g} there"
