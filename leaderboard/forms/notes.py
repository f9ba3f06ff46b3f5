"""Text below a board: the legend and the flags."""

from collections.abc import Sequence

from bench.leaderboard.forms.columns import BROKEN, INCOMPLETE, PARETO, Line

LEGEND = (
    "ASR: share of examples that some attack got back, its 95 % interval, ≥ where attacks failed or knew nothing. "
    f"{PARETO} no other complete row is better in leakage or accuracy, and as good in the other. "
    f"{BROKEN} the defense does not do what it states (`bench check`). "
    f"{INCOMPLETE} incomplete (not run, crashed, too few examples, not attacked, plain attackers alone): ranks below "
    "complete rows. identified: nearer to its reconstruction than strangers; named: picked from a gallery; both at the "
    "point where most is; ceiling: what nobody exceeds where ε at the point holds; here: on these weights and data. "
    "ε: of the released models, for the sampling that runs; “–”: no guarantee, the reason is in --json. lost: accuracy "
    "below the undefended training's of the same seeds. Flags: docs/FLAGS.md says what to do."
)


def notes(lines: Sequence[Line]) -> list[str]:
    """Return the lines of text below the board in `lines`: each flag (warning) with the names of the flagged defenses,
    then the federated settings of the board's trainings."""
    names: dict[str, dict[str, None]] = {}
    for line in lines:
        for flag in line.row.flags:
            names.setdefault(f"{flag.code}: {flag.text}", {})[line.name] = None
    flags = [
        f"{text} ({'all' if len(defenses) == len(lines) else ', '.join(defenses)})"
        for text, defenses in sorted(names.items())
    ]
    settings = dict.fromkeys(line.row.cost.setting for line in lines if line.row.cost)
    return [*flags, *(f"trained: {setting}" for setting in settings)]
