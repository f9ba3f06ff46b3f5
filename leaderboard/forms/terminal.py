"""Terminal tables with at most 80 columns."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.text import Text

from bench.leaderboard.attacks import AttackRow
from bench.leaderboard.board import AtPoint, Row
from bench.leaderboard.conditions import Condition
from bench.leaderboard.forms.cells import below
from bench.leaderboard.forms.columns import Column, Line, columns, lines, short_attack
from bench.leaderboard.forms.notes import LEGEND, notes
from bench.leaderboard.forms.numbers import NONE, figure, formatted, interval, rate, share
from bench.leaderboard.forms.tables import Table
from bench.leaderboard.knowledge import KnowledgeRow
from bench.leaderboard.trainings import TrainingRow, missing
from bench.leaderboard.worst import WorstCase
from bench.matrix.published import PublishedFigures
from bench.record.groups import grouped
from bench.record.metrics import COMPARED, PSNR_DB, RMSE
from bench.record.names import distinct
from bench.record.schema import BayesianResult

UNDESCRIBED = "plain: the defense describes nothing"


def board(rows: Sequence[Row]) -> RenderableType:
    """Return a terminal table for each condition (data set, model, federated setting) of the board `rows`, followed by
    the warnings (flags) on the defenses in the table."""
    parts: list[RenderableType] = []
    for title, group in grouped(lines(rows), lambda line: line.row.title).items():
        parts += [_board_table(title, group), *(Text(note, style="dim") for note in notes(group)), Text("")]
    return Group(*parts, Text(LEGEND, style="dim"))


def conditions(every: Iterable[Condition], *, detail: bool = True) -> RenderableType:
    """Return a terminal table for each condition in `every`: the share of reconstructed examples against each defense
    at each interception point, over all attacks.

    `detail` True adds the interval, the most successful attack with its median PSNR, and the best prior-only baseline
    (a guess without the gradient)."""
    return Group(*(_condition_table(condition, detail) for condition in every))


def attacks(rows: Iterable[AttackRow]) -> RenderableType:
    """Return the attack table for a terminal: a table for each shared configuration (model, weights, setting) in
    `rows`. Figures published in papers stand below measured figures, in dim type."""
    groups = grouped(rows, lambda row: row.title)
    return Group(*(_attack_table(title, group) for title, group in groups.items()), *_sources(groups))


def knowledge(rows: Iterable[KnowledgeRow]) -> RenderableType:
    """Return a terminal table for each condition: success of attackers with and without knowledge of the defense.
    `rows` are the figures, a row for each defense and interception point."""
    groups = grouped(rows, lambda row: row.condition)
    return Group(*(_knowledge_table(title, group) for title, group in groups.items()))


def trainings(
    rows: Sequence[TrainingRow], published: Sequence[PublishedFigures] = (), *, caveats: bool = True
) -> RenderableType:
    """Return the training table for a terminal: a table for each data set and setting.

    - `rows`: rows of the table, a row per training configuration.
    - `published`: figures from papers.
    - `caveats`: True adds the limits to the validity of ε."""
    groups = grouped(rows, lambda row: f"{row.dataset} · {row.model} · {row.setting}")
    words = [f"{row.defense}: {line}" for row in rows for line in bayesian(row.bayesian)]
    words += dict.fromkeys(f"ε: {caveat}" for row in rows for caveat in row.caveats if caveats)
    gone = [f"not run at this scale: {_in_words(each)}" for each in missing(rows, published)]
    return Group(
        *(_training_table(title, group) for title, group in groups.items()),
        *(Text(line, style="dim") for line in words),
        *_sources(groups),
        *(Text(line, style="dim") for line in gone),
    )


def bayesian(result: BayesianResult | None) -> list[str]:
    """Format the Bayesian ε of a training, `result`, as lines of text, one for each protected unit (example or client),
    next to the moments accountant's ε; [] for None."""
    if result is None:
        return []
    words = []
    for level, spent in result.spent.items():
        rounds = result.by_round[level]
        moments = rounds[-1].moments_epsilon if rounds else None
        other = "" if moments is None else f" (moments accountant of the same rounds: {moments:.3g})"
        value = "none" if spent.epsilon is None else f"{spent.epsilon:.3g}"
        words.append(f"{spent.accountant}: ε {value} at δ {spent.delta:g}{other}")
    return [*words, *(f"Bayesian, {level} level: {reason}" for level, reason in result.absent.items())]


def _board_table(title: str, group: Sequence[Line]) -> RenderableType:
    """Draw a board table with the heading `title`, in 80 columns. Related figures share a column, and columns without a
    value are omitted."""
    stacks = grouped(columns(line.row for line in group), lambda column: column.terminal and column.terminal[0])
    shown = {
        heading: stack
        for heading, stack in stacks.items()
        if heading and any(column.point or column.text(line) != NONE for column in stack for line in group)
    }
    table = _table(shown, narrow=13)
    for line in group:
        table.add_row(*(_stacked(stack, line) for stack in shown.values()))
    return _titled(title, table)


def _stacked(stack: Sequence[Column], line: Line) -> Text:
    if stack[0].point:
        at = line.row.points[stack[0].point]
        best = short_attack(at.best.attack).replace(" ", "\n") if at.best and at.best.asr > 0 else ""
        return _scored(at, best=best)
    first, *rest = stack
    name = _narrow(first.text(line)) if first.cell == "recognised" else first.text(line)
    # a space before the parameters lets a narrow column break before them
    text = Text(name.replace("(", " (", 1) if first.name == "defense" else name)
    for column in rest:
        words = _narrow(column.text(line)) if column.cell == "recognised" else column.text(line)
        if words not in (NONE, ""):
            assert column.terminal is not None
            fault = column.name == "flags" and line.row.broken
            text.append(f"\n{column.terminal[1]}{words}", style="bold red" if fault else "dim")
    return text


def _narrow(recognised: str) -> str:
    """Put each figure of a recognition text on its own line: `7 %`, `3–15 %`, `chance 13 %`, `ceiling 20 %`, `here 16
    %`."""
    value, _, rest = recognised.replace("\n", " ").partition(" [")
    return "\n".join([value, *rest.replace("]", "").split(", ")]) if rest else recognised


def _scored(worst: WorstCase | AtPoint, *, best: str = "", nothing: str = NONE) -> Text:
    """Format a success rate in colour, then its interval and the attack `best` in dim text. Without a rate, the text is
    the reason (crashed, n/a) or `nothing`."""
    if worst.asr is None:
        if worst.crashed:
            return Text("crashed", style="red")
        return Text("n/a" if worst.absent else nothing, style="dim")
    style = "red" if worst.asr >= 0.5 else "yellow" if worst.asr > 0 or worst.lower_bound else "green"
    return below(Text(rate(worst.asr, lower_bound=worst.lower_bound), style=style), interval(worst.interval), best)


def _condition_table(condition: Condition, detail: bool) -> RenderableType:
    names = distinct(condition.rows)
    table = _table(("defense", *condition.points), bordered=True)
    for defense, row in condition.rows.items():
        cells = [_condition_cell(row[point], detail) if point in row else Text("") for point in condition.points]
        table.add_row(names[defense], *cells)
    return _titled(condition.title, table)


def _condition_cell(worst: WorstCase, detail: bool) -> Text:
    best, prior = worst.best, worst.prior_psnr_db
    text = _scored(worst, best=_best(worst, *best) if best and best[1] > 0 else "", nothing="…")
    if worst.asr is None or not detail:
        return text.split("\n")[0]
    psnr = figure(PSNR_DB, worst.best_median(PSNR_DB))
    return text if prior is None else below(text, psnr, f"prior {figure(PSNR_DB, prior)}")


def _best(worst: WorstCase, attack: str, asr: float) -> str:
    """Return the best single attack's short name, with its rate `asr` if other attacks leak further examples."""
    name = short_attack(attack)
    return name if asr == worst.asr else f"{name} {share(asr)}"


def _attack_table(title: str, rows: list[AttackRow]) -> RenderableType:
    varied = [name for name in ("defense", "point") if len({getattr(row, name) for row in rows}) > 1]
    constant = [getattr(rows[0], name) for name in ("defense", "point") if name not in varied]
    # Next to seven figures, several name columns would be too narrow: names share a column.
    names = (" · ".join(("data set", "attack", *varied)),) if varied else ("data set", "attack")
    # a further metric only if a paper publishes it: seven figures fill 80 columns
    published = {name for row in rows for name in _published(row)} - {RMSE.name, PSNR_DB.name}
    further = next((metric for metric in COMPARED if metric.name in published), None)
    second = further.label if further else "of leaked"
    figures = ("ASR", "RMSE", second, "PSNR", "evals", "outer", "diverged")
    table = _table((*names, *figures), folded=names, narrow=12 if varied else 8)
    short = {name: distinct(getattr(row, name) for row in rows) for name in ("attack", "defense")}
    for row in rows:
        paper = _published(row)
        parts = [row.dataset, short["attack"][row.attack]]
        parts += [short["defense"].get(getattr(row, name), getattr(row, name)) for name in varied]
        psnr = _beside(figure(PSNR_DB, row.medians[PSNR_DB.name]), paper.get("psnr_db"), ".1f")
        psnr = below(psnr, f"prior {figure(PSNR_DB, row.prior_psnr_db)}")
        table.add_row(
            *([" · ".join(parts)] if varied else parts),
            _attack_rate(row, paper.get("asr")),
            _beside(figure(RMSE, row.medians[RMSE.name]), paper.get("rmse"), ".3f"),
            _beside(figure(further, row.medians[further.name]), paper.get(further.name), ".3f")
            if further
            else figure(RMSE, row.rmse_of_successes),
            psnr,
            formatted(row.evaluations),
            _beside(formatted(row.outer), paper.get("iterations")),
            share(row.diverged),
        )
    return _titled(" · ".join([title, *constant]), table)


def _attack_rate(row: AttackRow, published: float | None) -> Text:
    if row.asr is None:
        return Text("crashed" if row.crashed else NONE, style="red" if row.crashed else "dim")
    return below(share(row.asr), interval(row.interval), published is not None and f"paper {share(published, 1)}")


def _knowledge_table(title: str, rows: list[KnowledgeRow]) -> RenderableType:
    black_box = any(row.black_box for row in rows)
    headings = ("defense", "point", "plain", "adaptive", "change", "RMSE", "PSNR") + ("black box",) * black_box
    table = _table(headings, narrow=12)
    names = distinct(row.defense for row in rows)
    for row in rows:
        both = row.plain, row.adaptive
        priors = [worst.prior_psnr_db for worst in both if worst.prior_psnr_db is not None]
        rmse, psnr = (
            " → ".join(figure(metric, worst.best_median(metric)) for worst in both) for metric in (RMSE, PSNR_DB)
        )
        psnr = psnr.replace(" dB", "", 1)  # once is enough: 80 columns are full
        table.add_row(
            names[row.defense],
            row.point,
            *(_informed(worst) for worst in both),
            Text(UNDESCRIBED, style="dim") if row.undescribed else _change(row.change),
            rmse,
            below(psnr, f"prior {figure(PSNR_DB, max(priors, default=None))}"),
            *[_black_box(row.black_box)] * black_box,
        )
    return _titled(f"{title} · what knowing the defense gains", table)


def _black_box(worst: WorstCase | None) -> Text:
    """Format the black-box attacks' success rate, and the best attack's median PSNR; None becomes a dash."""
    if worst is None:
        return Text(NONE, style="dim")
    text = _informed(worst)
    best = worst.best_median(PSNR_DB)
    return text if best is None else text.append(f"\n{figure(PSNR_DB, best)}", style="dim")


def _informed(worst: WorstCase) -> Text:
    if worst.asr is None:
        return Text("crashed" if worst.crashed else "…", style="dim")
    best = worst.best
    name = short_attack(best[0]).partition(" ")[0] if best and best[1] > 0 else ""
    return below(rate(worst.asr, lower_bound=worst.lower_bound), name)


def _change(change: tuple[float, float, float] | None) -> Text:
    if change is None:
        return Text(NONE, style="dim")
    difference, low, high = change
    style = "red" if low > 0 else "green" if high < 0 else "dim"
    sign = "+" if difference > 0 else ""
    return Text(f"{sign}{share(difference)}\n{interval((low, high))}", style=style)


def _training_table(title: str, rows: Sequence[TrainingRow]) -> RenderableType:
    table = _table(("defense", "accuracy", "rounds", "ε paper", "ε valid", "ms/step", "× none"), narrow=18)
    short = distinct(row.defense for row in rows)
    several = len({row.length for row in rows}) > 1
    for row in rows:
        paper = _published(row)
        name = short[row.defense].replace("(", " (", 1) + (f" · {row.length}" if several else "")
        table.add_row(
            name,
            _accuracy(row, paper.get("accuracy")),
            _beside(formatted(row.rounds, "d"), paper.get("rounds")),
            _beside(formatted(row.epsilon_paper, ".3g"), paper.get("epsilon"), ".3f"),
            formatted(row.epsilon, ".3g"),
            _beside(formatted(row.milliseconds, ".2f"), paper.get("milliseconds")),
            _beside(formatted(row.overhead, ".2f"), paper.get("overhead"), ".2f"),
        )
    return _titled(title, table)


def _accuracy(row: TrainingRow, published: float | None) -> Text:
    if row.accuracy is None:
        return Text("crashed", style="red")
    span = f"{share(row.least, 1).removesuffix(' %')}–{share(row.most, 1)}" if row.seeds > 1 else ""
    text = below(share(row.accuracy, 1), span)
    if row.diverged:
        text.append(f"\n{row.diverged} diverged", style="yellow")
    return below(text, published is not None and f"paper {share(published, 1)}")


def _titled(title: str, table: Table) -> RenderableType:
    return Group(Text(title, style="bold"), table)


def _table(
    headings: Iterable[str], *, folded: Sequence[str] = ("defense",), narrow: int = 16, bordered: bool = False
) -> Table:
    box = {} if bordered else {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0)}
    table = Table(**box)  # type: ignore[arg-type]
    for heading in headings:
        if heading in folded:
            table.add_column(heading, overflow="fold", min_width=narrow)
        else:
            table.add_column(heading, no_wrap=heading != "change")
    return table


def _published(row: AttackRow | TrainingRow) -> Mapping[str, float]:
    return row.published.figures if row.published else {}


def _beside(measured: str, published: float | None, form: str = "g") -> Text:
    return below(measured, published is not None and f"paper {published:{form}}")


def _sources(groups: Mapping[str, Sequence[AttackRow | TrainingRow]]) -> list[Text]:
    sources = [row.published.source for rows in groups.values() for row in rows if row.published]
    return [Text(f"paper: {source}", style="dim") for source in dict.fromkeys(sources)]


def _in_words(published: PublishedFigures) -> str:
    where = ", ".join(f"{axis} {_pattern(value)}" for axis, value in published.where.items())
    return f"{where}: " + ", ".join(f"{name} {value:g}" for name, value in published.figures.items())


def _pattern(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    inner = ", ".join(f"{key}={item}" for key, item in value.items() if key != "name")
    return f"{value['name']}({inner})" if "name" in value and inner else str(value.get("name", inner))
