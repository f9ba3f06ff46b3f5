"""Summary of a defense's place on a suite's board in four lines, with a picture."""

from collections.abc import Iterator
from pathlib import Path

from bench.leaderboard.forms.numbers import epsilon, fine, interval, rate, share
from bench.leaderboard.standings import Standing, beside, nearest, neighbours
from bench.reference.beside import Joined


def lines(joined: Joined, defense: str) -> Iterator[tuple[str, str]]:
    """Yield a summary of a `defense` on a suite's board (table of defenses) in four lines, each (heading, text): rank,
    leakage at each interception point, cost, and nearest published defense. `joined` holds the board."""
    at = next(each for each in joined.standings if each.defense == defense)
    above, below = neighbours(joined.standings, defense)
    between = " and ".join(each.defense for each in (above, below) if each is not None)
    if at.faults:
        rank = f"none: it does not do what it states ({', '.join(at.faults)}; `bench check`)"
    elif at.missing:
        rank = f"none: {at.missing} of the suite's figures are missing or incomplete, the first {at.absent[0]}"
    else:
        place = "between" if above and below else "next to"
        rank = f"{at.rank} of {len(joined.standings)} on {joined.version}, {place} {between}"
    yield "rank", rank
    yield "leaks", _leaks(at)
    yield "costs", _costs(at)
    if (other := nearest(joined.rows, defense, _published(joined))) is not None:
        yield "nearest", f"{other}: {_difference(joined, defense, other)}"


def _published(joined: Joined) -> list[str]:
    return [each.defense for each in joined.standings if not each.own]


def _leaks(at: Standing) -> str:
    figures = []
    for point, place in at.points.items():
        recognised = "" if place.recognised is None else f", recognised {fine(place.recognised)}"
        leaked = rate(place.leaked, lower_bound=place.lower_bound)
        figures.append(f"{point} {leaked} [{interval(place.interval)}{recognised}]")
    worst = max(at.points.values(), key=lambda place: place.most, default=None)
    where = f"; most, {share(worst.most)}: {worst.where}" if worst is not None and worst.most else ""
    return ", ".join(figures) + where


def _costs(at: Standing) -> str:
    if not at.costs:
        return "not trained: the suite's trainings are missing"
    lost = "" if at.lost is None else f" ({-100 * at.lost:+.0f} points)".replace("-", "−")
    diverged = f"; {len(at.diverged)} of {len(at.costs)} trainings diverged" if at.diverged else ""
    spent = f"ε {epsilon(at.epsilon)}, {at.epsilon_of}" if at.epsilon is not None else "no ε"
    step = "" if at.overhead is None else f", a client's step {at.overhead:.1f}×"
    return f"accuracy {share(at.accuracy)}{lost}{diverged}, {spent}{step}"


def _difference(joined: Joined, defense: str, other: str) -> str:
    each = beside(joined.records, joined.rows, defense, other)
    if not each:
        return "no victims in common"
    most = max(each, key=lambda point: abs(point.difference))
    low, high = most.interval
    if low <= 0 <= high:
        words = f"no difference shown on the same {most.examples} victims"
    else:
        words = f"{'more' if most.difference > 0 else 'less'} leaks here on the same {most.examples} victims"
    points = f"{100 * most.difference:+.0f} points [{100 * low:+.0f}, {100 * high:+.0f}]".replace("-", "−")
    return f"{words}, {points} at {most.point}, the largest of {len(each)} points"


def picture(joined: Joined, defense: str, run: Path) -> Path | None:
    """Return the path of a picture of true examples and reconstructions in the run folder `run`, from the interception
    point with the highest success rate against the `defense`; None without a picture. `joined` holds the board (table
    of defenses)."""
    rows = [row for row in joined.rows if row.defense == defense and row.worst is not None]
    for row in sorted(rows, key=lambda row: -(row.worst.asr or 0.0) if row.worst else 0.0):
        for cell in row.cells:
            if (path := run / "pictures" / f"{cell}.png").exists():
                return path
    return None
