"""A matrix: a TOML file or a named preset → checked combinations, or every error it has at once.

[[attack]]    attacks: each block is a product of its own axes, lists of values that are multiplied; a value is a
              name, or a table with parameters and `sweep`
[axes]        axes that every [[attack]] block has unless it names them itself; without a block it is one
[[train]]     trainings that are wanted for themselves, each block a product of its own axes
[[published]] what others report of these cells, shown beside them (`bench.matrix.published`)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bench.matrix.blocks import written_out
from bench.matrix.document import PRESETS, document, located, preset_names
from bench.matrix.entries import Context, Registry, registered
from bench.matrix.messages import Errors, Wrong, nearest, quoted
from bench.matrix.published import Published, published
from bench.matrix.schema import AXES, TRAIN_AXES, Axes, Document, TrainBlock
from bench.matrix.weights import SeededFile
from bench.registry import entries as _registry

SETTINGS = ("evaluations", "readings", "chunk")  # may stand at the top, for every attack
# Axes of attacks without a default, with an example.
REQUIRED = {
    "dataset": '["digits"]', "model": '["dlg-lenet"]', "attack": '["dlg"]', "point": '["type-2"]',
}  # fmt: skip
Combination = Mapping[str, Any]  # axis → its value


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A matrix that was checked whole; `file` starts every message about it, and `path` is where it was found.

    A combination of `trainings` has fields of `TrainingCell` beside its axes.
    """

    file: str
    path: Path
    title: str
    suite: str | None
    attacks: tuple[Combination, ...]
    trainings: tuple[Combination, ...]
    published: tuple[Published, ...] = ()
    scale: str | None = None


def presets(folder: Path = PRESETS) -> tuple[tuple[str, str], ...]:
    """(name, title) of every preset, by name."""
    return tuple(
        (name, str(document(folder / f"{name}.toml", Errors(name)).get("title", "")))
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

    `more_defenses` are names that join the axis `defense` of every attack, and of every `[[train]]` block that
    compares defenses, with their default parameters; an axis that the file leaves out starts with `none`.
    `scale` is one of those that the file names in `scales`, None the first of them.

    Raises `MatrixError` with every error, one a line: `FILE: key: what; remedy`.
    """
    errors = Errors(str(source))
    path = located(source, errors, folder)
    content = document(path, errors)
    context = Context(registry=registry, folder=path.parent)
    for name in ("include", "exclude"):
        if content.pop(name, None) is not None:
            remedy = "write one [[attack]] block, with axes of its own, for each product that is wanted"
            errors.add(name, "[[attack]] blocks replace include and exclude", remedy)
    if more_defenses:
        content |= _with_defenses(errors, content, more_defenses, registry)
    chosen = _chosen_scale(errors, content, scale)
    _complete(errors, content)
    content = written_out(errors, content)
    try:
        matrix = Document.model_validate(content, context=context)
    except ValidationError as error:
        errors.add_validation(error, content, Document)
    errors.raise_any()
    attacks = _attacks(errors, matrix, chosen)
    trainings = tuple(
        row for block in matrix.train if block.scale in (None, chosen) for row in _trainings(block)
    )
    if not attacks and not trainings:
        errors.add("", "there is nothing to run", "give [axes], [[attack]] or [[train]]")
    errors.raise_any()
    return Matrix(
        file=errors.file, path=path, title=matrix.title, suite=matrix.suite, attacks=attacks,
        trainings=trainings, published=published(matrix.published), scale=chosen,
    )  # fmt: skip


def _attacks(errors: Errors, matrix: Document, scale: str | None) -> tuple[Combination, ...]:
    """The combinations of every block of this scale, with a weights file for each seed."""
    shared = matrix.given(SETTINGS) | (matrix.axes.given(AXES) if matrix.axes else {})
    blocks = [block for block in matrix.attack if block.scale in (None, scale)]
    if not matrix.attack and matrix.axes is not None and matrix.axes.model_fields_set:
        blocks = [Axes()]
    files: dict[tuple[SeededFile, int], Any] = {}
    combinations = []
    for row in (row for block in blocks for row in _product(shared | block.given(AXES), AXES)):
        weights = row["weights"].value if "weights" in row else None
        if isinstance(weights, SeededFile):
            key = (weights, row.get("seed", 0))
            try:
                files[key] = weights = files.get(key) or weights.of(key[1])
            except Wrong as error:
                errors.add("weights", str(error))
        combinations.append(row if weights is None else {**row, "weights": weights})
    return tuple(combinations)


def _trainings(block: TrainBlock) -> list[Combination]:
    others = block.given(name for name in TrainBlock.model_fields if name not in (*TRAIN_AXES, "scale"))
    return [{**row, **others} for row in _product(block.given(TRAIN_AXES), TRAIN_AXES)]


def _product(axes: Mapping[str, Sequence[Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """The combinations, the last axis fastest."""
    names = [name for name in names if name in axes]
    return [dict(zip(names, row, strict=True)) for row in product(*(axes[name] for name in names))]


def _chosen_scale(errors: Errors, content: Mapping[str, Any], scale: str | None) -> str | None:
    """The scale that is wanted, else the first that the file has; blocks may be for one of these."""
    scales = content.get("scales")
    names = [name for name in scales if isinstance(name, str)] if isinstance(scales, list) else []
    for key, block in _blocks(content, "attack", "train"):
        wrong = block.get("scale")
        if wrong is not None and wrong not in names:
            errors.add(f"{key}.scale", f"unknown scale {quoted(wrong)}", nearest(str(wrong), names))
    if scale is None:
        return names[0] if names else None
    if scale not in names:
        remedy = nearest(scale, names, "it comes in") if names else "leave it out: this matrix comes in one"
        errors.add("--scale", f"unknown scale {quoted(scale)}", remedy)
    return scale


def _complete(errors: Errors, content: Mapping[str, Any]) -> None:
    """Report axes that a block lacks, and settings that are given twice."""
    axes = content.get("axes", {})
    if not isinstance(axes, dict):
        return
    for name in SETTINGS:
        if name in content and name in axes:
            errors.add(f"axes.{name}", "given here and at the top", "keep one of the two")
    blocks = _blocks(content, "attack") or ([("axes", axes)] if axes and not content.get("attack") else [])
    for key, block in blocks:
        for name, example in REQUIRED.items():
            if name not in block and name not in axes:
                errors.add(key, f"lacks {name}", f"add e.g. {name} = {example}")


def _with_defenses(
    errors: Errors, content: Mapping[str, Any], names: Sequence[str], registry: Registry
) -> dict[str, Any]:
    """The tables of the document that these defenses join; a list that has a plain name keeps it once.

    A `[[train]]` block of one defense makes weights for the attacks: it stays."""
    attacks, trains = content.get("attack"), content.get("train")
    if not content.get("axes") and not attacks and not any(_compares(b) for _, b in _blocks(content, "train")):
        errors.add("--defense", "the matrix has no [axes] to add to", "leave it out, or add axes")
        return {}
    right = []
    for name in dict.fromkeys(names):
        try:
            right.append(registered("defense", name, registry).name)
        except Wrong as error:
            errors.add("--defense", str(error))

    def wider(table: Any) -> Any:
        # what is of another type than it should be is reported with the file's other errors
        defenses = table.get("defense") if isinstance(table, dict) else None
        if not isinstance(defenses, list):
            return table
        return {**table, "defense": [*defenses, *(name for name in right if name not in defenses)]}

    changed: dict[str, Any] = {}
    axes = content.get("axes", {} if attacks else None)
    if isinstance(axes, dict) and (axes or attacks):
        changed["axes"] = wider({"defense": ["none"], **axes})
    if isinstance(attacks, list):
        changed["attack"] = [wider(block) for block in attacks]
    if isinstance(trains, list):
        changed["train"] = [wider(block) if _compares(block) else block for block in trains]
    return changed


def _compares(block: Any) -> bool:
    """Whether a `[[train]]` block is about what defenses cost."""
    defenses = block.get("defense") if isinstance(block, dict) else None
    return isinstance(defenses, list) and len(defenses) > 1


def _blocks(content: Mapping[str, Any], *kinds: str) -> list[tuple[str, dict[str, Any]]]:
    """The blocks of these kinds, each with its key."""
    return [
        (f"{kind}[{index}]", block)
        for kind in kinds
        if isinstance(content.get(kind), list)
        for index, block in enumerate(content[kind])
        if isinstance(block, dict)
    ]
