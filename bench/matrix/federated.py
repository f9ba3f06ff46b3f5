"""The axis `federated`, and `bayesian`: tables that are a part of a cell, with a fault for each wrong field."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from bench.cell import Bayesian, Federated, Frozen
from bench.matrix.border import Border
from bench.matrix.combine import Choice
from bench.matrix.faults import nearest, quoted


def federated(border: Border, key: str, raw: Any) -> Choice | None:
    """The setting of one table, or None and a fault for each wrong field."""
    return fields(border, key, raw, Federated, "{ clients = 100, per_round = 10, batch = 3 }")


def bayesian(border: Border, key: str, raw: Any) -> Bayesian | None:
    """What `bayesian` of a `[[train]]` block asks for, or None and a fault for each wrong field."""
    if isinstance(raw, dict) and isinstance(raw.get("levels"), list):
        raw = {**raw, "levels": tuple(raw["levels"])}
    found = fields(border, key, raw, Bayesian, '{ levels = ["client"], delta = 1e-5 }')
    return None if found is None else found.value


def fields(border: Border, key: str, raw: Any, model: type[Frozen], example: str) -> Choice | None:
    """A table checked field by field against a model of the cell."""
    if not isinstance(raw, dict):
        border.bad(key, "a table", raw, example)
        return None
    try:
        found = model.model_validate(raw)
    except ValidationError as error:
        errors = [e for e in error.errors() if not (border.part and e["type"] == "value_error")]
        for fault in errors:
            _tell(border, key, dict(fault), model)
        return None if errors else Choice(raw, None)
    return Choice(found.model_dump(), found)


def _tell(border: Border, key: str, error: Mapping[str, Any], model: type[Frozen]) -> None:
    if error["type"] == "extra_forbidden":
        border.known(key, {str(error["loc"][0]): None}, model.model_fields)
        return
    where = ".".join((key, *map(str, error["loc"])))
    if error["type"] == "value_error":
        border.faults.add(where, error["msg"].removeprefix("Value error, "))
    elif error["type"] == "literal_error" and isinstance(error["input"], str):
        allowed = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        border.faults.add(where, f"unknown name {quoted(error['input'])}", nearest(error["input"], allowed))
    else:
        must = error["msg"].replace("Input should be", "must be")
        border.faults.add(where, f"wrong value, got {quoted(error['input'])}", f"it {must}")
