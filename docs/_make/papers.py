"""A page for each paper: its accuracies beside ours at the paper's size."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from _make import report
from _make.exports import Export, Place
from _make.markdown import HEAD, plain, table
from bench.cell import TrainingCell
from bench.leaderboard.forms.numbers import NONE
from bench.matrix.published import PublishedFigures, beside
from bench.matrix.read import read
from bench.record.names import distinct, entry_text
from bench.record.schema import Record, TrainingResult

SIZE = "full-size"  # presets with a paper's trainings at the paper's size: <paper>/full-size
NEAR = 3.0  # difference of accuracies in points up to which two trainings agree
MARKS = {"agrees": "", "higher": " ▲", "lower": " ▼"}


@dataclass(frozen=True)
class Line:
    """A training of ours in a table of the paper, with the paper's figures."""

    record: Record
    cell: TrainingCell
    result: TrainingResult
    figures: Mapping[str, float]
    until: float | None

    @property
    def verdict(self) -> str | None:
        """None without an accuracy of the paper, or if the training of the table ends at an accuracy."""
        if "accuracy" not in self.figures or self.until is not None:
            return None
        gap = 100 * (self.result.accuracy - self.figures["accuracy"])
        return "agrees" if abs(gap) <= NEAR else "higher" if gap > 0 else "lower"

    @property
    def text(self) -> str:
        if self.until is not None:
            reached = next((round_ for round_, value in self.result.curve if round_ and value >= self.until), None)
            wanted = self.figures.get("rounds")
            rounds = f"{reached or f'not in {self.result.rounds}'} / {NONE if wanted is None else f'{wanted:g}'}"
            return f"{rounds} rounds to {100 * self.until:.1f}"
        ours = "diverged" if self.result.diverged else f"{100 * self.result.accuracy:.1f}"
        paper = f" / {100 * self.figures['accuracy']:.1f}" if "accuracy" in self.figures else ""
        return f"{ours}{paper}{MARKS[self.verdict or 'agrees']}"


def page(paper: str, title: str, export: Export, remarks: str) -> str:
    """The page of the paper whose presets lie in bench/presets/`paper`; `export`: its trainings at full size."""
    every = {
        name: _lines(read(f"{paper}/{name}").published, places, export.records)
        for name, places in export.tables.items()
    }
    counts = Counter(line.verdict for lines in every.values() for line in lines if line.verdict)
    hours = sum(record.cost.wall_seconds for record in export.records) / 3600
    facts = [
        f"`bench run --matrix {export.matrix}`",
        f"commit {export.commit}",
        f"{len(export.records)} trainings, one seed each, {hours:.1f} hours of workers",
        report.machines(export.records),
        ", ".join(dict.fromkeys(r.environment.device_name or "" for r in export.records if r.environment)),
    ]
    said = ", ".join(f"{counts[word]} {word}{MARKS[word]}" for word in MARKS)
    said = f"{sum(counts.values())} figures: {said}"
    parts = [
        HEAD.format(sources=f"docs/remarks/{export.name}.md or export the run again") + f"# {title} at its own size\n",
        "; ".join(facts) + ".\n",
        remarks,
        f"Accuracy in %, ours / paper; agrees: at most {NEAR:g} points apart. {said}.\n",
        *(_section(name, lines) for name, lines in sorted(every.items(), key=lambda item: _order(item[0]))),
    ]
    return "\n".join(parts)


def _order(name: str) -> tuple[str, int]:
    kind, _, number = name.partition("-")
    digits = number.split("-")[0]
    return kind, int(digits) if digits.isdigit() else 0


def _lines(published: Sequence[PublishedFigures], places: Sequence[Place], records: Sequence[Record]) -> list[Line]:
    of_trainings = [each for each in published if "attack" not in each.where]
    known = {record.id: record for record in records}
    return [
        Line(
            record=record,
            cell=record.cell,
            result=record.result,
            figures=found.figures if found else {},
            until=place.until,
        )
        for place in places
        if isinstance((record := known[place.record]).cell, TrainingCell) and isinstance(record.result, TrainingResult)
        for found in [beside(of_trainings, record.cell)]
    ]


def _section(name: str, lines: Sequence[Line]) -> str:
    """A table with a row for each defense and a column for each data set, and each setting if there are several."""
    names = distinct(entry_text(line.cell.defense) for line in lines)
    settings = dict.fromkeys(_setting(line) for line in lines)
    cells: dict[str, dict[str, str]] = {}
    for line in lines:
        column = line.cell.dataset.name + (f", {_setting(line)}" if len(settings) > 1 else "")
        cells.setdefault(names[entry_text(line.cell.defense)], {})[column] = line.text
    columns = dict.fromkeys(column for its in cells.values() for column in its)
    rows = [[plain(defense), *(its.get(column, "") for column in columns)] for defense, its in cells.items()]
    title = name.replace("-", " ").capitalize() + (f" ({next(iter(settings))})" if len(settings) == 1 else "")
    return f"## {title}\n\n{table(['defense', *columns], rows)}"


def _setting(line: Line) -> str:
    federated = line.cell.federated
    return f"N = {federated.clients}, K = {federated.per_round}"
