"""A page for each paper: its accuracies beside ours at the paper's size."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from _make import report
from _make.exports import Export, Place
from _make.markdown import HEAD, plain, table
from bench.cell import TrainingCell
from bench.leaderboard.attacks import AttackRow, attacks
from bench.leaderboard.forms.numbers import NONE
from bench.matrix.published import PublishedFigures, beside
from bench.matrix.read import read
from bench.record.names import distinct, entry_text
from bench.record.schema import Record, TrainingResult

SIZE = "full-size"  # presets with a paper's trainings at the paper's size: <paper>/full-size
NEAR = 3.0  # difference of accuracies in points up to which two trainings agree
ATTACKED = {
    "asr": "success rate in %",
    "psnr_db": "median PSNR in dB",
    "rmse": "median RMSE",
}  # the first that a paper has
BESIDE = "trainings beside the tables"
MOST = 24  # figures of an attack on the page
FEW = 3  # claims whose verdicts stand on the page
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


def page(title: str, exports: Sequence[Export], remarks: str, claims: Sequence[tuple[str, str]], missing: str) -> str:
    """The page of a paper; `exports`: runs of the paper's presets; `claims`: id and verdict; `missing`: a table of what
    has not run."""
    trained = [each for each in exports if each.matrix.partition("/")[2].startswith(SIZE) and each.tables]
    every: dict[str, list[Line]] = {}
    for export in trained:
        for name, places in export.tables.items():
            published = read(f"{export.matrix.partition('/')[0]}/{name}").published
            every.setdefault(name, []).extend(_lines(published, places, export.records))
        placed = {place.record for places in export.tables.values() for place in places}
        others = [Place(record=record.id) for record in export.records if record.id not in placed]
        if others:
            every.setdefault(BESIDE, []).extend(_lines((), others, export.records))
    counts = Counter(line.verdict for lines in every.values() for line in lines if line.verdict)
    said = ", ".join(f"{counts[word]} {word}{MARKS[word]}" for word in MARKS)
    sources = "docs/remarks/, docs/papers.toml or export a run again"
    parts = [
        HEAD.format(sources=sources) + f"# {title} at its own size\n",
        "\n".join(f"- {_facts(export)}." for export in trained) + "\n" if trained else "",
        remarks,
        f"Accuracy in %, ours / paper; agrees: at most {NEAR:g} points apart. {sum(counts.values())} figures: {said}.\n"
        if counts
        else "",
        *(_section(name, lines) for name, lines in sorted(every.items(), key=lambda item: _order(item[0]))),
        *(_attacked(export) for export in exports),
        f"## Claims on reconstruction\n\n{_claims(claims)}" if claims else "",
        f"## Not run\n\n{missing}" if missing else "",
    ]
    return "\n".join(part for part in parts if part)


def _claims(claims: Sequence[tuple[str, str]]) -> str:
    """A table of verdicts, or links to many."""
    if len(claims) > FEW:
        return f"{', '.join(f'`{name}`' for name, _ in claims)}: [Claims](../CLAIMS.md).\n"
    return table(["claim", "verdict"], [[f"`{name}`", said] for name, said in claims])


def _facts(export: Export) -> str:
    """Command, commit, number of trainings, time and machine."""
    of = f" of {len(export.records) + export.unfinished}" if export.unfinished else ""
    facts = [
        f"`bench run --matrix {export.matrix}`",
        f"commit {export.commit}",
        f"{len(export.records)}{of} trainings, one seed each, "
        f"{sum(record.cost.wall_seconds for record in export.records) / 3600:.1f} hours of workers",
        report.machines(export.records),
        ", ".join(dict.fromkeys(r.environment.device_name or "" for r in export.records if r.environment)),
    ]
    return "; ".join(facts)


def _attacked(export: Export) -> str:
    """Figures of a paper's attack beside ours: a row for each attack and defense, a column for each data set."""
    rows = [row for row in attacks(export.records, export.published) if row.published]
    name = next((each for each in ATTACKED if any(each in _figures(row) for row in rows)), None)
    if name is None:
        return ""
    shown = [row for row in rows if name in _figures(row)]
    names = {of: distinct(getattr(row, of) for row in shown) for of in ("attack", "defense")}
    points = {row.point for row in shown}
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for row in shown:
        key = (names["attack"][row.attack], plain(names["defense"][row.defense]))
        column = row.dataset.partition(" (")[0] + (f", {row.point}" if len(points) > 1 else "")
        cells.setdefault(key, {})[column] = f"{_measured(row, name)}/{_text(name, _figures(row)[name])}"
    victims = ", ".join(dict.fromkeys(str(row.examples) for row in shown))
    head = f"## {export.matrix}: {ATTACKED[name]}\n\nOurs/paper; {victims} victims.\n"
    if sum(map(len, cells.values())) > MOST:
        return f"## {export.matrix}\n\n{len(shown)} figures: the site's page of this preset.\n"
    return f"{head}\n{_wide(('attack', 'defense'), cells)}"


def _wide(heads: tuple[str, ...], cells: Mapping[tuple[str, ...], Mapping[str, str]]) -> str:
    """A table of `cells`, row → column → text, under the `heads` of the rows' names; empty where a row has no text."""
    columns = dict.fromkeys(column for its in cells.values() for column in its)
    return table([*heads, *columns], [[*row, *(its.get(each, "") for each in columns)] for row, its in cells.items()])


def _figures(row: AttackRow) -> Mapping[str, float]:
    return row.published.figures if row.published else {}


def _measured(row: AttackRow, name: str) -> str:
    value = row.asr if name == "asr" else row.medians.get(name)
    return NONE if value is None else _text(name, value)


def _text(name: str, value: float) -> str:
    return {"asr": f"{100 * value:.0f}", "psnr_db": f"{value:.1f}"}.get(name, f"{value:.3f}")


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
    texts = [entry_text(line.cell.defense) for line in lines]
    names = {text: text for text in texts} if name == BESIDE else distinct(texts)
    split = _split(lines)
    settings = dict.fromkeys(_setting(line, partition=split) for line in lines)
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for line in lines:
        column = line.cell.dataset.name + (f", {_setting(line, partition=split)}" if len(settings) > 1 else "")
        cells.setdefault((plain(names[entry_text(line.cell.defense)]),), {})[column] = line.text
    title = name.replace("-", " ").capitalize() + (f" ({next(iter(settings))})" if len(settings) == 1 else "")
    return f"## {title}\n\n{_wide(('defense',), cells)}"


def _setting(line: Line, *, partition: bool) -> str:
    federated = line.cell.federated
    return f"N = {federated.clients}, K = {federated.per_round}" + (f", {federated.partition}" if partition else "")


def _split(lines: Sequence[Line]) -> bool:
    """Whether a data set is trained under several partitions."""
    return len({(line.cell.dataset.name, line.cell.federated.partition) for line in lines}) > len(
        {line.cell.dataset.name for line in lines}
    )
