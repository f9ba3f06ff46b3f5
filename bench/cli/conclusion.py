"""Print a run's first lines (the cells to run) and last lines (tables, failures, leakage, evidence, next steps)."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from bench.cli.watching import say
from bench.cli.words import estimate
from bench.kinds.known import KINDS
from bench.leaderboard.conditions import Condition, by_condition, ordered, without_evidence
from bench.leaderboard.forms import attackers as attackers_form
from bench.leaderboard.forms import standings, terminal
from bench.leaderboard.forms.numbers import rate, share
from bench.leaderboard.knowledge import knowledge
from bench.leaderboard.recognition import recognition
from bench.leaderboard.trainings import trainings
from bench.leaderboard.worst import WorstCase
from bench.matrix.published import PublishedFigures
from bench.points import POINTS
from bench.record.names import distinct
from bench.record.request import Request
from bench.record.schema import Record
from bench.reference import again, attackers, summary
from bench.reference.attackers import Ranked
from bench.reference.beside import Joined
from bench.reference.store import of_attack
from bench.sanitize import sanitize
from bench.sweep.plan import RunSchedule
from bench.sweep.pool import PoolSpec
from bench.tracking import store
from bench.tracking.store import UploadResult

_LEGEND = (
    "Each figure is the share of examples that the worst attacker got back, with its 95 % interval and the best single "
    "attack; below it that attack's median PSNR and that of the best guess without the gradient (prior).  An "
    "example counts as leaked if any attack meets the rule for its kind of data: "
    + "; ".join(f"{kind.plural}: {kind.success.words}" for kind in KINDS.values())
    + ".  0: these attacks got nothing back, a lower bound on what leaks.  "
    + ", ".join(f"{point.name}: {point.heading}" for point in POINTS.values())
    + ".  ≥: some attacks failed, or none knew the defense: the true figure may be higher."
)
_LISTENERS = {  # interception point → listener
    "type-2": "inside the client",
    "type-1": "in the client's update",
    "type-0": "at the server",
    "aggregate": "in the mean",
}
_SUMMARISED = 2  # conditions with their leakage described in words
_INDENT = 13  # columns
_BOLD = ("what leaks", "defense", "attack")  # headings of the first line of a summary


def announce(
    console: Console, title: str, schedule: RunSchedule, pool: PoolSpec, span: tuple[float, float] | None = None
) -> None:
    """Print on `console` the plan of a run: the number of cells (experiments), the workers and the estimated time.

    - `title`: text of the first line.
    - `schedule`: the cells to run.
    - `pool`: number and kind of the worker processes.
    - `span`: least and most CPU seconds that similar published runs took; None leaves them out."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Results of a finished run and the user's request, from which `conclude` prints the last lines of `bench run`."""

    records: Sequence[Record]
    """Records of the run."""
    run: Path
    """Run folder."""
    request: Request
    """The user's request: matrix, plug-ins and options."""
    published: Sequence[PublishedFigures]
    """Results from papers that are printed for comparison with the run's trainings."""
    mlflow: str
    """A line of text about the upload to MLflow."""
    verbose: bool = False
    """True also prints the gain from knowledge of the defense, the caveats for ε and the legend."""
    joined: Joined | None = None
    """The run's records together with the shipped reference results, if the run is of a suite (a frozen matrix) of
    defenses; None otherwise."""
    ranked: Ranked | None = None
    """The run's attacks together with the shipped attacks, if the run is of the suite `attacks`; None otherwise."""


def conclude(console: Console, ending: Ending) -> None:
    """Print the last lines of `bench run` on `console`: tables of results, numbers of failures, and lines about
    leakage, evidence and next steps. `ending` holds the run's results.

    For a run of a suite (a frozen matrix), the standings of its defenses or attacks replace the tables, unless
    `ending.verbose` is True. A user's own defense or attack then gets a summary of its rank, in place of the lines; a
    published defense or attack gets a comparison with its published records."""
    conditions = by_condition(ending.records)
    console.print()
    for shown in _tables(ending, conditions):
        console.print(shown)
    for status, style in (("crashed", "red"), ("n/a", "")):
        reasons = [record.reason or "" for record in ending.records if record.status == status]
        if reasons:
            say(console, f"{len(reasons)} {status}: {_most(reasons)}", style)
    if ending.ranked is not None:
        _ranks(console, ending, ending.ranked)
    elif ending.joined is not None and ending.joined.own:
        _stands(console, ending.joined, ending.run)
    else:
        _say_lines(console, [*_findings(ending, conditions), *_next(ending)])


def _tables(ending: Ending, conditions: Sequence[Condition]) -> Iterator[RenderableType]:
    joined, verbose = ending.joined, ending.verbose
    whole = (joined is None and ending.ranked is None) or verbose
    if ending.ranked is not None:
        yield attackers_form.terminal(ending.ranked.cross, f"{attackers.VERSION}: attacks over its conditions")
    if joined is not None:
        yield standings.terminal(joined.standings, f"{joined.version}: standings over its conditions")
    if conditions and whole:
        yield terminal.conditions(conditions)
    if whole and (trained := trainings(ending.records, ending.published)):
        yield terminal.trainings(trained, ending.published, caveats=verbose)
    if verbose and (known := knowledge(ending.records)):
        yield ""
        yield terminal.knowledge(known)
    if verbose and conditions:
        yield Text(_LEGEND, style="dim")


def _findings(ending: Ending, conditions: Sequence[Condition]) -> Iterator[tuple[str, str]]:
    if ending.joined is not None:
        yield from _labelled("made again", again.lines(again.compared(ending.records, ending.joined.records)))
    yield from _labelled("what leaks", _leaks(conditions))
    yield from _labelled("believe it?", _evidence(conditions, ending.records))


def _next(ending: Ending) -> Iterator[tuple[str, str]]:
    run, request = ending.run, ending.request
    yield "next", f"bench leaderboard {run}   ranked, with costs and doubts"
    if (cell := next((record.id[:8] for record in ending.records if record.attack), None)) is not None:
        yield "", f"bench show {cell}   a cell in words, with its pictures"
    yield "", f"bench ui {run}   MLflow: {ending.mlflow}"
    if not request.plugins:
        yield "", f"bench run --matrix {request.matrix} --plugin my_defense.py --defense round-off   (README)"
    yield "kept in", f"{run}   records, pictures"


def _labelled(label: str, texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    yield from (("" if n else label, text) for n, text in enumerate(texts))


def _stands(console: Console, joined: Joined, run: Path) -> None:
    for defense in joined.own:
        shown = [("defense", defense), *summary.lines(joined, defense)]
        if picture := summary.picture(joined, defense, run):
            shown.append(("picture", str(picture)))
        _say_lines(console, shown)
    _say_lines(console, [("next", f"bench leaderboard {run}   --conditions, --attacks, --html FILE")])


def _ranks(console: Console, ending: Ending, ranked: Ranked) -> None:
    """Print four lines for each attack of the run that is not published, and a comparison for each published attack.
    The comparison is with the published records of the same attack."""
    for attack in ranked.own:
        _say_lines(console, [("attack", attack), *attackers.lines(ranked, attack)])
    if ranked.shipped and (repeated := again.compared(ending.records, ranked.shipped, by=of_attack)):
        again_lines = list(_labelled("made again", again.lines(repeated)))
        _say_lines(console, [*again_lines, *(line for name in repeated for line in attackers.draws(ranked, name))])
    _say_lines(console, [("next", f"bench leaderboard {ending.run}   --html FILE, --markdown FILE, --json")])


def _say_lines(console: Console, lines: Iterable[tuple[str, str]]) -> None:
    console.print()
    for name, text in lines:
        # commands and paths are not wrapped, so that they can be copied
        parts = (
            [text]
            if "bench " in text or name == "picture"
            else textwrap.wrap(text, max(40, console.width - _INDENT), break_on_hyphens=False) or [""]
        )
        for n, part in enumerate(parts):
            label = f"{'' if n else name:{_INDENT}}"
            console.print(Text.assemble((label, "bold" if name in _BOLD else "dim"), part), soft_wrap=True)


def _leaks(conditions: Sequence[Condition]) -> Iterator[str]:
    """Yield for each of the first conditions the title, then a line for defenses with equal success rates."""
    for condition, title in zip(conditions[:_SUMMARISED], _titles(conditions), strict=False):
        alike: dict[str, list[str]] = {}
        names = distinct(condition.rows)
        for defense, row in condition.rows.items():
            figures = {point: row[point] for point in ordered(row) if row[point].asr is not None}
            text = _by_listener(figures) if figures else _named(row)
            if text:
                alike.setdefault(text, []).append(names[defense])
        yield title if alike else f"{title}: nothing was attacked"
        yield from (f"- {', '.join(defenses)}: {figures}" for figures, defenses in alike.items())
    if len(conditions) > _SUMMARISED:
        yield f"and {len(conditions) - _SUMMARISED} more conditions, above"


def _by_listener(figures: Mapping[str, WorstCase]) -> str:
    """Return the highest success rate for each listener in words; listeners with equal rates are joined, and listeners
    whose reading the defense does not change come last."""
    acting = {point: worst for point, worst in figures.items() if not worst.unchanged}
    without = [_LISTENERS.get(point, point) for point in figures if point not in acting]
    shown = acting or figures
    rates: dict[str, list[str]] = {}
    for point, worst in shown.items():
        rates.setdefault(_rate(worst), []).append(_LISTENERS.get(point, point))
    text = "; ".join(f"{figure} {', '.join(listeners)}" for figure, listeners in rates.items())
    return f"{text}; no effect {', '.join(without)}" if acting and without else text


def _named(row: Mapping[str, WorstCase]) -> str:
    """Return the share of examples named among candidates, for each listener in words; empty if no attack named any."""
    named = {point: recognition(row[point])[1] for point in ordered(row)}
    shares = (f"{share(rate.value)} {_LISTENERS.get(point, point)}" for point, rate in named.items() if rate)
    text = "; ".join(shares)
    return f"named among candidates: {text}" if text else ""


def _rate(worst: WorstCase) -> str:
    figure = rate(worst.asr, lower_bound=worst.lower_bound)
    if worst.asr == 0 and worst.interval and not worst.lower_bound:
        figure += f" (at most {share(worst.interval[1])})"
    return figure


def _titles(conditions: Sequence[Condition]) -> Iterator[str]:
    """Yield each condition's data set; conditions with the same data set also get the title parts that differ."""
    parts = [condition.title.split(" · ") for condition in conditions]
    for dataset, *rest in parts:
        alike = [other for other in parts if other[0] == dataset]
        yield " · ".join([dataset, *(part for part in rest if not all(part in other for other in alike))])


def _evidence(conditions: Sequence[Condition], records: Sequence[Record]) -> Iterator[str]:
    """Yield the reasons to trust the figures, the success rule for each kind of data, and the limits."""
    for condition in conditions:
        if points := without_evidence(condition):
            nothing = f"at {', '.join(points)} no attack got anything back even without a defense"
            yield f"no: {condition.title}: {nothing}, so 0 there says nothing of the defenses"
    if conditions:
        kinds = {record.attack.data_kind for record in records if record.attack and record.attack.summary}
        yield from (f"leaked: {kind.success.words}" for kind in KINDS.values() if kind in kinds)
        yield "0 is no proof, ≥ a lower bound; --verbose and docs/EVALUATION.md"


def upload_line(run: Path, tracking_uri: str | None, uploaded: UploadResult | None, waiting: str | None) -> str:
    """Return a line of text about a run's upload to MLflow, for the end of a command.

    - `run`: run folder.
    - `tracking_uri`: the MLflow store's address; None or "" for the default store.
    - `uploaded`: result of the upload; None if no upload was requested.
    - `waiting`: reason why records are not uploaded yet; None: no reason."""
    if uploaded is None:
        return f"not requested; `bench sync {run}` uploads"
    if waiting:
        return waiting
    address = store.shown(store.checked_uri(run, tracking_uri or None))
    return f"{uploaded.count} runs uploaded, {uploaded.skipped} there before: {address}"


def _most(reasons: Sequence[str]) -> str:
    common = max(set(reasons), key=reasons.count)
    others = len(set(reasons)) - 1
    return common + (f" (and {others} other reason{'s' if others > 1 else ''})" if others else "")
