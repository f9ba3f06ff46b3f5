"""Records → rows: what training under a defense costs in accuracy, ε and time, paper beside measured."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bench.leaderboard.blocks import entry
from bench.leaderboard.forms.numbers import dash, distinct, three, with_paper
from bench.matrix.published import AXES, Published, beside, row_json
from bench.record.store import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One question of training, over its seeds.

    `accuracy` is the median at the end, `least` and `most` over the seeds; a diverged one counts as 0.
    `rounds` are those that ran.  `epsilon` is the tight one, of the released model; `epsilon_paper` counted
    as Fed-αCDP counts; `caveats` what neither covers.  `overhead` is the time of a client's step over that
    of the undefended one, taken in turn.
    """

    dataset: str
    model: str
    defense: str
    setting: str
    asked: str
    seeds: int
    accuracy: float | None
    least: float | None
    most: float | None
    diverged: int
    rounds: int | None
    epsilon: float | None
    epsilon_paper: float | None
    epsilon_absent: str | None
    caveats: tuple[str, ...]
    milliseconds: float | None
    overhead: float | None
    crashed: int
    bayesian: tuple[str, ...]
    published: Published | None

    def json(self) -> dict[str, Any]:
        """The row as JSON types."""
        return row_json(self)


def trainings(records: Iterable[Record], published: Sequence[Published] = ()) -> list[Trained]:
    """A row for each training but for its seed, by data set and setting, no defense first, then by name."""
    found: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        cell = record.cell
        if cell.get("kind") == "training" and record.status != "n/a":
            limits = [
                f"{name} {cell[name]:g}" for name in ("until_accuracy", "until_epsilon") if cell.get(name)
            ]
            limits += [_accounted(cell["bayesian"])] if cell.get("bayesian") else []
            asked = (f"T={cell['rounds']}", *limits)
            key = (
                entry(cell["dataset"]), entry(cell["model"]), entry(cell["defense"]), setting(cell["federated"]),
                " ".join(asked).replace("_", " "),
            )  # fmt: skip
            found.setdefault(key, []).append(record)
    rows = [_row(key, own, published) for key, own in found.items()]
    return sorted(
        rows,
        key=lambda row: (
            _natural(row.dataset),
            _natural(row.setting),
            row.defense != "none",
            _natural(row.defense),
        ),
    )


def _accounted(asked: Mapping[str, Any]) -> str:
    """What Bayesian accounting was asked for: trainings that differ in it are told apart."""
    how = [*asked["levels"], *([asked["instances"]] if "instance" in asked["levels"] else [])]
    how += ["as printed"] if asked["formula"] == "paper" else []
    return f"Bayesian {' '.join(how)} δ={asked['delta']:g}"


def _natural(text: str) -> list[tuple[float, str]]:
    """For sorting: numbers in a text by their value."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(float(part), "") if n % 2 else (0.0, part) for n, part in enumerate(parts)]


def missing(rows: Sequence[Trained], published: Sequence[Published]) -> list[Published]:
    """Published figures of trainings that no row stands beside: what this scale does not run."""
    seen = {id(row.published) for row in rows}
    of_trainings = (
        one
        for one in published
        if {"accuracy", "epsilon", "rounds", "milliseconds", "overhead"} & set(one.figures)
    )
    return [one for one in of_trainings if id(one) not in seen and "attack" not in one.where]


def render(rows: Sequence[Trained], published: Sequence[Published] = ()) -> RenderableType:
    """A table for each data set and setting; published figures stand dim below the measured ones."""
    by_title: dict[str, list[Trained]] = {}
    for row in rows:
        by_title.setdefault(f"{row.dataset} · {row.model} · {row.setting}", []).append(row)
    notes = dict.fromkeys(text for row in rows for text in row.caveats)
    sources = dict.fromkeys(row.published.source for row in rows if row.published)
    left = missing(rows, published)
    parts: list[RenderableType] = [_table(title, own) for title, own in by_title.items()]
    parts += [Text(f"{row.defense}: {line}", style="dim") for row in rows for line in row.bayesian]
    parts += [Text(f"ε: {note}", style="dim") for note in notes]
    parts += [Text(f"paper: {source}", style="dim") for source in sources]
    parts += [Text(f"not run at this scale: {_where(one)}: {_said(one)}", style="dim") for one in left]
    return Group(*parts)


def _row(key: tuple[str, ...], records: Sequence[Record], published: Sequence[Published]) -> Trained:
    # Trainings that differ only in how often they were tested are one training.
    records = list({record.cell["seed"]: record for record in records}.values())
    done = [record for record in records if record.status == "done"]
    summaries = [record.summary for record in done]
    values = [float(summary["accuracy"]) for summary in summaries]
    longest = max(summaries, key=lambda summary: int(summary["rounds"]), default={})  # it spent the most
    spent = longest.get("privacy", [])
    shown = [one for one in spent if one["convention"] == "tight" or one is spent[0]]
    shown += (longest.get("bayesian") or {"spent": {}})["spent"].values()
    return Trained(
        dataset=key[0], model=key[1], defense=key[2], setting=key[3], asked=key[4], seeds=len(records),
        accuracy=median(values) if values else None, least=min(values, default=None),
        most=max(values, default=None), diverged=sum(bool(summary["diverged"]) for summary in summaries),
        rounds=int(median(summary["rounds"] for summary in summaries)) if summaries else None,
        epsilon=longest.get("epsilon"),
        epsilon_paper=spent[0]["epsilon"] if spent else None,
        epsilon_absent=longest.get("epsilon_absent"),
        caveats=tuple(dict.fromkeys(text for one in shown for text in one["caveats"])),
        milliseconds=_median(record.cost.get("milliseconds_per_step") for record in done),
        overhead=_median(record.cost.get("overhead") for record in done),
        crashed=len(records) - len(done), bayesian=tuple(bayesian(longest)),
        published=beside(published, records[0].cell),
    )  # fmt: skip


def bayesian(summary: Mapping[str, Any]) -> Iterator[str]:
    """Bayesian ε of a training, a line for each level asked, beside the moments accountant's on the same run."""
    asked = summary.get("bayesian") or {"spent": {}, "absent": {}}
    for level, one in asked["spent"].items():
        rows = asked["by_round"][level]
        value = "none" if one["epsilon"] is None else f"{one['epsilon']:.3g}"
        moments = rows[-1][2] if rows else None
        other = "" if moments is None else f" (moments accountant of the same rounds: {moments:.3g})"
        yield f"{one['accountant']}: ε {value} at δ {one['delta']:g}{other}"
    for level, reason in asked["absent"].items():
        yield f"Bayesian, {level} level: {reason}"


def _median(values: Iterable[Any]) -> float | None:
    there = [float(value) for value in values if value is not None]
    return median(there) if there else None


def setting(federated: Mapping[str, Any]) -> str:
    """A federated setting in the papers' letters: `fedavg N=100 K=10 L=20 B=5 η=0.05 iid`."""
    size = f" |D|={federated['client_examples']}" if federated.get("client_examples") else ""
    return (
        f"{federated['algorithm']} N={federated['clients']} K={federated['per_round']} L={federated['steps']} "
        f"B={federated['batch']} η={federated['rate']:g} {federated['partition']}{size}"
    )


def _table(title: str, rows: Sequence[Trained]) -> Table:
    table = Table(
        title=escape(title), title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.add_column("defense", overflow="fold", min_width=18)
    for heading in ("accuracy", "rounds", "ε paper", "ε tight", "ms/step", "× none"):
        table.add_column(heading, no_wrap=True)
    short = distinct(list(dict.fromkeys(row.defense for row in rows)))
    asked = len({row.asked for row in rows}) > 1
    for row in rows:
        said = row.published.figures if row.published else {}
        # a space before the parameters, so that a narrow column breaks there and not inside a word
        name = short[row.defense].replace("(", " (", 1) + (f" · {row.asked}" if asked else "")
        table.add_row(
            escape(name), with_paper(_accuracy(row), said.get("accuracy")),
            with_paper(Text(dash(row.rounds, "d")), said.get("rounds"), "g"),
            with_paper(Text(dash(row.epsilon_paper, ".3g")), said.get("epsilon"), ".3f"),
            dash(row.epsilon, ".3g"),
            with_paper(Text(dash(row.milliseconds, ".2f")), said.get("milliseconds"), "g"),
            with_paper(Text(dash(row.overhead, ".2f")), said.get("overhead"), ".2f"),
        )  # fmt: skip
    return table


def _accuracy(row: Trained) -> Text:
    if row.accuracy is None:
        return Text("crashed", style="red")
    text = Text(three(row.accuracy))
    if row.seeds > 1 and row.least is not None and row.most is not None:
        text.append(f" {three(row.least)}–{three(row.most)}", style="dim")
    if row.diverged:
        text.append(f" {row.diverged} diverged", style="yellow")
    return text


def _where(one: Published) -> str:
    return ", ".join(f"{axis} {_words(one.where[axis])}" for axis in AXES if axis in one.where)


def _words(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    inner = ", ".join(f"{key}={item}" for key, item in value.items() if key != "name")
    return f"{value['name']}({inner})" if "name" in value and inner else str(value.get("name", inner))


def _said(one: Published) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in one.figures.items())
