"""Preparation of a parsed matrix file: limits the number of cells, and replaces each `sweep` by its values."""

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import Any

from bench.matrix.messages import Errors, Rows, expected, nearest, printable, quoted
from bench.matrix.schema import AXES, TRAIN_AXES, PublishedRow

MOST = 100_000  # combinations of one matrix
_LISTS = {*AXES, *TRAIN_AXES}


def tables(content: Mapping[str, Any], kind: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the blocks of a `kind` ("attack", "train" or "published") in the parsed `content` of a matrix file (which
    lists a run's experiments), as (key in the file, content of the block). If the file has no block `[[attack]]`, the
    table `[axes]` is the only attack block."""
    blocks = content.get(kind)
    if kind == "attack" and not blocks:
        axes = content.get("axes")
        return [("axes", axes)] if isinstance(axes, dict) and axes else []
    pairs = enumerate(blocks if isinstance(blocks, list) else ())
    return [(f"{kind}[{index}]", block) for index, block in pairs if isinstance(block, dict)]


def written_out(errors: Errors, content: Mapping[str, Any]) -> dict[str, Any]:
    """Expand the shorthands in a matrix file (which lists a run's experiments). In the returned copy of the parsed
    `content`, each `sweep` (lists of parameter values) is replaced by its combinations of values, and each
    `[[published]]` block by a table for each published figure. `errors` collects a line for each mistake. Raises
    `MatrixError` for too many combinations."""
    _check_size(errors, content)
    content = dict(content)
    if isinstance(content.get("axes"), dict):
        content["axes"] = _unswept(errors, "axes", content["axes"])
    for kind in ("attack", "train"):
        if isinstance(content.get(kind), list):
            content[kind] = [
                _unswept(errors, f"{kind}[{index}]", block) if isinstance(block, dict) else block
                for index, block in enumerate(content[kind])
            ]
    if isinstance(content.get("published"), list):
        content["published"] = Rows(
            row for index, block in enumerate(content["published"]) for row in _rows(errors, index, block)
        )
    return content


def _check_size(errors: Errors, content: Mapping[str, Any]) -> None:
    shared = content["axes"] if isinstance(content.get("axes"), dict) else {}
    blocks = [(key, {**shared, **block}) for key, block in tables(content, "attack")]
    total = 0
    for key, table in (*blocks, *tables(content, "train")):
        lists = (table[name] for name in _LISTS if isinstance(table.get(name), list))
        total += prod(sum(map(_size, items)) for items in lists if items)
        if total > MOST:
            errors.add(key, f"{total} combinations, at most {MOST} are allowed", "split the matrix")
            errors.raise_any()


def _size(raw: Any) -> int:
    sweep = raw.get("sweep") if isinstance(raw, dict) else None
    lists = sweep.values() if isinstance(sweep, dict) else ()
    return prod(max(1, len(items)) for items in lists if isinstance(items, list))


def _unswept(errors: Errors, key: str, table: Mapping[str, Any]) -> dict[str, Any]:
    def values(name: str, items: list[Any]) -> Iterator[tuple[str, Any]]:
        for index, item in enumerate(items):
            for value in _values(errors, f"{key}.{name}[{index}].sweep", item):
                yield f"[{index}]", value

    return {
        name: Rows(values(name, items)) if name in _LISTS and isinstance(items, list) else items
        for name, items in table.items()
    }


def _values(errors: Errors, key: str, raw: Any) -> list[Any]:
    if not isinstance(raw, dict) or "sweep" not in raw:
        return [raw]
    fixed, sweep = {name: value for name, value in raw.items() if name != "sweep"}, raw["sweep"]
    if not isinstance(sweep, dict) or not sweep:
        errors.add(key, expected("a table of lists", sweep, "sweep = { share = [0.5, 0.7] }"))
        return [fixed]
    swept = {name: items for name, items in sweep.items() if isinstance(items, list) and items}
    for name, items in sweep.items():
        if name not in swept:
            message = expected("a list with at least one value", items, "[1, 2]")
            errors.add(f"{key}.{printable(name)}", message)
        elif name in fixed:
            errors.add(f"{key}.{printable(name)}", "fixed and swept", "keep one of the two")
    names = sorted(swept.keys() - fixed.keys())  # the order of keys in a TOML table means nothing
    rows = product(*(swept[name] for name in names))
    return [{**fixed, **dict(zip(names, row, strict=True))} for row in rows]


def _rows(errors: Errors, index: int, block: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(block, dict) or not block.keys() & {"columns", "rows"}:
        yield f"[{index}]", block
        return
    shared = {name: value for name, value in block.items() if name not in ("columns", "rows")}
    key, columns, rows = f"published[{index}]", block.get("columns"), block.get("rows")
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        errors.add(f"{key}.columns", expected("a list of names", columns, 'columns = ["dataset", "asr"]'))
    elif not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        errors.add(f"{key}.rows", expected("a list of rows", rows, 'rows = [["digits", 0.5]]'))
    elif unknown := [name for name in columns if name not in PublishedRow.model_fields]:
        for name in unknown:
            remedy = nearest(name, PublishedRow.model_fields)
            errors.add(f"{key}.columns", f"unknown column {quoted(name)}", remedy)
    elif len({*shared, *columns}) < len(shared) + len(columns):
        errors.add(f"{key}.columns", "a name is given twice", "name each column once, and not beside the rows")
    else:
        for number, row in enumerate(rows):
            if len(row) == len(columns):
                yield f"[{index}].rows[{number}]", {**shared, **dict(zip(columns, row, strict=True))}
            else:
                what = f"{len(row)} values for {len(columns)} columns"
                errors.add(f"{key}.rows[{number}]", what, "give one for each column")
