"""What a run says at its beginning, and at its end: the tables, where things are, and what next."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from bench.cli.watching import say
from bench.cli.words import duration
from bench.leaderboard.conditions import by_condition, without_evidence
from bench.leaderboard.forms import terminal
from bench.leaderboard.knowledge import knowledge
from bench.leaderboard.trainings import trainings
from bench.matrix.published import PublishedFigures
from bench.record.request import Request
from bench.record.schema import Record
from bench.sanitize import sanitize
from bench.sweep.plan import RunSchedule
from bench.sweep.pool import PoolSpec
from bench.tracking import store
from bench.tracking.store import UploadResult

_LEGEND = (
    "Each figure is the share of examples that the worst attacker got back, with its 95 % interval and the best single "
    "attack; below it that attack's median PSNR beside that of the best guess without the gradient (prior).  An "
    "example counts as leaked if any attack reaches PSNR ≥ 20 dB and beats the best guess without the gradient by "
    "3 dB (a row of a table: numeric RMSE ≤ .2 and 90 % of the categories right).  0: these attacks got nothing back, "
    "a lower bound on what leaks.  type-2 is one example's gradient inside the client, type-1 the client's update as "
    "it leaves, type-0 the same at the server.  ≥: some attacks failed, or none knew the defense: the true "
    "figure may be higher."
)


def announce(console: Console, title: str, schedule: RunSchedule, pool: PoolSpec) -> None:
    """What is to be run, on which workers, for how long about."""
    console.print(Text(sanitize(title), style="bold"))
    about = duration(schedule.seconds / (pool.jobs or 1)) + ("" if pool.jobs else " of one core")
    others = f"{len(schedule.done)} done before, {len(schedule.impossible)} n/a"
    say(console, f"{len(schedule.waiting)} cells to run on {pool.description}, about {about}; {others}")
    changed = [reason for reason in schedule.again.values() if not reason.startswith("crashed")]
    if changed:
        say(console, f"{len(changed)} cells run again, their old records are kept: {_most(changed)}")
    crashed = len(schedule.again) - len(changed)
    if crashed:
        console.print(f"{crashed} cells that crashed before are tried again")


def conclude(
    console: Console, records: Sequence[Record], run: Path, request: Request, published: Sequence[PublishedFigures],
    mlflow: str,
) -> None:  # fmt: skip
    """The tables of a run's records, what failed, and where things are; `mlflow` is a line on the upload."""
    tables = by_condition(records)
    console.print()
    if tables:
        console.print(terminal.conditions(tables))
    if trained := trainings(records, published):
        console.print(terminal.trainings(trained, published))
    if known := knowledge(records):
        console.print()
        console.print(terminal.knowledge(known))
    if tables:
        console.print(Text(_LEGEND, style="dim"))
    for condition in tables:
        if points := without_evidence(condition):
            nothing = f"at {', '.join(points)} no attack got anything back even without a defense"
            line = f"no evidence: {condition.title}: {nothing}, so 0 there says nothing of the defenses"
            say(console, line, style="yellow")
    for status, style in (("crashed", "red"), ("n/a", "")):
        reasons = [record.reason or "" for record in records if record.status == status]
        if reasons:
            say(console, f"{len(reasons)} {status}: {_most(reasons)}", style)
    cell = next((f"{record.id[:8]} {run}" for record in records if record.attack), "")
    lines = [
        ("records", str(run / "records")),
        ("pictures", str(run / "pictures")),
        ("MLflow", mlflow),
        ("a cell, with its pictures", f"bench show {cell}".rstrip()),
        ("in the browser", f"bench ui {run}"),
    ]
    if not request.plugins:
        command = f"bench run --matrix {request.matrix} --plugin my_defense.py --defense round-off   (README)"
        lines.append(("your own defense", command))
    console.print()
    for name, text in lines:
        console.print(Text.assemble((f"{name:26}", "dim"), text), soft_wrap=True)


def upload_line(
    run: Path, tracking_uri: str | None, uploaded: UploadResult | None, waiting: str | None
) -> str:
    """What became of the upload to MLflow; `waiting` says why records are left."""
    if uploaded is None:
        return f"not requested; `bench sync {run}` uploads"
    if waiting:
        return waiting
    address = store.shown(store.checked_uri(run, tracking_uri or None))
    return f"{uploaded.count} runs uploaded, {uploaded.skipped} there before: {address}"


def _most(reasons: Sequence[str]) -> str:
    """The most frequent reason, and how many others there are."""
    common = max(set(reasons), key=reasons.count)
    others = len(set(reasons)) - 1
    return common + (f" (and {others} other reason{'s' if others > 1 else ''})" if others else "")
