"""A preset's results as Markdown: attacks with the paper's figures, worst case, trainings."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from _make import report, texts
from bench.leaderboard.attacks import AttackRow, attacks
from bench.leaderboard.board import board
from bench.leaderboard.forms.markdown import cell, table
from bench.leaderboard.forms.numbers import NONE, figure, formatted, interval, share
from bench.leaderboard.trainings import TrainingRow, trainings
from bench.matrix.published import PublishedFigures
from bench.record.groups import grouped
from bench.record.metrics import PSNR_DB, RMSE, SSIM
from bench.record.names import distinct
from bench.record.schema import Record

_AnyRow = TypeVar("_AnyRow", AttackRow, TrainingRow)
_IDS = 3  # cells a row
# Heading, measured figure, published figure (field and format) or None.
_Column = tuple[str, Callable[[_AnyRow], str], tuple[str, str] | None]


def page(records: Sequence[Record], published: Sequence[PublishedFigures]) -> str:
    """A section for each kind of result among the records."""
    attacked, trained = attacks(records, published), trainings(records, published)
    sections = {
        "Texts": texts.sentences(records),
        "The attacks": _by_title(attacked, lambda row: row.title, _attacks) if attacked else "",
        "In the worst case": _worst(records, attacked),
        "Training": _by_title(trained, lambda row: f"{row.dataset} · {row.model} · {row.setting}", _trainings),
    }
    beside = [row.published for row in attacked] + [row.published for row in trained]
    sources = dict.fromkeys(figures.source for figures in beside if figures)
    parts = [f"## {title}\n\n{text}" for title, text in sections.items() if text]
    data = {row.dataset: None for row in attacked if _short(row.dataset) != row.dataset}
    parts += [f"*Data*: {cell(dataset)}.\n" for dataset in data]
    return "\n".join([*parts, *(f"*Paper*: {cell(source)}.\n" for source in sources)])


def _short(dataset: str) -> str:
    """The name without the subset."""
    return dataset.partition(" (")[0]


def _by_title(
    rows: Sequence[_AnyRow], title: Callable[[_AnyRow], str], form: Callable[[Sequence[_AnyRow]], str]
) -> str:
    groups = grouped(rows, title)
    return "\n".join(f"### {cell(each or 'all')}\n\n{form(its)}" for each, its in groups.items())


def _worst(records: Sequence[Record], attacked: Sequence[AttackRow]) -> str:
    """The worst case over attacks, if several attacks ran."""
    several = len({row.attack for row in attacked}) > 1
    return report.conditions(board(records)) if several else ""


def _attacks(rows: Sequence[AttackRow]) -> str:
    names = {name: distinct(getattr(row, name) for row in rows) for name in ("attack", "defense")}
    columns: list[_Column[AttackRow]] = [
        ("data", lambda row: _short(row.dataset), None),
        ("defense", lambda row: names["defense"][row.defense], None),
        ("point", lambda row: row.point, None),
        ("attack", lambda row: names["attack"][row.attack], None),
        ("examples", lambda row: str(row.examples), None),
        ("ASR", _rate, ("asr", ".3g")),
        ("RMSE", lambda row: figure(RMSE, row.medians[RMSE.name]), ("rmse", ".3f")),
        ("SSIM", lambda row: figure(SSIM, row.medians[SSIM.name]), ("ssim", ".3f")),
        ("PSNR", lambda row: figure(PSNR_DB, row.medians[PSNR_DB.name]), ("psnr_db", ".1f")),
        ("prior", lambda row: figure(PSNR_DB, row.prior_psnr_db), None),
        ("evaluations", lambda row: formatted(row.evaluations), None),
        ("outer", lambda row: formatted(row.outer), ("iterations", "g")),
        ("diverged", lambda row: share(row.diverged), None),
        ("cells", lambda row: _ids(row.cells), None),
    ]
    return _table(columns, rows)


def _trainings(rows: Sequence[TrainingRow]) -> str:
    names = distinct(row.defense for row in rows)
    columns: list[_Column[TrainingRow]] = [
        ("defense", lambda row: names[row.defense], None),
        ("ends", lambda row: row.length, None),
        ("accuracy", _accuracy, ("accuracy", ".3f")),
        ("perplexity", lambda row: formatted(row.perplexity, ".1f"), None),
        ("rounds", lambda row: formatted(row.rounds, "d"), ("rounds", "g")),
        ("ε, valid", lambda row: formatted(row.epsilon, ".3g"), None),
        ("ε, as the paper counts", lambda row: formatted(row.epsilon_paper, ".3g"), ("epsilon", ".3f")),
        ("ms a step", lambda row: formatted(row.milliseconds, ".2f"), ("milliseconds", "g")),
        ("× none", lambda row: formatted(row.overhead, ".2f"), ("overhead", ".2f")),
        ("cells", lambda row: _ids(row.cells), None),
    ]
    return _table(columns, rows)


def _table(columns: Sequence[_Column[_AnyRow]], rows: Sequence[_AnyRow]) -> str:
    """Columns with some value, each followed by the paper's figures if any."""
    lines: list[list[str]] = [[] for _ in range(len(rows) + 1)]
    for heading, measured, paper in columns:
        texts = [measured(row) for row in rows]
        if any(text.strip(f"{NONE} ") for text in texts):
            _add(lines, heading, texts)
        if paper and any(paper[0] in _figures(row) for row in rows):
            _add(lines, "paper", [formatted(_figures(row).get(paper[0]), paper[1]) for row in rows])
    return table(lines)


def _add(lines: Sequence[list[str]], heading: str, texts: Sequence[str]) -> None:
    for line, text in zip(lines, (heading, *texts), strict=True):
        line.append(text)


def _figures(row: AttackRow | TrainingRow) -> Mapping[str, float]:
    return row.published.figures if row.published else {}


def _rate(row: AttackRow) -> str:
    if row.asr is None:
        return "crashed" if row.crashed else NONE
    return f"{share(row.asr)} [{interval(row.interval)}]"


def _accuracy(row: TrainingRow) -> str:
    if row.accuracy is None:
        return "crashed"
    span = f" [{share(row.least, 1).removesuffix(' %')}–{share(row.most, 1)}]" if row.seeds > 1 else ""
    return f"{share(row.accuracy, 1)}{span}"


def _ids(cells: Sequence[str]) -> str:
    more = f" and {len(cells) - _IDS} more" if len(cells) > _IDS else ""
    return " ".join(each[:8] for each in cells[:_IDS]) + more
