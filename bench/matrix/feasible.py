"""What cannot run however long one waits, told before anything runs: `n/a: reason`."""

import json
import warnings
from functools import lru_cache
from typing import Any

import torch

from bench import registry as _registry
from bench.cell import AttackCell, Federated, TrainingCell
from bench.errors import BenchError, NotApplicable
from bench.matrix.border import Registry
from bench.parameters import build
from bench.points import POINTS

MOST_PICTURES = 16  # unknown pictures behind one reading, and local steps (design, Pipeline)
MOST_STEPS = 10


def impossible(
    cell: AttackCell | TrainingCell,
    *,
    data_kind: str,
    shape: tuple[int, ...],
    classes: int,
    registry: Registry = _registry,
) -> str | None:
    """Why the cell cannot run, in a few words, or None.

    `data_kind`, `shape` and `classes` are those of the cell's data.  What depends on a reading is
    the attack's own to refuse.
    """
    reason = _model(cell, data_kind, shape, classes, registry) or _clients(cell.federated)
    if reason is not None or isinstance(cell, TrainingCell):
        return reason
    return _knowledge(cell, registry) or _unknowns(cell)


def pictures(point: str, federated: Federated) -> int:
    """Distinct examples behind one reading at a point."""
    return {
        "example": 1,
        "step": federated.batch,
        "update": federated.batch * federated.steps,
        "sum": federated.batch * federated.steps * federated.per_round,
    }[POINTS[point].unit]


def _model(
    cell: AttackCell | TrainingCell, kind: str, shape: tuple[int, ...], classes: int, registry: Registry
) -> str | None:
    model = registry.load("models", cell.model.name)
    takes = tuple(getattr(model, "takes", (kind,)))
    if kind not in takes:
        article = "an image" if kind == "image" else f"a {kind}"
        return f"{cell.model.name} takes {' and '.join(takes)}, {cell.dataset.name} is {article}"
    why = _unbuildable(model, json.dumps(cell.model.params, sort_keys=True), shape, classes)
    return None if why is None else f"{cell.model.name} does not fit {'×'.join(map(str, shape))}: {why}"


@lru_cache(maxsize=256)
def _unbuildable(model: type, params: str, shape: tuple[int, ...], classes: int) -> str | None:
    """Why a model cannot be built for this shape: tried without memory or arithmetic, where that works."""
    misfit = "its layers do not fit inputs of this size"
    for device in ("meta", "cpu"):
        try:
            instance: Any = build(model, json.loads(params), where="model")
            with torch.device(device), torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns of empty layers, which are told here
                module = instance.build(shape, classes)
                logits = module(torch.zeros(2, *shape))
        except (NotApplicable, BenchError) as error:
            return str(error)
        except (RuntimeError, ValueError, ZeroDivisionError):
            continue  # some operations cannot do without values: try once more with them
        except Exception:
            return None  # not the shape's fault: the cell will crash, and its record will say why
        empty = any(parameter.numel() == 0 for parameter in module.parameters())
        return misfit if empty or tuple(logits.shape) != (2, classes) else None
    return misfit


def _clients(federated: Federated) -> str | None:
    if federated.client_examples is not None and federated.client_examples < federated.batch:
        return f"a client with {federated.client_examples} examples has no batch of {federated.batch}"
    return None


def _knowledge(cell: AttackCell, registry: Registry) -> str | None:
    knows = tuple(getattr(registry.load("attacks", cell.attack.name), "knowledge", ("plain",)))
    if cell.knowledge not in knows:
        return f"{cell.attack.name} knows {' and '.join(knows)}, not {cell.knowledge}"
    return None


def _unknowns(cell: AttackCell) -> str | None:
    unit, steps = POINTS[cell.point].unit, cell.federated.steps
    if unit in ("update", "sum") and steps > MOST_STEPS:
        return f"too many unknowns: {steps} local steps, at most {MOST_STEPS}"
    count = pictures(cell.point, cell.federated)
    if count > MOST_PICTURES:
        return f"too many unknowns: {count} pictures behind a reading, at most {MOST_PICTURES}"
    return None
