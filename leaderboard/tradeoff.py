"""Standings by accuracy at equal leakage: for a listener, the families that hide examples, the most accurate first."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bench.errors import BenchError
from bench.leaderboard.forms.numbers import NONE, epsilon
from bench.matrix.typed import written
from bench.record.groups import grouped
from bench.record.tradeoff import LEVELS, NAMED, PROVED, PROVED_ALL, RECONSTRUCTED, AtLevel, Row, Tradeoff

# name on the command line → (interception point, meaning), in the order of boards and pages
LISTENERS = {
    "server": ("type-0", "the update at the server"),
    "mean": ("aggregate", "the mean of the clients of a round"),
    "client": ("type-1", "the update that leaves the client"),
    "inside": ("type-2", "inside the client: the gradient of one example"),
}
READING = "reading's ε: stated / valid / audited ≥"  # a column's head


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A defense family's position in the trade-off between accuracy and leakage, for an attacker (listener) and a
    federation (data set, model). A family is a defense at all its strengths. A level is an upper bound: L1 of named
    examples, chance + 5 percentage points; L2 of named examples, 20 %; L3 of reconstructed examples, 5 %."""

    row: Row
    """Figures of the family at all strengths."""
    mean: Row | None
    """At the server: the family's figures in the mean over clients, which the server reads, too. None: the listener
    reads no mean, or the mean was not attacked."""
    rank: int | None
    """Rank from 1, by accuracy at L1, then at L2 and L3; None if no strength of the family meets a level."""
    at: dict[str, AtLevel]
    """Map from level to the figures of the weakest strength that meets the level. Levels with a useless accuracy, or
    exceeded at trained weights, are left out; at the server, a level counts at a strength that also meets it in the
    mean."""
    kept: dict[str, float]
    """Map from level to the share of the undefended accuracy that remains, in [0, 1]."""


def listener_of(name: str) -> str:
    """Return the interception point of a listener (an attacker), such as "type-0" for `name` "server". Raises
    `BenchError` for an unknown name."""
    if name not in LISTENERS:
        raise BenchError(f"--listener {name}: there are {', '.join(LISTENERS)}")
    return LISTENERS[name][0]


def rows_at(tradeoff: Tradeoff, point: str) -> tuple[Row, ...]:
    """Select the rows of a listener's board: the defense families (a defense at all its strengths) that change the
    update which an attacker reads at an interception point. Families without figures are left out.

    - `tradeoff`: accuracy and leakage of each family; `point`: name of the interception point."""
    return tuple(row for row in tradeoff.rows if row.absent is None and point in (row.point, *row.also))


def standings(tradeoff: Tradeoff, point: str) -> dict[tuple[str, str], tuple[Standing, ...]]:
    """Rank the defense families (a defense at all its strengths) by accuracy at equal leakage, for an attacker at an
    interception point. Return a map from (data set, model) to the standings, ranked families first.

    - `tradeoff`: accuracy and leakage of each family; `point`: name of the interception point."""
    groups = grouped(rows_at(tradeoff, point), lambda row: (row.dataset, row.model))
    means = rows_at(tradeoff, listener_of("mean")) if point == listener_of("server") else ()
    in_mean = {(row.dataset, row.model, row.family): row for row in means}
    return {key: _ranked(tradeoff, rows, in_mean) for key, rows in groups.items()}


def _ranked(
    tradeoff: Tradeoff, rows: Iterable[Row], in_mean: Mapping[tuple[str, str, str], Row]
) -> tuple[Standing, ...]:
    found = []
    for row in rows:
        at, kept, mean = {}, {}, in_mean.get((row.dataset, row.model, row.family))
        for level in LEVELS:
            # what ε proves for L1 holds for L2, too, and in the mean
            proved = row.at(PROVED) if level in NAMED else None
            for figures in (_met(row, mean, level), proved):
                if figures is not None and tradeoff.useful(row, figures) and not figures.leaks_later:
                    at[level], kept[level] = figures, tradeoff.kept(row, figures)
                    break
        found.append(Standing(row=row, mean=mean, rank=None, at=at, kept=kept))
    found.sort(key=lambda each: ([-each.kept.get(level, 0.0) for level in LEVELS], each.row.family))
    return tuple(replace(each, rank=number if each.at else None) for number, each in enumerate(found, 1))


def _met(row: Row, mean: Row | None, level: str) -> AtLevel | None:
    """Return the figures of `row` at `level`, or of `mean` if the mean needs a stronger defense (its interval is above
    the strength of `row`). None if either does not meet the level, or if the mean leaks more later in the training. The
    ε of `row` bounds the stronger defense, too."""
    here = row.at(level)
    if here is None or mean is None or not _measured(mean, level):
        return here
    there = mean.at(level)
    if there is not None and there.leaks_later:
        return None
    if there is None or here.value is None or there.value is None:
        return None if there is None else here
    growing = (row.curve[-1].value or 0.0) > (row.curve[0].value or 0.0)  # curves go from weak to strong
    enough = (there.value > here.value) != growing
    if enough or (there.interval is not None and there.interval[0] <= here.value <= there.interval[1]):
        return here
    return replace(there, epsilon=here.epsilon, ceiling=here.ceiling, ceiling_all=here.ceiling_all)


def _measured(row: Row, level: str) -> bool:
    if level == RECONSTRUCTED:
        return row.reconstructed is not None and row.reconstructed.absent is None
    return bool(row.curve)


def leakage(level: str) -> str:
    """Return the word for leaked examples in texts such as `12% named`: "reconstructed" for the `level` "L3", which
    limits reconstructed examples, otherwise "named"."""
    return "reconstructed" if level == RECONSTRUCTED else "named"


def levels_of(ranked: Iterable[Standing]) -> tuple[str, ...]:
    """Return the levels of leakage that a table of the standings `ranked` shows: "L1" and "L2" (upper bounds on the
    share of named examples); also "L3" (on the share of reconstructed examples) if it was measured for a defense."""
    measured = any(each.row.reconstructed is not None for each in ranked)
    return tuple(level for level in LEVELS if level != RECONSTRUCTED or measured)


def advised(standings: Sequence[Standing], level: str, loss: float) -> tuple[Standing, ...]:
    """Return the `standings` that meet `level` and lose at most `loss` percent (0 to 100) of the undefended accuracy.
    `level` "L1" permits a share of named examples of chance + 5 percentage points, "L2" a share of 20 %; "L3" permits 5
    % of reconstructed examples."""
    return tuple(each for each in standings if level in each.kept and 100 * (1 - each.kept[level]) <= loss)


def rank_line(ranked: Sequence[Standing], family: str) -> str | None:
    """Return the rank of a defense family (a defense at all its strengths) among the standings `ranked` as text, with
    the ranks before and after, such as `rank 3 of 15: keeps 94% at L1, sigma = 1.3; before: gaussian 95%; after:
    adaclip 63%`. `family` is the family's name; None if it is not in `ranked`."""
    own = next((each for each in ranked if each.row.family == family), None)
    if own is None:
        return None
    if own.rank is None:
        return f"no rank among {len(ranked)}: {reason(own, LEVELS[0])}"
    level = next(level for level in LEVELS if level in own.at)
    words = [f"rank {own.rank} of {len(ranked)}: keeps {own.kept[level]:.0%} at {level}"]
    if own.row.parameter is not None:
        words[0] += f", {strength(own.row, own.at[level])}"
    for word, place in (("before", own.rank - 1), ("after", own.rank + 1)):
        other = next((each for each in ranked if each.rank == place), None)
        if other is not None:
            kept = next(f"{other.kept[level]:.0%} at {level}" for level in LEVELS if level in other.at)
            words.append(f"{word}: {other.row.family.partition('(')[0]} {kept}")
    return "; ".join(words)


def reason(standing: Standing, level: str) -> str:
    """Return the reason, in a few words, why a defense family (a defense at all its strengths) does not meet a level of
    leakage, such as `12% named at the strongest`. `standing` has the family's figures; `level` is "L1", "L2" or
    "L3"."""
    here = _reason(standing.row, level)
    if here is not None or standing.mean is None:
        return here or "no useful strength"
    there = _reason(standing.mean, level) if _measured(standing.mean, level) else None
    return "no useful strength" if there is None else f"{there} in the mean"


def _reason(row: Row, level: str) -> str | None:
    """As `reason`, for a single row; None if the row meets the level."""
    at, leaked = row.at(level), leakage(level)
    curve, calibrated = row.curve, bool(row.at_levels)
    if level == RECONSTRUCTED:
        if row.reconstructed is None or row.reconstructed.absent is not None:
            return "not measured" if row.reconstructed is None else f"not measured: {row.reconstructed.absent}"
        curve, calibrated = row.reconstructed.curve, row.reconstructed.at is not None
    if at is not None and at.leaks_later and at.trained is not None:
        return f"{strength(row, at)}: {at.trained[0]:.0%} {leaked} later"
    shares = [each.share for each in curve]
    if row.parameter is None and shares and at is None:
        return f"{shares[0]:.0%} {leaked}"
    if shares and not calibrated:
        return f"{min(shares):.0%} {leaked} at the strongest"
    return None


def proof(tradeoff: Tradeoff, row: Row, level: str = PROVED) -> str:
    """Format the proved protection of a defense family (a defense at all its strengths) for a table: the weakest
    strength at which ε proves L1 (named examples at most 5 percentage points above chance), and the share of the
    undefended accuracy kept at this strength, such as `✓ sigma=1.3, 94%`. A dash if no strength proves L1; a dash with
    `trains no model` if the accuracy at this strength is not useful (`Tradeoff.useful`).

    - `tradeoff`: accuracy and leakage of each family; `row`: the family's figures.
    - `level`: "proved" counts a single reading (observed update) of a client, "proved-all" all readings."""
    at = row.at(level)
    if at is None:
        return NONE
    if not tradeoff.useful(row, at):
        return f"{NONE} (trains no model)"
    return f"✓ {row.parameter}={at.value:.4g}, {tradeoff.kept(row, at):.0%}"


def undefended(tradeoff: Tradeoff, dataset: str, model: str) -> str:
    """Format the mean test accuracy without a defense, such as `96.6%`.

    - `tradeoff`: accuracy and leakage of each defense; `dataset`, `model`: names of the data set and the model."""
    return f"{tradeoff.undefended_mean(dataset, model):.1%}"


def ceilings(row: Row, at: AtLevel) -> str:
    """Format the largest share of named examples that ε allows, such as `≤ 6.4%, ≤ 41%`: with a single reading
    (observed update) of a client, and with all readings of the client. A dash without ε. `at` are figures at a strength
    of the defense, `row` are the defense's figures at all strengths."""
    if at.ceiling is None:
        return "–"
    every = "" if at.ceiling_all is None or row.uploads == 1 else f", ≤ {at.ceiling_all:.0%}"
    return f"≤ {at.ceiling:.1%}{every}"


def epsilons(tradeoff: Tradeoff, row: Row, at: AtLevel) -> str:
    """Format ε of a single reading (observed update) for a table, such as `4.2 / 7.69 / ≥ 6.13`: as the defense's paper
    or library states it, as the harness proves it, and the audited lower bound. A dash stands for a missing figure;
    a single dash if all are missing.

    - `tradeoff`: accuracy and leakage of each family, with audits.
    - `row`, `at`: figures of the defense, and its figures at a strength."""
    audit = tradeoff.audit(row, setting(row, at))
    if audit is None:
        return NONE if at.epsilon is None else f"{NONE} / {epsilon(at.epsilon)} / {NONE}"
    return f"{epsilon(audit.stated)} / {epsilon(audit.valid)} / ≥ {epsilon(audit.proven)}"


def worst(at: AtLevel) -> float:
    """Return the largest measured leakage of a defense at a strength: the share of named examples (at level L3: of
    reconstructed examples), in [0, 1]. Measurements are in the first round, and at trained weights if these were
    attacked, on victims that were not used to choose the strength. `at` are the figures at this strength."""
    return at.share if at.trained is None else max(at.share, at.trained[0])


def figures_of(standing: Standing) -> tuple[AtLevel, ...]:
    """Return the figures of a defense family at all its levels, for a picture. At the server, a family without a
    strength has the figures of the mean if more examples are named there."""
    here, there = standing.row.at_levels, () if standing.mean is None else standing.mean.at_levels
    fixed = standing.row.parameter is None and here and there
    return there if fixed and worst(there[0]) > worst(here[0]) else here


def of_all_updates(standings: Iterable[Standing]) -> str | None:
    """Return a sentence on the families that meet L1 with one update of a client, and not with all its updates; None if
    there are none. `standings`: families at an interception point."""
    above: dict[int, list[tuple[float, str]]] = {}
    for each in standings:
        at = each.at.get("L1")
        if at is not None and at.all_updates is not None and at.most is not None and at.all_updates[1] > at.most:
            above.setdefault(each.row.uploads, []).append((at.all_updates[0], _short(each.row)))
    parts = [
        f"with all {uploads} updates of a client, the attacker names "
        + ", ".join(f"{share:.0%} ({name})" for share, name in sorted(named, reverse=True))
        for uploads, named in above.items()
    ]
    return f"L1 holds for one update: {'; '.join(parts)}." if parts else None


def proofs(tradeoff: Tradeoff, standings: Iterable[Standing], level: str = PROVED) -> list[tuple[float, Row, AtLevel]]:
    """Return the defense families (a defense at all its strengths) whose ε proves L1 (named examples at most 5
    percentage points above chance) with a useful accuracy, the most accurate first. Each item is (share of the
    undefended accuracy kept, family, figures at the proving strength).

    - `tradeoff`: accuracy and leakage of each family; `standings`: the families.
    - `level`: "proved" counts a single reading (observed update) of a client, "proved-all" all readings."""
    proved = [(each.row, at) for each in standings if (at := each.row.at(level)) and tradeoff.useful(each.row, at)]
    return sorted(((tradeoff.kept(row, at), row, at) for row, at in proved), key=lambda each: -each[0])


def strength(row: Row, at: AtLevel) -> str:
    """Format a defense's strength parameter for a table, such as `sigma = 0.8`; a dash for a defense without a
    strength. `row` are the figures of the defense at all strengths, `at` the figures at this strength."""
    return "–" if at.value is None or row.parameter is None else f"{row.parameter} = {at.value:.3g}"


def setting(row: Row, at: AtLevel) -> str:
    """Return a defense at a strength as text, as typed after `--defense`, such as `dp-sgd:clip=0.5,sigma=0.8`. `row`
    are the figures of the defense at all strengths, `at` the figures at this strength."""
    name, _, rest = row.family.partition("(")
    params = [part.strip().replace(" ", "") for part in rest.rstrip(")").split(", ") if part]
    params = [part for part in params if not part.endswith("=None")]
    if at.value is not None and row.parameter is not None:
        params.append(f"{row.parameter}={at.value:.4g}")
    return written(name, params)


def findings(tradeoff: Tradeoff, point: str) -> tuple[str, ...]:
    """Summarise a trade-off between accuracy and leakage as sentences for each federation (data set, model): defense
    families that hide nothing, families that hide examples, and the accuracy cost.

    - `tradeoff`: accuracy and leakage of each family (a defense at all its strengths).
    - `point`: interception point of the attacker."""
    return tuple(
        f"{dataset}, {model}: {line}"
        for (dataset, model), ranked in standings(tradeoff, point).items()
        for line in findings_of(tradeoff, ranked)
    )


def findings_of(tradeoff: Tradeoff, ranked: Sequence[Standing]) -> Iterator[str]:
    """Yield the sentences of `findings` for a single federation.

    - `tradeoff`: accuracy and leakage of each family.
    - `ranked`: the federation's families by rank, from `standings`."""
    hidden = [one for one in ranked if "L1" in one.at]
    proved = proofs(tradeoff, ranked)
    leaks = [one.row.family for one in ranked if not {*NAMED} & {*one.at}]
    pixels = [(one.kept[RECONSTRUCTED], one.row, one.at[RECONSTRUCTED]) for one in ranked if RECONSTRUCTED in one.at]
    blurred = [(kept, row, figures) for kept, row, figures in pixels if row.family in leaks]
    if leaks:
        yield f"no useful strength hides examples: {', '.join(sorted(leaks))}."
    if blurred:
        kept, row, figures = max(blurred, key=lambda one: one[0])
        yield (
            f"of these, {len(blurred)} hide pixels and not the person, at most 5% reconstructed; the most accurate "
            f"keeps {kept:.0%}: {setting(row, figures)}."
        )
    if hidden:
        best = hidden[0]
        yield (
            f"{len(hidden)} of {len(ranked)} families meet L1; the most accurate keeps "
            f"{best.kept['L1']:.0%}: {setting(best.row, best.at['L1'])}."
        )
    if (combined := of_all_updates(hidden)) is not None:
        yield combined
    if open_in_mean := named_in_mean(tradeoff, ranked):
        yield f"the server reads the mean, too, and there the attacker names {', '.join(open_in_mean)}."
    if proved:
        kept, row, figures = proved[0]
        yield (
            f"ε proves L1 for {len(proved)} of {len(ranked)} families, with one reading of a client; the "
            f"most accurate keeps {kept:.0%}: {setting(row, figures)}."
        )
        for kept, row, figures in proofs(tradeoff, ranked, PROVED_ALL)[:1]:
            yield (
                f"with all {row.uploads} readings of a client, the most accurate proof keeps {kept:.0%}: "
                f"{setting(row, figures)}."
            )
    else:
        yield "ε proves L1 for no family with a useful accuracy."
    yield from _audit_findings(tradeoff, hidden)
    later = sorted(one.row.family for one in ranked if (at := one.row.at("L1")) is not None and at.leaks_later)
    if later:
        yield f"at trained weights more than L1 is named: {', '.join(later)}."


def named_in_mean(tradeoff: Tradeoff, ranked: Iterable[Standing]) -> tuple[str, ...]:
    """Return the families without a strength that meet L1 at an earlier interception point, and not in the mean over
    clients, such as `100% (secure-aggregation)`: the share of named examples in the mean, and the family.

    - `tradeoff`: accuracy and leakage of each family.
    - `ranked`: families at an interception point before the mean."""
    hidden = {
        (row.dataset, row.model, row.family)
        for row in (one.row for one in ranked)
        if row.parameter is None and row.at("L1") is not None
    }
    return tuple(
        f"{row.at_levels[0].share:.0%} ({row.family})"
        for row in rows_at(tradeoff, listener_of("mean"))
        if (row.dataset, row.model, row.family) in hidden and row.at_levels and row.at("L1") is None
    )


def _audit_findings(tradeoff: Tradeoff, hidden: Sequence[Standing]) -> Iterator[str]:
    """Yield sentences on the stated, valid and audited ε of the families `hidden`, which meet L1."""
    if not tradeoff.audits:
        return
    settings = [(one.row, setting(one.row, one.at[NAMED[0]])) for one in hidden]
    found = [(row, audit) for row, text in settings if (audit := tradeoff.audit(row, text)) is not None]
    if refuted := [audit.setting for _, audit in found if audit.refuted]:
        yield f"the audit refutes the valid ε of {', '.join(refuted)}."
    exceeded = [
        f"{_short(row)} (stated {epsilon(audit.stated)}, audited ≥ {epsilon(audit.proven)})"
        for row, audit in found
        if audit.stated is not None and audit.proven > audit.stated
    ]
    if exceeded:
        above = "the audited ε (one reading, a replacement) exceeds the stated ε (often addition or removal)"
        yield f"{above}: {', '.join(exceeded)}."
    for row, audit in found:
        if audit.stated is not None and audit.valid is None:
            yield f"{_short(row)} states ε {epsilon(audit.stated)} for a reading, and has no valid ε: {audit.absent}."
    stated = {id(row) for row, audit in found if audit.stated is not None}
    bare = [one.row for one in hidden if one.at[NAMED[0]].epsilon is None and id(one.row) not in stated]
    if bare:
        yield f"no ε is stated or valid: {', '.join(sorted(map(_short, bare)))}."


def _short(row: Row) -> str:
    return row.family.partition("(")[0]
