"""A matrix: a TOML file or a named preset → checked combinations, or every fault it has at once.

[axes]        lists, multiplied; an entry is a name, or a table with parameters and `sweep`
[[exclude]]   drops combinations; [[include]] adds to them or stands alone (`bench.matrix.combine`)
[[train]]     trainings asked for themselves: each block a product of its own axes
[[published]] what others report of these cells, shown beside them (`bench.matrix.published`)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.matrix import blocks
from bench.matrix.blocks import AXES, REQUIRED, Training
from bench.matrix.border import Border, Registry, entry
from bench.matrix.combine import Combination, combine
from bench.matrix.document import PRESETS, document, located, preset_names
from bench.matrix.faults import Faults, nearest, quoted
from bench.matrix.published import Published, published
from bench.matrix.suites import suite
from bench.registry import entries as _registry

SETTINGS = ("evaluations", "readings", "chunk")  # may stand at the top, for every combination
_NEEDED = tuple(name for name in AXES if name in REQUIRED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A matrix that was checked whole; `file` starts every message about it, and `path` is where it was found."""

    file: str
    path: Path
    title: str
    suite: str | None
    settings: Mapping[str, int]
    combinations: tuple[Combination, ...]
    trainings: tuple[Training, ...]
    published: tuple[Published, ...] = ()
    scale: str | None = None


def presets(folder: Path = PRESETS) -> tuple[tuple[str, str], ...]:
    """(name, title) of every preset, by name."""
    return tuple(
        (name, str(document(folder / f"{name}.toml", Faults(name)).get("title", "")))
        for name in preset_names(folder)
    )


def read(
    source: str | Path,
    *,
    more_defenses: Sequence[str] = (),
    scale: str | None = None,
    registry: Registry = _registry,
    folder: Path = PRESETS,
) -> Matrix:
    """The matrix of a path (a `Path`, or a text that ends in `.toml`), or of a preset in `folder`.

    `more_defenses` are names that join the axis `defense`, and every `[[train]]` block that compares defenses,
    with their default parameters, as if they stood at its end; an axis that the file leaves out starts with
    `none`.  `scale` is one of those that
    the file names in `scales`, None the first of them.

    Raises `MatrixError` with every fault, one a line: `FILE: key: what; remedy`.
    """
    faults = Faults(str(source))
    path = located(source, faults, folder)
    content = document(path, faults)
    border = Border(faults=faults, registry=registry, folder=path.parent)
    border.known(
        "", content,
        ("title", "suite", "scales", "axes", "exclude", "include", "train", "published", *SETTINGS),
    )  # fmt: skip
    title = content.get("title", "")
    if not isinstance(title, str) or len(title) > 200 or not title.isprintable():
        border.bad("title", "one line of at most 200 characters", title, 'title = "what this asks"')
    of_suite = suite(border, content.get("suite"))
    settings = blocks.settings(border, content, SETTINGS)
    if more_defenses:
        content |= _wider(border, content, more_defenses)
    table = content.get("axes", {})
    if isinstance(table, dict):
        border.known("axes", table, AXES)
        for name in sorted(settings.keys() & table.keys()):
            faults.add(f"axes.{name}", "given here and at the top", "keep one of the two")
    axes = blocks.axes(border, table, AXES, "axes")
    scales = blocks.scales(border, content)
    chosen = _scale(border, scales, scale)
    exclude = blocks.exclude(border, content, scales, chosen)
    include = blocks.include(border, content, scales, chosen)
    trainings = blocks.trainings(border, content, scales, chosen)
    reported = published(border, blocks.tables(border, content, "published"))
    if isinstance(table, dict) and table:
        given = table.keys() | {name for entry in include for name in entry}
        _lacking(faults, [name for name in _NEEDED if name not in given])
    faults.settle()
    combinations = combine(axes, exclude, include)
    _complete(faults, combinations)
    if axes and not combinations and not trainings:
        faults.add("exclude", "nothing is left of the axes", "narrow an entry")
    elif not combinations and not trainings:
        faults.add("", "there is nothing to run", "give [axes], [[include]] or [[train]]")
    faults.settle()
    return Matrix(
        file=faults.file, path=path, title=title, suite=of_suite, settings=settings,
        combinations=combinations, trainings=trainings, published=reported,
        scale=chosen,
    )  # fmt: skip


def _scale(border: Border, there: Sequence[str], asked: str | None) -> str | None:
    """The scale asked for, else the first there is."""
    if asked is None:
        return there[0] if there else None
    if asked not in there:
        remedy = nearest(asked, there, "it comes in") if there else "leave it out: this matrix comes in one"
        border.faults.add("--scale", f"unknown scale {quoted(asked)}", remedy)
    return asked


def _wider(border: Border, content: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The axes and the `[[train]]` blocks that compare defenses, with these defenses added; those that a list
    has as plain names are not added again.  A block of one defense makes weights for the attacks: it stays."""
    axes, blocks_ = content.get("axes"), content.get("train")
    if not axes and not (isinstance(blocks_, list) and any(map(_compares, blocks_))):
        border.faults.add("--defense", "the matrix has no [axes] to add to", "leave it out, or add axes")
        return {}
    right = [name for name in dict.fromkeys(names) if entry(border, "defense", "--defense", name)]

    def more(there: list[Any]) -> list[Any]:
        return [*there, *(name for name in right if name not in there)]

    wider: dict[str, Any] = {}
    # what is of another type than it should be is a fault of the file, told with the others
    if isinstance(axes, dict) and axes and isinstance(there := axes.get("defense", ["none"]), list):
        wider["axes"] = {**axes, "defense": more(there)}
    if isinstance(blocks_, list):
        wider["train"] = [
            {**block, "defense": more(block["defense"])} if _compares(block) else block for block in blocks_
        ]
    return wider


def _compares(block: Any) -> bool:
    """Whether a `[[train]]` block is about what defenses cost."""
    there = block.get("defense") if isinstance(block, dict) else None
    return isinstance(there, list) and len(there) > 1


def _lacking(faults: Faults, names: Sequence[str]) -> None:
    for name in names:
        faults.add("axes", f"lacks {name}", f"add e.g. {name} = {REQUIRED[name]}")


def _complete(faults: Faults, combinations: Sequence[Combination]) -> None:
    """Tell which keys without a default some combination lacks."""
    for row in combinations:
        lacks = [name for name in _NEEDED if name not in row.choices]
        if row.alone is None:
            _lacking(faults, lacks)
        elif lacks:
            what = f"agrees with no combination, and lacks {', '.join(lacks)} to be one of its own"
            faults.add(f"include[{row.alone}]", what, "add them, or agree with the axes")
