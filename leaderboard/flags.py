"""Records of one defense at one point → what makes its figure weaker evidence than it looks.

In the spirit of AutoAttack's checks (Croce, Hein 2020, §5): each flag names a way in which an evaluation can
flatter a defense, found from what the records already hold.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.leaderboard.blocks import attack_name
from bench.leaderboard.forms.numbers import distinct
from bench.leaderboard.worst import BASELINES, Worst
from bench.record.store import Record

FEW = 32  # pictures; with fewer a share's interval is more than a third wide
STUCK = 0.9  # of the first loss: an attack that ends above it has not begun to fit


@dataclass(frozen=True, slots=True, order=True)
class Flag:
    """`code` for sorting and filtering, `text` one line for people."""

    code: str
    text: str


def coverage(worst: Worst, asked: Iterable[str]) -> list[Flag]:
    """What is missing for the row to be complete: attacks not run, cells that crashed, too few pictures."""
    ran = {*worst.by_attack, *worst.absent, *worst.crashed}
    missing = [name for name in asked if name not in ran]
    found = [Flag("missing", f"not run: {_names(missing)}")] if missing else []
    if worst.crashed:
        found.append(Flag("crashed", f"crashed: {_names(worst.crashed)}"))
    if len(worst.leaked) < FEW:
        found.append(Flag("few", f"{len(worst.leaked)} pictures; at least {FEW} are needed"))
    return found


def doubts(worst: Worst, records: Sequence[Record], *, read_often: bool, evidence: bool) -> list[Flag]:
    """What else could be behind a low figure.

    `records` are all cells of this defense and point; `read_often` says that other rows of the same data and
    model grant repeated readings of it; `evidence` that undefended readings leak here.
    """
    done = [record for record in records if record.status == "done"]
    attacks = [record for record in done if not attack_name(record.cell).startswith(BASELINES)]
    found = []
    if not evidence:
        found.append(Flag("no-evidence", "nothing leaks without a defense either: 0 is no evidence"))
    if worst.lower_bound:
        found.append(Flag("failed", "some attacks diverged or crashed: the true rate may be higher (≥)"))
    random = any(record.summary.get("conditions", {}).get("random") for record in done)
    if random and not read_often and all(record.cell["repeated_readings"] == 1 for record in done):
        found.append(Flag("read-once", "the defense is random and was read once: averaging was not tried"))
    if attacks and not worst.undistorted and all(r.cell["knowledge"] == "plain" for r in attacks):
        found.append(Flag("only-plain", "only attacks that do not know the defense were run"))
    if stuck := _stuck(worst, attacks):
        found.append(
            Flag("stuck", f"own loss did not fall: {_names(stuck)}; it may be the attack that fails")
        )
    if blind := _blind(attacks):
        found.append(Flag("blind", f"does not tell the truth from public pictures: {_names(blind)}"))
    if (restarts := _restarts(worst, attacks)) is not None:
        found.append(restarts)
    prior, best = worst.prior_psnr_db, worst.best_psnr_db
    if attacks and prior is not None and (best is None or best <= prior):
        found.append(Flag("prior", "the best guess without the gradient does as well"))
    return found


def _stuck(worst: Worst, records: Iterable[Record]) -> list[str]:
    """Attacks that got nothing back and whose median loss stayed near where it began, in every cell, though
    the truth's is well below that of other pictures (under noise nobody's loss falls)."""
    ends: dict[str, list[float]] = {}
    for record in records:
        history = record.summary.get("loss_history") or []
        losses = [loss for _, loss in history if loss is not None]
        truth, public = (record.summary.get(f"distance_at_{name}") for name in ("truth", "public"))
        to_gain = truth is None or public is None or truth < STUCK * public
        if len(losses) > 1 and losses[0] > 0 and to_gain:
            ends.setdefault(attack_name(record.cell), []).append(losses[-1] / losses[0])
    return sorted(
        name
        for name, shares in ends.items()
        if min(shares) > STUCK and not any(worst.by_attack[name].values())
    )


def _blind(records: Iterable[Record]) -> list[str]:
    """Attacks whose distance is no smaller at the truth than at public pictures, in every cell."""
    said: dict[str, list[bool]] = {}
    for record in records:
        if (recognises := record.summary.get("recognises_truth")) is not None:
            said.setdefault(attack_name(record.cell), []).append(recognises)
    return sorted(name for name, each in said.items() if not any(each))


def _restarts(worst: Worst, records: Iterable[Record]) -> Flag | None:
    """Raised where restarts got pictures back and pictures are left that no attack got: another might."""
    tried = leaked = 0
    for record in records:
        for victim in record.victims:
            if victim.get("restarts"):
                tried += 1
                leaked += any(picture["success"] for picture in victim["pictures"])
    if not leaked or all(worst.leaked.values()):
        return None
    return Flag(
        "restarts", f"{leaked} of {tried} readings that were restarted came back: more restarts may help"
    )


def _names(attacks: Iterable[str]) -> str:
    """Attacks as short as they can be told apart."""
    return ", ".join(distinct(sorted(attacks)).values())
