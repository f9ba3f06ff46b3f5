"""Reading of a matrix from a TOML file or preset; all errors are reported together.

[[attack]]    attacks: all combinations of axes; a value is a name, or a table with parameters and `sweep`
[axes]        axes shared by all [[attack]] blocks; without [[attack]], the only attack block
[[train]]     trainings: all combinations of axes
[[published]] figures from papers for these cells (`bench.matrix.published`)"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bench.matrix.blocks import tables, written_out
from bench.matrix.document import PRESETS, document, located, preset_names
from bench.matrix.entries import Registry, registered
from bench.matrix.knowledge import strongest
from bench.matrix.messages import REQUIRED, Errors, Wrong, lacks, nearest, quoted
from bench.matrix.published import PublishedFigures, published
from bench.matrix.schema import AXES, TRAIN_AXES, Axes, Budgets, Document, TrainBlock
from bench.matrix.typed import Typed, entries
from bench.matrix.weights import SeededFile
from bench.registry import entries as _registry

Combination = Mapping[str, Any]  # axis → its value
# Axis and entry with all parameters, as text → the names of the written parameters, for each spelling of the entry.
Asked = Mapping[tuple[str, str], Collection[tuple[str, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A matrix file (a run's experiments) after all checks: the combinations of axis values for attacks and trainings.
    `bench.matrix.expand` turns each combination into a cell (experiment)."""

    file: str
    """Name of the file, for error messages."""
    path: Path
    """Location of the file."""
    title: str
    """Title above the result tables."""
    suite: str | None
    """Name of a suite in `bench.matrix.suites`; None: the matrix is not a suite."""
    attacks: tuple[Combination, ...]
    """Attack experiments, each as axis → value, such as "defense" → an entry."""
    trainings: tuple[Combination, ...]
    """Training experiments, each as axis or other field of `TrainingCell` → value."""
    published: tuple[PublishedFigures, ...] = ()
    """Figures from papers for these cells."""
    scale: str | None = None
    """Name of the chosen size of the matrix, such as `quick`; None: the file has a single size."""
    cascade: bool = False
    """Whether attacks on the same readings form a cascade: a later attack gets only readings without success."""
    asked: Asked = field(default_factory=dict)
    """Parameters that the matrix file sets: (axis, entry with all its parameters as text) → names of the set
    parameters, a tuple for each way in which the file writes the entry. Other parameters have defaults."""


def read(
    source: str | Path,
    *,
    more_defenses: Sequence[str] = (),
    attacks: Sequence[str] = (),
    scale: str | None = None,
    full: bool = False,
    text: bytes | None = None,
    registry: Registry = _registry,
    folder: Path = PRESETS,
) -> Matrix:
    """Read and check a matrix file (a run's experiments).

    - `source`: a `Path`, a text that ends in `.toml`, or the name of a preset in `folder`.
    - `more_defenses`: names or `NAME:PARAMETER=VALUE`, added to the axis `defense` (without this axis: to `none`) of
      every attack block, and of every `[[train]]` block with several defenses.
    - `attacks`: replace the axis `attack` everywhere, in the same spelling; empty keeps the file's attacks.
    - `scale`: name of a size in the file's `scales`; None takes the first.
    - `full`: True switches the cascade off, so that every attack gets all readings (observed updates).
    - `text`: content in place of the file's content, such as the content at another revision; None reads the file.
    - `registry`: lookup of registered attacks, defenses, data sets and models.
    - `folder`: folder of the presets.

    Raises `MatrixError` with a line for each error: `FILE: key: mistake; remedy`."""
    errors = Errors(str(source))
    path = place = located(source, errors, folder) if text is None else Path(source)
    content = document(path, errors, text)
    if "preset" in content:
        place, content = _on_a_preset(errors, content, folder)
    for name in ("include", "exclude"):
        if content.pop(name, None) is not None:
            remedy = "write one [[attack]] block, with axes of its own, for each product that is wanted"
            errors.add(name, "[[attack]] blocks replace include and exclude", remedy)
    if more_defenses:
        content |= _with_defenses(errors, content, _named(errors, more_defenses, "defense", registry))
    if attacks:
        content |= _with_attacks(content, _named(errors, attacks, "attack", registry))
    return _checked(errors, content, path, place.parent, _scale(errors, content, scale), full, registry)


def of_document(content: Mapping[str, Any], name: str, *, registry: Registry = _registry) -> Matrix:
    """Check a matrix (a run's experiments) that comes from no file, such as a matrix made from command-line options.
    `content` is the matrix as parsed TOML, and `name` begins each error line. `registry` is the lookup of registered
    attacks, defenses, data sets and models. Raises `MatrixError`."""
    return _checked(Errors(name), content, Path(name), Path(), None, False, registry)


def _checked(
    errors: Errors,
    content: Mapping[str, Any],
    path: Path,
    folder: Path,
    scale: str | None,
    full: bool,
    registry: Registry,
) -> Matrix:
    _check_complete(errors, content)
    content = written_out(errors, content)
    asked: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    try:
        context = {"registry": registry, "folder": folder, "asked": asked}
        matrix = Document.model_validate(content, context=context)
    except ValidationError as error:
        errors.add_validation(error, content, Document)
    errors.raise_any()
    attacks = _attacks(errors, matrix, scale, registry)
    trainings = [row for block in matrix.train if block.scale in (None, scale) for row in _trainings(block)]
    if not attacks and not trainings:
        errors.add("", "there is nothing to run", "give [axes], [[attack]] or [[train]]")
    errors.raise_any()
    return Matrix(
        file=errors.file,
        path=path,
        title=matrix.title,
        suite=matrix.suite,
        attacks=tuple(attacks),
        trainings=tuple(trainings),
        published=published(matrix.published),
        scale=scale,
        cascade=matrix.cascade and not full,
        asked=asked,
    )


def _attacks(errors: Errors, matrix: Document, scale: str | None, registry: Registry) -> list[Combination]:
    axes = matrix.axes or Axes()
    if matrix.informed and any("knowledge" in table.model_fields_set for table in (axes, *matrix.attack)):
        errors.add("knowledge", "`informed` chooses each attack's knowledge", "leave one of the two out")
    shared = matrix.written(Budgets.model_fields) | axes.written(AXES)
    blocks: list[Axes] = [block for block in matrix.attack if block.scale in (None, scale)]
    if not matrix.attack and axes.model_fields_set:
        blocks = [axes]
    files: dict[tuple[SeededFile, int], Any] = {}
    combinations: list[Combination] = []
    for row in (row for block in blocks for row in _product(shared | block.written(AXES), AXES)):
        if "weights" in row:
            row["weights"] = weights = row["weights"].value
            if isinstance(weights, SeededFile):
                key = (weights, row.get("seed", 0))
                try:
                    row["weights"] = files[key] = files.get(key) or weights.of(key[1])
                except Wrong as error:
                    errors.add("weights", str(error))
        if matrix.informed:
            row["knowledge"] = strongest(registry.load("attacks", row["attack"].name))
        combinations.append(row)
    return combinations


def _trainings(block: TrainBlock) -> list[Combination]:
    rest = block.written(name for name in TrainBlock.model_fields if name not in (*TRAIN_AXES, "scale"))
    return [{**row, **rest} for row in _product(block.written(TRAIN_AXES), TRAIN_AXES)]


def _product(axes: Mapping[str, Sequence[Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    names = [name for name in names if name in axes]
    return [dict(zip(names, row, strict=True)) for row in product(*(axes[name] for name in names))]


def _scale(errors: Errors, content: Mapping[str, Any], scale: str | None) -> str | None:
    scales = content.get("scales")
    names = [name for name in scales if isinstance(name, str)] if isinstance(scales, list) else []
    for key, block in (*tables(content, "attack"), *tables(content, "train")):
        if key != "axes" and block.get("scale", None) not in (None, *names):
            what = f"unknown scale {quoted(block['scale'])}"
            errors.add(f"{key}.scale", what, nearest(str(block["scale"]), names))
    if scale is None:
        return names[0] if names else None
    if scale not in names:
        remedy = nearest(scale, names, "it comes in") if names else "leave it out: this matrix comes in one"
        errors.add("--scale", f"unknown scale {quoted(scale)}", remedy)
    return scale


def _check_complete(errors: Errors, content: Mapping[str, Any]) -> None:
    axes = content.get("axes", {})
    if not isinstance(axes, dict):
        return
    for name in Budgets.model_fields:
        if name in content and name in axes:
            errors.add(f"axes.{name}", "given here and at the top", "keep one of the two")
    for key, block in tables(content, "attack"):
        for name in (name for name in AXES if name in REQUIRED):
            if name not in block and name not in axes:
                errors.add(key, *lacks(name))


def _on_a_preset(errors: Errors, content: Mapping[str, Any], folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the path and the whole content of a preset, extended by a user's matrix file. `content` is the user's
    file: its key `preset` names the preset in `folder`, `title` replaces the preset's title, and `defense` lists
    further defenses. Any other key, and wrong values, are added to `errors` and raised."""
    name, defenses = content["preset"], content.get("defense", [])
    for key in content.keys() - {"preset", "title", "defense"}:
        errors.add(key, "a file with `preset` has `title` and `defense` alone", "leave it out, or write all axes")
    if not isinstance(name, str) or name.endswith(".toml"):
        errors.add("preset", f"expected a preset's name, got {quoted(name)}", 'write e.g. "standard"')
    if not isinstance(defenses, list):
        errors.add("defense", f"expected a list, got {quoted(defenses)}", 'write e.g. ["none", "prune"]')
    errors.raise_any()
    if name not in preset_names(folder):
        errors.add("preset", f"unknown preset {quoted(name)}", nearest(name, preset_names(folder), "the presets are"))
        errors.raise_any()
    place = located(name, errors, folder)
    whole = document(place, errors)
    title = {"title": content["title"]} if "title" in content else {}
    return place, {**whole, **title, **_with_defenses(errors, whole, defenses)}


def _named(errors: Errors, names: Sequence[str], axis: str, registry: Registry) -> list[Typed]:
    right: list[Typed] = []
    for value in entries(names, f"--{axis}"):
        try:
            registered(axis, value, registry)
        except Wrong as error:
            errors.add(f"--{axis}", str(error))
        else:
            right += [value] if value not in right else []
    return right


def _with_attacks(content: Mapping[str, Any], right: Sequence[Typed]) -> dict[str, Any]:
    """Return the tables of `content` that change when only the attacks `right` run. A block's own list of attacks is
    replaced, too."""
    changed: dict[str, Any] = {}
    axes, blocks = content.get("axes", {}), content.get("attack")
    if isinstance(axes, dict):
        changed["axes"] = {**axes, "attack": [*right]}
    if isinstance(blocks, list):
        changed["attack"] = [
            {**block, "attack": [*right]} if isinstance(block, dict) and "attack" in block else block
            for block in blocks
        ]
    return changed


def _with_defenses(errors: Errors, content: Mapping[str, Any], right: Sequence[Any]) -> dict[str, Any]:
    """Return key → new content for each table that changes when the defenses `right` are added. Duplicates are left
    out. A `[[train]]` block with a single defense only makes weights: it changes only in a suite, which measures costs.
    """

    def wider(table: Any) -> Any:
        # what is of another type than it should be is reported with the file's other errors
        defenses = table.get("defense") if isinstance(table, dict) else None
        if not isinstance(defenses, list):
            return table
        return {**table, "defense": [*defenses, *(name for name in right if name not in defenses)]}

    changed: dict[str, Any] = {}
    axes, attacks, trains = content.get("axes", {}), content.get("attack"), content.get("train")
    if tables(content, "attack") and isinstance(axes, dict):
        changed["axes"] = wider({"defense": ["none"], **axes})
    elif not any(_compares(block) for _, block in tables(content, "train")):
        errors.add("--defense", "the matrix has no [axes] to add to", "leave it out, or add axes")
    if isinstance(attacks, list):
        changed["attack"] = [wider(block) for block in attacks]
    if isinstance(trains, list):
        costs = "suite" in content
        changed["train"] = [wider(block) if costs or _compares(block) else block for block in trains]
    return changed


def _compares(block: Any) -> bool:
    defenses = block.get("defense") if isinstance(block, dict) else None
    return isinstance(defenses, list) and len(defenses) > 1
