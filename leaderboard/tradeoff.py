"""Standings by accuracy at equal leakage: for a listener, the families that hide examples, the most accurate first."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bench.errors import BenchError
from bench.record.tradeoff import LEVELS, PROVED, AtLevel, Row, Tradeoff

# name on the command line → (interception point, meaning)
LISTENERS = {
    "inside": ("type-2", "inside the client: the gradient of one example"),
    "client": ("type-1", "the update that leaves the client"),
    "server": ("type-0", "the update at the server"),
    "mean": ("aggregate", "the mean of the clients of a round"),
}
USEFUL = 0.5  # least share of the undefended accuracy that counts as reaching a level


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
                if figures is not None and tradeoff.kept(row, figures) >= USEFUL and not figures.leaks_later:
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
    return "no useful strength"


def proof(tradeoff: Tradeoff, row: Row) -> str:
    """Return the weakest strength at which ε proves L1 for a `row` of the trade-off, with the accuracy kept there, such
    as `✓ 1.3, 94%`; a dash if no strength does."""
    at = row.at(PROVED)
    return "–" if at is None else f"✓ {at.value:.3g}, {tradeoff.kept(row, at):.0%}"


def proofs(tradeoff: Tradeoff, standings: Iterable[Standing]) -> list[tuple[float, Row, AtLevel]]:
    """Return (accuracy kept, family, figures) of each of the `standings` in `tradeoff` for which ε proves L1 with a
    useful accuracy, the most accurate first."""
    proved = [(tradeoff.kept(each.row, at), each.row, at) for each in standings if (at := each.row.at(PROVED))]
    return sorted((each for each in proved if each[0] >= USEFUL), key=lambda each: -each[0])


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
                f"{where}: ε proves L1 for {len(proved)} of {len(each)} families; the most accurate keeps {kept:.0%}: "
                f"{setting(row, figures)}."
            )
        else:
            lines.append(f"{where}: ε proves L1 for no family with a useful accuracy.")
        later = sorted(one.row.family for one in each if (at := one.row.at("L1")) is not None and at.leaks_later)
        if later:
            lines.append(f"{where}: at trained weights more than L1 is named: {', '.join(later)}.")
    return tuple(lines)
