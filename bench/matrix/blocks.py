"""A matrix document made ready for its models: sweeps and rows written out, sizes checked before products."""

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import Any

from bench.matrix.messages import Errors, Rows, expected, nearest, printable, quoted
from bench.matrix.schema import AXES, TRAIN_AXES, PublishedRow

MOST = 100_000  # combinations of one matrix
MOST_ROWS = 2000  # of `[[published]]`


def written_out(errors: Errors, content: Mapping[str, Any]) -> dict[str, Any]:
    """The document with a single value in place of each sweep, and a table in place of each published row."""
    content, total = dict(content), 0
    axes = content.get("axes")
    shared = axes if isinstance(axes, dict) else {}
    for key, table, names in _tables(content):
        total += _size({**shared, **table} if names is AXES else table, names)
        if total > MOST:
            errors.add(key, f"{total} combinations, at most {MOST} are allowed", "split the matrix")
            errors.raise_any()
    if isinstance(axes, dict):
        content["axes"] = _unswept(errors, "axes", axes, AXES)
    for kind, names in (("attack", AXES), ("train", TRAIN_AXES)):
        if isinstance(content.get(kind), list):
            content[kind] = [
                _unswept(errors, f"{kind}[{index}]", block, names) if isinstance(block, dict) else block
                for index, block in enumerate(content[kind])
            ]
    if isinstance(content.get("published"), list):
        content["published"] = Rows(_rows(errors, content["published"]))
        if len(content["published"]) > MOST_ROWS:
            errors.add("published", f"more than {MOST_ROWS} rows", "split the matrix")
            errors.raise_any()
    return content


def _tables(content: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], tuple[str, ...]]]:
    """Every table that is a product: its key, itself, its axes."""
    if isinstance(content.get("axes"), dict) and not content.get("attack"):
        yield "axes", content["axes"], AXES
    for kind, names in (("attack", AXES), ("train", TRAIN_AXES)):
        blocks = content.get(kind)
        for index, block in enumerate(blocks if isinstance(blocks, list) else ()):
            if isinstance(block, dict):
                yield f"{kind}[{index}]", block, names


def _size(table: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """How many combinations a table stands for."""
    lists = (table[name] for name in names if isinstance(table.get(name), list))
    return prod(sum(map(_sweep_size, items)) for items in lists if items)


def _sweep_size(raw: Any) -> int:
    sweep = raw.get("sweep") if isinstance(raw, dict) else None
    lists = sweep.values() if isinstance(sweep, dict) else ()
    return prod(max(1, len(items)) for items in lists if isinstance(items, list))


def _unswept(errors: Errors, key: str, table: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The table with each axis as a list of single values."""
    return {
        name: Rows(
            (f"[{index}]", value)
            for index, item in enumerate(items)
            for value in _values(errors, f"{key}.{name}[{index}]", item)
        )
        if name in names and isinstance(items, list)
        else items
        for name, items in table.items()
    }


def _values(errors: Errors, key: str, raw: Any) -> list[Any]:
    """The values that one item of an axis stands for: itself, or the product of its sweep."""
    if not isinstance(raw, dict) or "sweep" not in raw:
        return [raw]
    fixed = {name: value for name, value in raw.items() if name != "sweep"}
    sweep, key = raw["sweep"], f"{key}.sweep"
    if not isinstance(sweep, dict) or not sweep:
        errors.add(key, expected("a table of lists", sweep, "sweep = { share = [0.5, 0.7] }"))
        return [fixed]
    good = True
    for name, items in sweep.items():
        where = f"{key}.{printable(name)}"
        if not isinstance(items, list) or not items:
            errors.add(where, expected("a list with at least one value", items, "[1, 2]"))
        elif name in fixed:
            errors.add(where, "fixed and swept", "keep one of the two")
        else:
            continue
        good = False
    if not good:
        return [fixed]
    names = sorted(sweep)  # the order of keys in a TOML table means nothing
    rows = product(*(sweep[name] for name in names))
    return [{**fixed, **dict(zip(names, row, strict=True))} for row in rows]


def _rows(errors: Errors, blocks: list[Any]) -> Iterator[tuple[str, Any]]:
    """The rows of every `[[published]]` block, each with what its block says of all; a block without rows is one."""
    for index, block in enumerate(blocks):
        key = f"published[{index}]"
        if not isinstance(block, dict) or not block.keys() & {"columns", "rows"}:
            yield f"[{index}]", block
            continue
        shared = {name: value for name, value in block.items() if name not in ("columns", "rows")}
        columns, rows = block.get("columns"), block.get("rows")
        if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
            errors.add(f"{key}.columns", expected("a list of names", columns, 'columns = ["dataset", "asr"]'))
            continue
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
            errors.add(f"{key}.rows", expected("a list of rows", rows, 'rows = [["digits", 0.5]]'))
            continue
        for name in columns:
            if name not in PublishedRow.model_fields:
                remedy = nearest(name, PublishedRow.model_fields)
                errors.add(f"{key}.columns", f"unknown column {quoted(name)}", remedy)
            elif name in shared or columns.count(name) > 1:
                errors.add(f"{key}.columns", f"{name} is given twice", "keep one of the two")
        for number, row in enumerate(rows):
            where = f"rows[{number}]"
            if len(row) != len(columns):
                what = f"{len(row)} values for {len(columns)} columns"
                errors.add(f"{key}.{where}", what, "give one for each column")
            elif all(name in PublishedRow.model_fields for name in columns):
                yield f"[{index}].{where}", {**shared, **dict(zip(columns, row, strict=True))}
