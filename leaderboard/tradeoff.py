"""Standings by accuracy at equal leakage: for a listener, the families that hide examples, the most accurate first."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bench.errors import BenchError
from bench.record.tradeoff import LEVELS, PROVED, PROVED_ALL, AtLevel, Row, Tradeoff

# name on the command line → (interception point, meaning)
LISTENERS = {
    "inside": ("type-2", "inside the client: the gradient of one example"),
    "client": ("type-1", "the update that leaves the client"),
    "server": ("type-0", "the update at the server"),
    "mean": ("aggregate", "the mean of the clients of a round"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A family's place on the board of one listener and one federation."""

    row: Row
    """The family's figures."""
    rank: int | None
    """Rank from 1, by accuracy at L1, then at L2; None: the family reaches no level."""
    at: dict[str, AtLevel]
    """Level → figures, for levels that the family reaches with a useful accuracy, at trained weights, too."""
    kept: dict[str, float]
    """Level → share of the undefended accuracy that remains."""


def listener_of(name: str) -> str:
    """Return the interception point of the listener `name`; raises `BenchError` for an unknown name."""
    if name not in LISTENERS:
        raise BenchError(f"--listener {name}: there are {', '.join(LISTENERS)}")
    return LISTENERS[name][0]


def rows_at(tradeoff: Tradeoff, point: str) -> tuple[Row, ...]:
    """Return the families whose reading at `point` differs from the undefended reading, with figures."""
    return tuple(row for row in tradeoff.rows if row.absent is None and point in (row.point, *row.also))


def standings(tradeoff: Tradeoff, point: str) -> dict[tuple[str, str], tuple[Standing, ...]]:
    """Return (data set, model) → standings of the families at `point`, ranked families first."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows_at(tradeoff, point):
        groups.setdefault((row.dataset, row.model), []).append(row)
    return {key: _ranked(tradeoff, rows) for key, rows in groups.items()}


def _ranked(tradeoff: Tradeoff, rows: Iterable[Row]) -> tuple[Standing, ...]:
    found = []
    for row in rows:
        at, kept = {}, {}
        for level in LEVELS:
            for figures in (row.at(level), row.at(PROVED)):  # what ε proves for L1 holds for L2, too
                if figures is not None and tradeoff.useful(row, figures) and not figures.leaks_later:
                    at[level], kept[level] = figures, tradeoff.kept(row, figures)
                    break
        found.append(Standing(row=row, rank=None, at=at, kept=kept))
    found.sort(key=lambda each: ([-each.kept.get(level, 0.0) for level in LEVELS], each.row.family))
    return tuple(replace(each, rank=number if each.at else None) for number, each in enumerate(found, 1))


def advised(standings: Sequence[Standing], level: str, loss: float) -> tuple[Standing, ...]:
    """Return the standings that reach `level` with an accuracy loss of at most `loss`, in points of the undefended
    accuracy (0 to 100)."""
    return tuple(each for each in standings if level in each.kept and 100 * (1 - each.kept[level]) <= loss)


def reason(row: Row, level: str) -> str:
    """Return the reason in words why the family in `row` does not reach `level`."""
    at = row.at(level)
    if at is not None and at.leaks_later and at.trained is not None:
        return f"{strength(row, at)}: {at.trained[0]:.0%} named later"
    shares = [each.share for each in row.curve]
    if row.parameter is None and shares:
        return f"{shares[0]:.0%} named"
    if shares and not row.at_levels:
        return f"{min(shares):.0%} named at the strongest"
    return "no useful strength"


def proof(tradeoff: Tradeoff, row: Row, level: str = PROVED) -> str:
    """Return the weakest strength at which ε proves L1 for a `row` of the trade-off, with the accuracy kept there, such
    as `✓ 1.3, 94%`; a dash if no strength does.  `level` is `proved` or `proved-all`."""
    at = row.at(level)
    return "–" if at is None else f"✓ {at.value:.3g}, {tradeoff.kept(row, at):.0%}"


def ceilings(row: Row, at: AtLevel) -> str:
    """Return the largest shares of named examples by ε for figures `at` of a `row`: with one reading of a client and
    with all, such as `≤ 6.4%, ≤ 41%`; a dash without ε."""
    if at.ceiling is None:
        return "–"
    every = "" if at.ceiling_all is None or row.uploads == 1 else f", ≤ {at.ceiling_all:.0%}"
    return f"≤ {at.ceiling:.1%}{every}"


def worst(at: AtLevel) -> float:
    """Return the larger share of named examples among scoring victims: in the first round or at trained weights."""
    return at.share if at.trained is None else max(at.share, at.trained[0])


def area(tradeoff: Tradeoff, row: Row) -> float | None:
    """Return the normalised area under the front of a `row`, in [0, 1]: the largest share of the undefended accuracy
    that a measured strength keeps with at most x of the examples named, averaged over x from κ to 1.  None for a row
    without trainings."""
    if row.chance is None or not row.at_levels:
        return None
    points = sorted((max(worst(at), row.chance), min(1.0, tradeoff.kept(row, at))) for at in row.at_levels)
    ends = [*(named for named, _ in points[1:]), 1.0]
    total, best = 0.0, 0.0
    for (named, kept), end in zip(points, ends, strict=True):
        best = max(best, kept)
        total += best * (end - named)
    return total / (1 - row.chance)


def capability(tradeoff: Tradeoff, row: Row) -> float | None:
    """Return the largest Defense Capability Score of a `row` over its measured strengths, in [0, 1], with β = .5
    (VFLAIR, Zou et al., ICLR 2024).  The attack's performance is the share of named examples, κ at best for a defense;
    the main task's performance is the test accuracy.  None for a row without trainings."""
    if row.chance is None or not row.at_levels:
        return None
    undefended = tradeoff.undefended_mean(row.dataset, row.model)
    distances = [
        math.sqrt(((worst(at) - row.chance) ** 2 + (at.accuracy - undefended) ** 2) / 2) for at in row.at_levels
    ]
    return 1 / (1 + min(distances))


def proofs(tradeoff: Tradeoff, standings: Iterable[Standing], level: str = PROVED) -> list[tuple[float, Row, AtLevel]]:
    """Return (accuracy kept, family, figures) of each of the `standings` in `tradeoff` for which ε proves L1 with a
    useful accuracy, the most accurate first.  `level` is `proved` or `proved-all`."""
    proved = [(each.row, at) for each in standings if (at := each.row.at(level)) and tradeoff.useful(each.row, at)]
    return sorted(((tradeoff.kept(row, at), row, at) for row, at in proved), key=lambda each: -each[0])


def strength(row: Row, at: AtLevel) -> str:
    """Return the strength of figures `at` for a table, such as `sigma = 0.8`; a dash for a `row` without a strength."""
    return "–" if at.value is None or row.parameter is None else f"{row.parameter} = {at.value:.3g}"


def setting(row: Row, at: AtLevel) -> str:
    """Return the defense of figures `at` as typed after `--defense`, such as `dp-sgd:clip=0.5,sigma=0.8`; `row` is the
    family's."""
    name, _, rest = row.family.partition("(")
    params = [part.strip().replace(" ", "") for part in rest.rstrip(")").split(", ") if part]
    params = [part for part in params if not part.endswith("=None")]
    if at.value is not None and row.parameter is not None:
        params.append(f"{row.parameter}={at.value:.4g}")
    return f"{name}:{','.join(params)}" if params else name


def findings(tradeoff: Tradeoff, point: str) -> tuple[str, ...]:
    """Return sentences on the listener at `point`, for each federation: families that hide nothing, families that hide
    examples, and the cost; by one rule from the figures."""
    lines = []
    for (dataset, model), each in standings(tradeoff, point).items():
        hidden = [one for one in each if "L1" in one.at]
        proved = proofs(tradeoff, each)
        leaks = [one.row.family for one in each if not one.at]
        where = f"{dataset}, {model}"
        if leaks:
            lines.append(f"{where}: no useful strength hides examples: {', '.join(sorted(leaks))}.")
        if hidden:
            best = hidden[0]
            lines.append(
                f"{where}: {len(hidden)} of {len(each)} families meet L1; the most accurate keeps "
                f"{best.kept['L1']:.0%}: {setting(best.row, best.at['L1'])}."
            )
        if proved:
            kept, row, figures = proved[0]
            lines.append(
                f"{where}: ε proves L1 for {len(proved)} of {len(each)} families, with one reading of a client; the "
                f"most accurate keeps {kept:.0%}: {setting(row, figures)}."
            )
            for kept, row, figures in proofs(tradeoff, each, PROVED_ALL)[:1]:
                lines.append(
                    f"{where}: with all {row.uploads} readings of a client, the most accurate proof keeps {kept:.0%}: "
                    f"{setting(row, figures)}."
                )
        else:
            lines.append(f"{where}: ε proves L1 for no family with a useful accuracy.")
        later = sorted(one.row.family for one in each if (at := one.row.at("L1")) is not None and at.leaks_later)
        if later:
            lines.append(f"{where}: at trained weights more than L1 is named: {', '.join(later)}.")
    return tuple(lines)
