"""What a run says at its beginning, and at its end: the tables, where things are, and what next."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from bench.cli.watching import say
from bench.cli.words import estimate
from bench.kinds.known import KINDS
from bench.leaderboard.conditions import Condition, by_condition, without_evidence
from bench.leaderboard.forms import standings, terminal
from bench.leaderboard.forms.numbers import rate, share
from bench.leaderboard.knowledge import knowledge
from bench.leaderboard.trainings import trainings
from bench.matrix.published import PublishedFigures
from bench.record.names import distinct
from bench.record.request import Request
from bench.record.schema import Record
from bench.reference import again, summary
from bench.reference.beside import Joined
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
_SUMMARISED = 2  # conditions, of which the end says in words what leaks
_INDENT = 13  # columns


def announce(
    console: Console, title: str, schedule: RunSchedule, pool: PoolSpec, span: tuple[float, float] | None = None
) -> None:
    """What is to be run, on which workers, for how long about; `span`: see `running.PreparedRun`."""
    console.print(Text(sanitize(title), style="bold"))
    about = estimate(schedule.seconds, span, pool.jobs or 1) + ("" if pool.jobs else " of one core")
    others = f"{len(schedule.done)} done before, {len(schedule.impossible)} n/a"
    say(console, f"{len(schedule.waiting)} cells to run on {pool.description}, about {about}; {others}")
    changed = [reason for reason in schedule.again.values() if not reason.startswith("crashed")]
    if changed:
        say(console, f"{len(changed)} cells run again, their old records are kept: {_most(changed)}")
    crashed = len(schedule.again) - len(changed)
    if crashed:
        console.print(f"{crashed} cells that crashed before are tried again")


def conclude(
    console: Console,
    records: Sequence[Record],
    run: Path,
    request: Request,
    published: Sequence[PublishedFigures],
    mlflow: str,
    *,
    verbose: bool = False,
    joined: Joined | None = None,
) -> None:
    """The tables of a run's records, what failed, and in a few lines what leaks, why to believe it, and what next.

    `mlflow` is a line on the upload; `verbose` adds what knowing the defense gains, the caveats of ε and the legend.
    Of a suite `joined` are the records beside the reference: its standings stand in place of the tables, and of each
    new defense where it stands; where none is new, how far published records came out the same.
    """
    tables = by_condition(records)
    console.print()
    if joined is not None:
        console.print(standings.terminal(joined.standings, f"{joined.version}: standings over its conditions"))
    if tables and (joined is None or verbose):
        console.print(terminal.conditions(tables))
    if (trained := trainings(records, published)) and (joined is None or verbose):
        console.print(terminal.trainings(trained, published, caveats=verbose))
    if verbose and (known := knowledge(records)):
        console.print()
        console.print(terminal.knowledge(known))
    if verbose and tables:
        console.print(Text(_LEGEND, style="dim"))
    for status, style in (("crashed", "red"), ("n/a", "")):
        reasons = [record.reason or "" for record in records if record.status == status]
        if reasons:
            say(console, f"{len(reasons)} {status}: {_most(reasons)}", style)
    cell = next((record.id[:8] for record in records if record.attack), None)
    own = f"bench run --matrix {request.matrix} --plugin my_defense.py --defense round-off   (README)"
    if joined is not None and joined.own:
        _stands(console, joined, run)
        return
    repeated = again.lines(again.compared(records, joined.records)) if joined is not None else ()
    lines = [
        *(("made again" if n == 0 else "", text) for n, text in enumerate(repeated)),
        *(("what leaks" if n == 0 else "", text) for n, text in enumerate(_leaks(tables))),
        *(("believe it?" if n == 0 else "", text) for n, text in enumerate(_evidence(tables, records))),
        ("next", f"bench leaderboard {run}   ranked, with costs and doubts"),
        *([("", f"bench show {cell}   a cell in words, with its pictures")] if cell else []),
        ("", f"bench ui {run}   MLflow: {mlflow}"),
        *([] if request.plugins else [("", own)]),
        ("kept in", f"{run}   records, pictures"),
    ]
    _say_lines(console, lines)


def _stands(console: Console, joined: Joined, run: Path) -> None:
    """Where each new defense stands, in four lines, and its most telling picture."""
    for defense in joined.own:
        shown = [("defense", defense), *summary.lines(joined, defense)]
        if picture := summary.picture(joined, defense, run):
            shown.append(("picture", str(picture)))
        _say_lines(console, shown)
    _say_lines(console, [("next", f"bench leaderboard {run}   --conditions, --attacks, --html FILE")])


def _say_lines(console: Console, lines: Iterable[tuple[str, str]]) -> None:
    console.print()
    for name, text in lines:
        # a command and a path stay in one piece, to be copied
        parts = (
            [text]
            if "bench " in text or name == "picture"
            else textwrap.wrap(text, max(40, console.width - _INDENT), break_on_hyphens=False) or [""]
        )
        for n, part in enumerate(parts):
            label = f"{'' if n else name:{_INDENT}}"
            console.print(
                Text.assemble((label, "bold" if name in ("what leaks", "defense") else "dim"), part), soft_wrap=True
            )


def _leaks(tables: Sequence[Condition]) -> Iterator[str]:
    """Of each condition which defenses leak how much, at the point where each leaks most."""
    for condition in tables[:_SUMMARISED]:
        most: dict[str, list[str]] = {}
        names = distinct(condition.rows)
        for defense, row in condition.rows.items():
            if (worst := max(row.values(), key=lambda at: at.asr if at.asr is not None else -1.0)).asr is None:
                continue
            figure = rate(worst.asr, lower_bound=worst.lower_bound)
            if worst.asr == 0:
                figure += f" (at most {share(worst.interval[1])})" if worst.interval else ""
            most.setdefault(figure, []).append(names[defense])
        text = "; ".join(f"{figure} {', '.join(defenses)}" for figure, defenses in most.items())
        yield f"{condition.title.split(' · ')[0]}: {text or 'nothing was attacked'}"
    if len(tables) > _SUMMARISED:
        yield f"and {len(tables) - _SUMMARISED} more conditions, above"


def _evidence(tables: Sequence[Condition], records: Sequence[Record]) -> Iterator[str]:
    """Reasons to trust the figures, the success rule of each kind of data, and the limits."""
    for condition in tables:
        if points := without_evidence(condition):
            nothing = f"at {', '.join(points)} no attack got anything back even without a defense"
            yield f"no: {condition.title}: {nothing}, so 0 there says nothing of the defenses"
    if tables:
        kinds = {record.attack.data_kind for record in records if record.attack and record.attack.summary}
        yield from (f"leaked: {kind.success.words}" for kind in KINDS.values() if kind in kinds)
        yield "0 is no proof, ≥ a lower bound; --verbose and docs/EVALUATION.md"


def upload_line(run: Path, tracking_uri: str | None, uploaded: UploadResult | None, waiting: str | None) -> str:
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
