"""Flags: reasons to doubt a defense's figure at an interception point.

Each flag names a way in which an evaluation can make a defense look too good, in the spirit of AutoAttack's checks
(Croce & Hein 2020, §5). Flags are computed from the records. docs/FLAGS.md gives the remedies."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from bench.cell import AttackCell
from bench.leaderboard.worst import GRADIENT_FREE, SNR_CAP_DB, WorstCase
from bench.points import POINTS, Scope
from bench.record.metrics import PSNR_DB
from bench.record.names import distinct
from bench.record.schema import AttackResult, ReadingScore, Record

FEW = 32  # examples; with fewer, a share's interval can be wider than a third
EXPLAINED = 1e-3  # share of the squared distance at public examples, above any rounding error
RECOGNISED = 0.5  # excess of the identified or named share over the reconstructed share
NO_PROGRESS = 0.9  # share of the first loss; an attack that ends above has not begun to fit
BROKEN = "broken"  # a fault: the defense does not do what it states
INCOMPLETE = (
    BROKEN,
    "missing",
    "crashed",
    "few",
    "not-attacked",
    "no-adaptive-attack",
    "torn",
    NOTHING_SENT := "nothing-sent",
)  # flags of an incomplete row
ROUND_DEPENDENT, OTHER_STRENGTH = "round-dependent", "other-strength"  # its training is not what was attacked
VIOLATED = "epsilon-violated"  # a fault: what was measured refutes the ε that is stated
UNEXPLAINED = "truth-unexplained"  # a fault: readings are not of the examples that are scored
FAULTS = (BROKEN, UNEXPLAINED, VIOLATED)
FAILED = (
    "failed",
    "self-check",
    "no-progress",
    "no-evidence",
    "no-baseline",
    "recognised",
)  # flags of rows with a low figure that may be due to failed attacks
APART = (ROUND_DEPENDENT, OTHER_STRENGTH)  # ASR and accuracy belong to different strengths
_Results = dict[str, list[AttackResult]]  # attack → results


@dataclass(frozen=True, slots=True, order=True)
class Flag:
    """A warning: a reason to doubt a defense's figure."""

    code: str
    """Short identifier for sorting and filtering, such as `few` for too few examples."""
    text: str
    """Explanation in a line for the reader."""


def coverage(worst: WorstCase, missing: Iterable[str], torn: Collection[str] = ()) -> list[Flag]:
    """Return flags (warnings) for missing evidence, such as attacks not run or too few examples, and for faults of a
    defense at an interception point.

    - `worst`: results of all attacks on the defense at the point.
    - `missing`: names of the attacks that ran on other defenses, but not on this defense.
    - `torn`: ids of attack cells (experiments) in a cascade that attacked other readings (observed updates) than
      planned (`cascades.torn`). In a cascade each attack gets the readings that earlier attacks did not solve."""
    flags = [Flag(BROKEN, f"the defense breaks a contract: {each}") for each in worst.broken]
    if names := [name for name, records in worst.records.items() if any(map(unexplained, records))]:
        text = "the examples do not explain the reading to an attacker who knows all of the round: "
        flags.append(Flag(UNEXPLAINED, text + _names(names)))
    flags += [Flag("missing", f"not run: {_names(missing)}")] if missing else []
    if names := [name for name, records in worst.records.items() if any(r.id in torn for r in records)]:
        text = "attacked other readings than those before them in the cascade left; run the matrix again: "
        flags.append(Flag("torn", text + _names(names)))
    if worst.crashed:
        flags.append(Flag("crashed", f"crashed: {_names(worst.crashed)}"))
    zeros, readings = _all_zeros(worst)
    if 2 * zeros > readings:
        text = f"{zeros} of {readings} readings are all zeros: what is held back in the attacked round is sent later"
        flags.append(Flag(NOTHING_SENT, text))
    if worst.records and not worst.attacked:
        flags.append(Flag("not-attacked", "no attack that reads the gradient applies here: there is no figure"))
    elif worst.distinct < FEW:
        flags.append(Flag("few", f"{worst.distinct} examples; at least {FEW} are needed"))
    if worst.plain_only:
        text = "only attacks that do not know the defense were run: the true rate may be higher (≥)"
        flags.append(Flag("no-adaptive-attack", text))
    return flags


def _all_zeros(worst: WorstCase) -> tuple[int, int]:
    """Return (number of all-zero readings, number of readings); a defense sends zeros if it delays a whole update."""
    zeros: dict[tuple[int, int, int], bool] = {}
    for record in (record for records in worst.records.values() for record in records):
        cell, result = record.cell, record.attack
        if isinstance(cell, AttackCell) and result is not None:
            for number, reading in result.numbered():
                zeros[cell.seed, cell.draw, number] = _is_zero(reading)
    return sum(zeros.values()), len(zeros)


def _is_zero(reading: ReadingScore) -> bool:
    return reading.snr_db == 0 and reading.cosine is None


def doubts(worst: WorstCase, *, averaged: bool, evidence: bool, baseline: bool) -> list[Flag]:
    """Return flags (warnings) for a low success rate that may have another cause than a strong defense, such as a
    failed attack.

    - `worst`: results of all attacks on the defense at an interception point.
    - `averaged`: True if an attack with several readings (observed updates) of the same examples ran on this defense at
      this point.
    - `evidence`: True if attacks succeeded on undefended readings in this condition.
    - `baseline`: True if any undefended reading in this condition was attacked."""
    if not worst.records:
        return []
    done = {name: [r.attack for r in records if r.attack] for name, records in worst.records.items()}
    attacks = {name: results for name, results in done.items() if results and not name.startswith(GRADIENT_FREE)}
    random = any(result.conditions.random for results in done.values() for result in results)
    still, blind = _names(_without_progress(worst, attacks)), _names(_failed_self_check(attacks))
    restarted = _restarts(worst, attacks)
    prior, best = worst.prior_psnr_db, worst.best_median(PSNR_DB)
    # in a cascade, attacks saw different readings, so their medians do not compare
    as_prior = attacks and not worst.cascade and prior is not None and (best is None or best <= prior)
    most = max((sum(each.values()) / len(each) for each in (worst.identified, worst.named) if each), default=0.0)
    recognised = worst.asr is not None and most - worst.asr >= RECOGNISED
    raised = (
        (not evidence, "no-evidence", "nothing leaks without a defense either: 0 is no evidence"),
        (
            not baseline and worst.asr is not None,
            "no-baseline",
            "no undefended reading was attacked here: nothing shows what these attacks can do",
        ),
        (recognised, "recognised", "recognised and not reconstructed: what is missing may be the search, not the leak"),
        (worst.cut_short, "failed", "some attacks diverged or crashed: the true rate may be higher (≥)"),
        (
            random and not averaged,
            "single-observation",
            "the defense is random and was read once: averaging was not tried",
        ),
        (still, "no-progress", f"own loss did not fall: {still}; it may be the attack that fails"),
        (blind, "self-check", f"does not tell the truth from public examples: {blind}"),
        (restarted, "restarts", f"{restarted} were restarted came back: more restarts may help"),
        (as_prior, "at-prior-level", "the best guess without the gradient does as well"),
    )
    return [Flag(code, text) for is_raised, code, text in raised if is_raised]


def unexplained(record: Record) -> bool:
    """Return whether the readings (observed updates) in `record` do not fit the true examples, so that a correct
    reconstruction scores as wrong. The record is the result of an attack.

    For the test, the gradient of the true examples is changed as the defense's description says, and compared with the
    reading. The result is True if the difference exceeds the described noise; without described noise, if it exceeds
    rounding errors. The result is False if undecided: with several local steps, because an attack may assume a single
    step, and for all-zero readings."""
    cell, result = record.cell, record.attack
    if not isinstance(cell, AttackCell) or result is None:
        return False
    truth, public = result.self_check.distance_at_truth, result.self_check.distance_at_public
    one_step = cell.federated.steps == 1 or POINTS[cell.point].scope is Scope.EXAMPLE
    unchanged = result.distortion.snr_db_least == SNR_CAP_DB
    known = result.conditions.described and not result.conditions.random
    sent = not any(map(_is_zero, result.readings))
    far = sent and truth is not None and public is not None and truth > EXPLAINED * public
    return result.self_check.explained is False or ((known or unchanged) and one_step and far)


def _without_progress(worst: WorstCase, attacks: _Results) -> list[str]:
    """Return the attacks without success whose loss ended above 90 % of its first value in every cell.

    Cells count only if the loss at the true examples is below 90 % of the loss at public examples."""
    ends = {name: [end for r in results if (end := _end(r)) is not None] for name, results in attacks.items()}
    return [name for name, each in ends.items() if each and min(each) > NO_PROGRESS and worst.rate(name) == 0]


def _end(result: AttackResult) -> float | None:
    """Return the attack's last loss divided by its first loss, from the loss history. None if fewer than two losses are
    known, or if the loss cannot fall: under strong noise, the loss at the true examples is hardly below the loss at
    public examples (`NO_PROGRESS`)."""
    losses = [loss for loss in result.trajectory.losses if loss is not None] if result.trajectory else []
    truth, public = result.self_check.distance_at_truth, result.self_check.distance_at_public
    can_fall = truth is None or public is None or truth < NO_PROGRESS * public
    return losses[-1] / losses[0] if len(losses) > 1 and losses[0] > 0 and can_fall else None


def _failed_self_check(attacks: _Results) -> list[str]:
    answers = {name: {r.self_check.recognises_truth for r in results} for name, results in attacks.items()}
    return [name for name, each in answers.items() if False in each and True not in each]


def _restarts(worst: WorstCase, attacks: _Results) -> str:
    restarted = [
        reading for results in attacks.values() for result in results for reading in result.readings if reading.restarts
    ]
    leaked = sum(any(example.success for example in reading.examples) for reading in restarted)
    return "" if not leaked or all(worst.leaked.values()) else f"{leaked} of {len(restarted)} readings that"


def _names(attacks: Iterable[str]) -> str:
    return ", ".join(distinct(sorted(attacks)).values())
