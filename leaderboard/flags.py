"""Records of one defense at one point → what makes its figure weaker evidence than it looks.

In the spirit of AutoAttack's checks (Croce, Hein 2020, §5): each flag names a way in which an evaluation can
flatter a defense, found from what the records already hold.  docs/FLAGS.md says what to do about each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.cell import AttackCell
from bench.leaderboard.worst import BASELINES, Worst
from bench.record.names import attack_name, distinct
from bench.record.schema import AttackResult, Record

FEW = 32  # examples; with fewer a share's interval is more than a third wide
NO_PROGRESS = 0.9  # of the first loss: an attack that ends above it has not begun to fit
INCOMPLETE = ("missing", "crashed", "few")  # flags of an incomplete row
_Done = tuple[AttackCell, AttackResult]


@dataclass(frozen=True, slots=True, order=True)
class Flag:
    """`code` for sorting and filtering, `text` one line for people."""

    code: str
    text: str


def coverage(worst: Worst, missing: Iterable[str]) -> list[Flag]:
    """What a row lacks to be complete: attacks not run, cells that crashed, too few examples."""
    flags = [Flag("missing", f"not run: {_names(missing)}")] if missing else []
    if worst.crashed:
        flags.append(Flag("crashed", f"crashed: {_names(worst.crashed)}"))
    if len(worst.leaked) < FEW:
        flags.append(Flag("few", f"{len(worst.leaked)} examples; at least {FEW} are needed"))
    return flags


def doubts(worst: Worst, *, averaged: bool, evidence: bool) -> list[Flag]:
    """What else could be behind a low figure.

    `averaged`: some row of the same data and model grants repeated readings of this defense at this point;
    `evidence`: undefended readings leak here.
    """
    if not worst.records:
        return []
    done = list(_done(worst.records))
    attacks = [(cell, result) for cell, result in done if not cell.attack.name.startswith(BASELINES)]
    flags = []
    if not evidence:
        flags.append(Flag("no-evidence", "nothing leaks without a defense either: 0 is no evidence"))
    if worst.lower_bound:
        flags.append(Flag("failed", "some attacks diverged or crashed: the true rate may be higher (≥)"))
    if not averaged and any(result.conditions.random for _, result in done):
        flags.append(
            Flag("single-observation", "the defense is random and was read once: averaging was not tried")
        )
    if attacks and not worst.undistorted and all(cell.knowledge == "plain" for cell, _ in attacks):
        flags.append(Flag("no-adaptive-attack", "only attacks that do not know the defense were run"))
    if names := _without_progress(worst, attacks):
        flags.append(
            Flag("no-progress", f"own loss did not fall: {_names(names)}; it may be the attack that fails")
        )
    if names := _failed_self_check(attacks):
        flags.append(Flag("self-check", f"does not tell the truth from public examples: {_names(names)}"))
    flags += _restarts(worst, attacks)
    prior, best = worst.prior_psnr_db, worst.best_psnr_db
    if attacks and prior is not None and (best is None or best <= prior):
        flags.append(Flag("at-prior-level", "the best guess without the gradient does as well"))
    return flags


def _done(records: Iterable[Record]) -> Iterable[_Done]:
    for record in records:
        if isinstance(record.cell, AttackCell) and record.attack is not None:
            yield record.cell, record.attack


def _without_progress(worst: Worst, done: Iterable[_Done]) -> list[str]:
    """Attacks that got nothing back and whose median loss stayed near where it began, in every cell, though
    the truth's is well below that of other examples (under noise nobody's loss falls)."""
    ends: dict[str, list[float]] = {}
    for cell, result in done:
        losses = [loss for loss in result.trajectory.losses if loss is not None] if result.trajectory else []
        truth, public = result.self_check.distance_at_truth, result.self_check.distance_at_public
        can_fall = truth is None or public is None or truth < NO_PROGRESS * public
        if len(losses) > 1 and losses[0] > 0 and can_fall:
            ends.setdefault(attack_name(cell), []).append(losses[-1] / losses[0])
    return sorted(
        name
        for name, shares in ends.items()
        if min(shares) > NO_PROGRESS and not any(worst.by_attack[name].values())
    )


def _failed_self_check(done: Iterable[_Done]) -> list[str]:
    """Attacks whose distance is no smaller at the truth than at public examples, in every cell."""
    by_attack: dict[str, list[bool]] = {}
    for cell, result in done:
        if (recognises := result.self_check.recognises_truth) is not None:
            by_attack.setdefault(attack_name(cell), []).append(recognises)
    return sorted(name for name, each in by_attack.items() if not any(each))


def _restarts(worst: Worst, done: Sequence[_Done]) -> list[Flag]:
    """Raised where restarts got examples back and some are left that no attack got: another might."""
    restarted = [reading for _, result in done for reading in result.readings if reading.restarts]
    leaked = sum(any(example.success for example in reading.examples) for reading in restarted)
    if not leaked or all(worst.leaked.values()):
        return []
    words = f"{leaked} of {len(restarted)} readings that were restarted came back: more restarts may help"
    return [Flag("restarts", words)]


def _names(attacks: Iterable[str]) -> str:
    """Attacks as short as they can be told apart."""
    return ", ".join(distinct(sorted(attacks)).values())
