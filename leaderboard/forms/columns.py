"""The board's columns, defined once for terminal, Markdown, CSV, LaTeX and HTML."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from bench.leaderboard.board import AtPoint, Row
from bench.leaderboard.conditions import ordered
from bench.leaderboard.costs import DefenseCost
from bench.leaderboard.forms.numbers import NONE, figure, fine, formatted, interval, rate, share
from bench.leaderboard.recognition import Rate
from bench.record.groups import grouped
from bench.record.metrics import COMPARED, PSNR_DB, Metric
from bench.record.names import distinct

PARETO = "◆"  # on the Pareto front of ASR and accuracy
INCOMPLETE = "·"  # in place of a rank
BROKEN = "✗"  # in place of a rank, of a row with a fault
_AT, _COST, _EVIDENCE, _BEST = (
    "Attack success rate at each interception point",
    "Cost of the defense",
    "Evidence",
    "Best single attack at the worst point",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A board row with short names for its defense and for the attacks, ready for output."""

    row: Row
    """The board row."""
    name: str
    """The defense's short name, distinct within the condition."""
    attacks: Mapping[str, str]
    """Map from full to short name, for every attack on the board."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the board in all output forms (CSV, Markdown, page, terminal): how to compute its value from a board
    row, how to format the value, and where the column appears."""

    name: str
    """The column's name in CSV."""
    heading: str
    """Heading above the column for readers."""
    value: Callable[[Row], Any]
    """Function from a board row to the column's value. CSV holds this value, and the page sorts by this value."""
    show: Callable[[Any], str] = str
    """Function that formats a value for readers. A value of None is shown as a dash."""
    words: Callable[[Line], str] | None = None
    """Function from a `Line` (a board row with the short names of its defense and attacks) to the text for readers, in
    place of `show`, for texts with these names. None uses `show`."""
    forms: tuple[Literal["csv", "markdown", "page"], ...] = ("csv", "markdown", "page")
    """Output forms that have this column."""
    terminal: tuple[str, str] | None = None
    """Position in the terminal table: (heading of the terminal column, prefix before the value). Several columns may
    share a heading. None: not in the terminal."""
    group: str = ""
    """Heading above several columns; empty for none."""
    kind: Literal["num", "text", "unsortable"] = "num"
    """How the page sorts the column."""
    cell: str = "figure"
    """Name of the template macro that draws the column's table cells on the page."""
    point: str = ""
    """Interception point of the values; empty for none."""
    note: Callable[[Row], str | None] = lambda row: None
    """Function from a board row to the small text below the value on the page; None for no text."""

    @property
    def spoken(self) -> str:
        """Heading of the column for a table without group headings. For success rates, the heading includes the
        interception point, such as `ASR at type-1` (attack success rate)."""
        return {"#": "Rank"}.get(self.heading, f"ASR at {self.point}" if self.cell == "rate" else self.heading)

    def known(self, row: Row) -> Any:
        """Return this column's value for the board row `row`; None if the value is unknown or not finite."""
        value = self.value(row)
        return None if isinstance(value, float) and not isfinite(value) else value

    def text(self, line: Line) -> str:
        """Return this column's value for the board row in `line` as text for readers."""
        if self.words is not None:
            return self.words(line)
        value = self.known(line.row)
        return NONE if value is None else self.show(value)


def lines(rows: Sequence[Row]) -> list[Line]:
    """Shorten the names of defenses and attacks for a board, such that they stay distinct. Return a `Line` (row with
    names) for each board row in `rows`, in the same order."""
    by_key = grouped(rows, lambda row: row.key)
    names = {key: distinct(row.defense for row in group) for key, group in by_key.items()}
    points = [at for row in rows for at in row.points.values()]
    met = {name for at in points for name in (*at.by_attack, *at.absent, *at.crashed, *at.missing)}
    attacks = distinct(sorted(met | {at.best.attack for at in points if at.best}))
    return [Line(row=row, name=names[row.key][row.defense], attacks=attacks) for row in rows]


def columns(rows: Iterable[Row]) -> list[Column]:
    """Return the columns of a board: fixed columns, and further columns for each interception point in the board rows
    `rows`."""
    rows = list(rows)
    points, metrics = ordered(point for row in rows for point in row.points), compared(rows)
    return [
        *_IDENTITY,
        *(column for point in points for column in _at(point, metrics)),
        *_RECOGNISED,
        *_COSTS,
        *_REST,
        *_OF_BEST,
        *map(_median, metrics),
        _PRIOR,
    ]


def compared(rows: Iterable[Row]) -> list[Metric]:
    """Return the metrics (such as PSNR) by which a board compares attacks. Optional metrics are left out if none of the
    board `rows` has a value."""
    best = [at.best.medians for row in rows for at in row.points.values() if at.best]
    return [
        metric
        for metric in COMPARED
        if not metric.optional or any(medians.get(metric.name) is not None for medians in best)
    ]


def codes(row: Row) -> list[str]:
    """Return the codes of the flags (warnings) of a board `row`, such as `no-evidence`, without repeats; codes that
    make the row incomplete come first."""
    return list(dict.fromkeys(flag.code for flag in row.flags))


def unscored(at: AtPoint | None) -> str:
    """Return the text in place of a missing success rate at an interception point: the reason (crashed or n/a, not
    applicable), or a dash. `at` are the defense's figures at the point, or None without figures."""
    return "crashed" if at and at.crashed else "n/a" if at and at.absent else NONE


def short_attack(attack: str) -> str:
    """Shorten an attack's full name `attack` to name and knowledge of the defense, such as `cpl adaptive`."""
    name, knowledge = attack.partition("(")[0].partition(" ·")[0], attack.rpartition(" · ")
    return f"{name} {knowledge[2]}" if knowledge[1] else name


def _rank(line: Line) -> str:
    row = line.row
    rank = BROKEN if row.broken else str(row.rank) if row.complete else INCOMPLETE
    return rank + (f" {PARETO}" if row.pareto else "")


def _rate(at: AtPoint | None) -> str:
    if at is None or at.asr is None:
        return unscored(at)
    return f"{rate(at.asr, lower_bound=at.lower_bound)} [{interval(at.interval)}]"


def _attacks(line: Line) -> str:
    """Return the numbers of attacks by outcome as text, such as `5 run, 1 n/a, 1 crashed`."""
    points = line.row.points.values()
    words = {"by_attack": "run", "absent": "n/a", "missing": "missing", "crashed": "crashed"}
    counts = {field: len({name for at in points for name in getattr(at, field)}) for field in words}
    return ", ".join(f"{n} {words[field]}" for field, n in counts.items() if n or field == "by_attack")


def _best_attack(line: Line) -> str:
    best = line.row.worst.best if line.row.worst else None
    return line.attacks[best.attack] if best else NONE


def _at(point: str, metrics: Iterable[Metric]) -> list[Column]:
    """Return an interception point's columns: the success rate, and for CSV further figures, with the best attack's
    medians of `metrics`."""

    def of(read: Callable[[AtPoint], Any]) -> Callable[[Row], Any]:
        return lambda row: read(row.points[point]) if point in row.points else None

    def more(name: str, read: Callable[[AtPoint], Any]) -> Column:
        return Column(name=f"{point} {name}", heading=name, value=of(read), forms=("csv",))

    def median(metric: Metric) -> Column:
        return more(metric.name, lambda at: at.best and at.best.medians.get(metric.name))

    return [
        Column(
            name=f"{point} asr",
            heading=point,
            value=of(lambda at: at.asr),
            group=_AT,
            cell="rate",
            words=lambda line: _rate(line.row.points.get(point)),
            point=point,
            terminal=(point, ""),
        ),
        more("low", lambda at: at.interval and at.interval[0]),
        more("high", lambda at: at.interval and at.interval[1]),
        more("lower_bound", lambda at: at.lower_bound),
        more("at_least_once", lambda at: at.at_least_once),
        more("examples", lambda at: at.examples),
        more("identified", lambda at: at.identified and at.identified.value),
        more("identified_ceiling", lambda at: at.identified and at.identified.ceiling),
        more("identified_here", lambda at: at.identified and at.identified.here),
        more("named", lambda at: at.named and at.named.value),
        more("named_ceiling", lambda at: at.named and at.named.ceiling),
        more("named_here", lambda at: at.named and at.named.here),
        more("best_attack", lambda at: at.best and at.best.attack),
        more("best_asr", lambda at: at.best and at.best.asr),
        *map(median, metrics),
        more("prior_asr", lambda at: at.prior_asr),
        more("prior_psnr_db", lambda at: at.prior_psnr_db),
        more("reference_db", lambda at: at.reference_db),
        more("epsilon", lambda at: at.epsilon),
    ]


def _bar(row: Row) -> str:
    """Return the PSNR of the prior-only baselines and, if computed, of the linear-Gaussian reference, as text."""
    worst = row.worst
    prior = figure(PSNR_DB, worst.prior_psnr_db if worst else None)
    if worst is None or worst.reference_db is None:
        return prior
    return f"{prior}, linear-Gaussian {figure(PSNR_DB, worst.reference_db)}"


def recognised(rate: Rate) -> str:
    """Format `rate`, a share of recognised examples, on up to three lines: the share with its interval, such as `12 %
    [5–24 %]`; the chance level of a blind guess, such as `chance 1.0 %`; the upper bounds, such as `ceiling 1.6 %, here
    1.5 %`. `ceiling` is the largest share that ε allows any attacker, `here` the share of the best possible attacker in
    this setting."""
    provable = "no ceiling" if rate.ceiling is None else f"ceiling {fine(rate.ceiling)}"
    provable += "" if rate.here is None else f", here {fine(rate.here)}"
    return f"{share(rate.value)} [{interval(rate.interval)}],\nchance {fine(rate.chance)},\n{provable}"


def _cost(read: Callable[[DefenseCost], Any]) -> Callable[[Row], Any]:
    return lambda row: read(row.cost) if row.cost else None


def _accuracy_note(row: Row) -> str | None:
    if (cost := row.cost) is None:
        return "not trained"
    notes = [] if cost.loss is None else [f"lost {_points_lost(cost.loss)}"]
    if cost.diverged:
        notes.append(f"{cost.diverged} of {cost.seeds} diverged")
    elif cost.seeds > 1:
        notes.append(f"{cost.seeds} seeds")
    return ", ".join(notes) or None


def _epsilon_note(row: Row) -> str | None:
    cost = row.cost
    if cost is None or cost.epsilon is None:
        return None
    delta = f"δ = {cost.delta:.0e}".replace("e-0", "e-") if cost.delta else ""
    adjacency = (cost.epsilon_adjacency or "").split(":")[0].removeprefix("one ")
    neighbours = f"{cost.epsilon_unit or ''} {adjacency}".strip()
    return ", ".join(filter(None, [delta, neighbours])) or None


def _points_lost(value: float) -> str:
    return f"{100 * value:.1f} pp".replace("-0.0", "0.0").replace("-", "−")


def _of_worst(read: Callable[[AtPoint], Any]) -> Callable[[Row], Any]:
    return lambda row: read(row.worst) if row.worst else None


def _median(metric: Metric) -> Column:
    return Column(
        name=f"worst {metric.name}",
        heading=metric.label,
        group=_BEST,
        forms=("markdown", "page"),
        value=_of_worst(lambda at: at.best and at.best.medians.get(metric.name)),
        show=lambda value: figure(metric, value),
    )


_IDENTITY = (
    Column(name="rank", heading="#", value=lambda row: row.rank, words=_rank, terminal=("#", ""), cell="rank"),
    Column(
        name="defense",
        heading="Defense",
        value=lambda row: row.defense,
        words=lambda line: line.name,
        terminal=("defense", ""),
        kind="text",
        cell="defense",
    ),
    Column(name="title", heading="Condition", value=lambda row: row.title, forms=("csv",), kind="text"),
    Column(
        name="examples",
        heading="Examples",
        value=lambda row: None,
        forms=("page",),
        kind="unsortable",
        cell="thumbnail",
    ),
    Column(name="complete", heading="Complete", value=lambda row: row.complete, forms=("csv",)),
    Column(name="pareto", heading="Pareto", value=lambda row: row.pareto, forms=("csv",)),
    Column(name="protocol", heading="Protocol", value=lambda row: row.protocol, forms=("csv",)),
    Column(name="worst_point", heading="Worst point", value=_of_worst(lambda at: at.point), forms=("csv",)),
)
_RECOGNISED = (
    Column(
        name="identified",
        heading="Identified",
        value=lambda row: row.most_identified and row.most_identified.value,
        words=lambda line: recognised(line.row.most_identified) if line.row.most_identified else NONE,
        terminal=("identified", ""),
        group=_AT,
        cell="recognised",
    ),
    Column(
        name="named",
        heading="Named",
        value=lambda row: row.most_named and row.most_named.value,
        words=lambda line: recognised(line.row.most_named) if line.row.most_named else NONE,
        terminal=("identified", "named "),
        group=_AT,
        cell="recognised",
    ),
)
_COSTS = (
    Column(
        name="accuracy",
        heading="Accuracy",
        value=_cost(lambda cost: cost.accuracy),
        group=_COST,
        show=lambda value: share(value, 1),
        note=_accuracy_note,
        terminal=("accuracy", ""),
    ),
    Column(
        name="accuracy_lost",
        heading="Lost",
        value=_cost(lambda cost: cost.loss),
        group=_COST,
        show=_points_lost,
        terminal=("accuracy", "lost "),
        forms=("csv", "markdown"),
    ),
    Column(
        name="epsilon",
        heading="ε",
        value=_cost(lambda cost: cost.epsilon),
        group=_COST,
        cell="epsilon",
        show=lambda value: formatted(value, ".3g"),
        note=_epsilon_note,
        terminal=("accuracy", "ε "),
    ),
    Column(
        name="overhead",
        heading="Overhead",
        value=_cost(lambda cost: cost.overhead),
        group=_COST,
        show=lambda value: f"× {value:.2f}",
        terminal=("accuracy", ""),
    ),
    Column(name="delta", heading="δ", value=_cost(lambda cost: cost.delta), forms=("csv",)),
    Column(name="epsilon_unit", heading="unit", value=_cost(lambda cost: cost.epsilon_unit), forms=("csv",)),
    Column(
        name="epsilon_adjacency", heading="adjacency", value=_cost(lambda cost: cost.epsilon_adjacency), forms=("csv",)
    ),
    Column(
        name="epsilon_absent",
        heading="no ε",
        forms=("csv",),
        value=lambda row: row.cost.epsilon_absent if row.cost else "not trained here",
    ),
    Column(name="trained", heading="Trained", value=_cost(lambda cost: cost.setting), forms=("csv",)),
)
_REST = (
    Column(
        name="flags",
        heading="Flags",
        value=lambda row: "; ".join(f"{flag.code}: {flag.text}" for flag in row.flags),
        words=lambda line: " ".join(codes(line.row)),
        group=_EVIDENCE,
        kind="text",
        cell="flags",
        terminal=("defense", ""),
    ),
    Column(
        name="attacks",
        heading="Attacks",
        words=_attacks,
        group=_EVIDENCE,
        cell="coverage",
        forms=("csv", "page"),
        value=lambda row: len({name for at in row.points.values() for name in at.by_attack}),
    ),
)
_OF_BEST = (
    Column(
        name="worst best_attack",
        heading="Attack",
        value=_of_worst(lambda at: at.best and at.best.attack),
        words=_best_attack,
        group=_BEST,
        kind="text",
        cell="name",
        forms=("markdown", "page"),
    ),
    Column(
        name="worst best_asr",
        heading="Its ASR",
        value=_of_worst(lambda at: at.best and at.best.asr),
        show=share,
        group=_BEST,
        forms=("markdown", "page"),
    ),
)
_PRIOR = Column(
    name="worst prior_psnr_db",
    heading="Prior PSNR",
    value=_of_worst(lambda at: at.prior_psnr_db),
    words=lambda line: _bar(line.row),
    group=_BEST,
    forms=("markdown", "page"),
)
