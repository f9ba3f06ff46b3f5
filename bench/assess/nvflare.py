"""NVFLARE filters as defenses: a filter, called in this process, changes a client's weight difference."""

import ast
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.filter import Filter
from nvflare.apis.fl_context import FLContext
from torch import Tensor

from bench.assess.client import Client
from bench.assess.remedies import families, measured
from bench.assess.result import Remedy
from bench.datasets.loading import load
from bench.defenses.base import Context, Defense, Setting, StageTransforms, Tensors, Transform
from bench.errors import BenchError
from bench.models.base import Model
from bench.registry import entries as registry
from bench.rng import generator
from bench.sanitize import first_line

_EXAMPLES = 16  # of the client, from the digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered(Transform):
    """A transform (a defense's operation) that runs an NVFLARE filter on each client's update. The filter gets the
    client's weight difference, -rate times the gradient, as in NVFLARE."""

    random = True

    filter: Any
    """Instance of an NVFLARE filter."""
    rate: float
    """Learning rate of the client's step, which turns a gradient into a weight difference."""

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        whole = torch.cat([value.flatten(context.lead) for value in tensors.values()], -1)
        rows = whole.reshape(-1, whole.shape[-1])
        seeds = context.draws.uniform("seed", rows.new_zeros((*whole.shape[:-1], 1))).reshape(-1)
        out: dict[str, list[Tensor]] = {name: [] for name in tensors}
        for row, seed in enumerate(seeds.tolist()):
            given = {
                name: -self.rate * value.detach().reshape(-1, *value.shape[context.lead :])[row].double().numpy()
                for name, value in tensors.items()
            }
            for name, value in _filtered(self.filter, given, int(seed * 2**32)).items():
                out[name].append(torch.from_numpy(np.asarray(value)) / -self.rate)
        return {name: torch.stack(each).reshape(tensors[name].shape).to(tensors[name]) for name, each in out.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterDefense(Defense):
    """Defense that runs an NVFLARE filter between a client's training and the server."""

    reference = "the user's filter"
    stages = ("client",)

    filter: Any
    """Instance of an NVFLARE filter."""
    rate: float
    """Learning rate of the client's step, which turns a gradient into a weight difference."""

    def transforms(self, setting: Setting) -> StageTransforms:
        return {"client": (Filtered(filter=self.filter, rate=self.rate),)}


def parse(typed: str, folder: Path) -> Any:
    """Return an instance of the NVFLARE filter that the text `typed` describes, as `package.module:Filter(name=value,
    …)`. The module is searched in `folder` first, then in the installed packages. Raises `BenchError` for other text, a
    missing class, and arguments that the filter refuses."""
    module, _, call = typed.partition(":")
    try:
        parsed = ast.parse(call or "?", mode="eval").body
        made = parsed if isinstance(parsed, ast.Call) else ast.Call(parsed, [], [])
        assert isinstance(made.func, ast.Name)
        positional = [ast.literal_eval(each) for each in made.args]
        named = {str(each.arg): ast.literal_eval(each.value) for each in made.keywords}
    except (SyntaxError, ValueError, AssertionError):
        raise BenchError(f"{typed!r} is no filter; write package.module:Filter(percentile=10, gamma=0.01)") from None
    sys.path.insert(0, str(folder.resolve()))
    try:
        found = getattr(importlib.import_module(module), made.func.id)(*positional, **named)
    except Exception as error:  # the filter's own code
        raise BenchError(f"{typed!r}: {type(error).__name__}: {first_line(error)}") from error
    finally:
        sys.path.remove(str(folder.resolve()))
    if not isinstance(found, Filter):
        raise BenchError(f"{typed!r} is a {type(found).__name__}, not a Filter of nvflare")
    return found


def digits_client(*, seed: int = 0) -> Client:
    """Return a client to test a filter on: 16 examples of the data set digits, and the untrained model `mlp` (a fully
    connected net). The weights and the choice of examples follow from `seed`."""
    data = load(registry.instance("datasets", "digits", {}), "digits")
    architecture: Model = registry.instance("models", "mlp", {})
    model = architecture.build(data.shape, data.classes).eval()
    with torch.no_grad():
        for name, value in architecture.initial(model, seed).items():
            model.get_parameter(name).copy_(value)
    chosen = generator(seed, "assess", "digits").permutation(len(data.training.labels))[:_EXAMPLES]
    return Client(
        update=None,
        line="a client with 16 of the registered digits, at an untrained mlp",
        model=model,
        inputs=torch.from_numpy(data.training.floats(chosen))[None],
        labels=torch.from_numpy(data.training.labels[chosen]).long()[None],
        classes=data.classes,
        value_range=(0.0, 1.0),
        kind=data.kind,
        public=torch.from_numpy(data.public.floats()),
        public_labels=torch.from_numpy(data.public.labels).long(),
    )


def assess_filter(chosen: Any, *, rate: float, trials: int, seed: int = 0) -> tuple[Remedy, ...]:
    """Measure the share of examples that an attacker recognises (picks among candidates) without a defense, behind the
    NVFLARE filter `chosen`, and behind five shipped families of defenses. The attacker knows the defense. Return a
    `Remedy` with the share for each of these, in this order.

    - `rate`: the client's learning rate.
    - `trials`: number of trials for each defense.
    - `seed`: seed of the trials.

    Raises `BenchError` for a filter that fails on a weight difference or changes its tensors' names or shapes."""
    client = digits_client(seed=seed)
    plain = {name: -rate * value.numpy() for name, value in client.weights.items()}
    _filtered(chosen, plain, 0)
    return (
        measured(client, registry.instance("defenses", "none", {}), "none", trials, seed),
        measured(client, FilterDefense(filter=chosen, rate=rate), type(chosen).__name__, trials, seed),
        *(each.measured(client, trials, seed) for each in families()),
    )


def _filtered(chosen: Any, given: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Call the filter on a weight difference, with NumPy's global draws from `seed`, which are restored."""
    dxo = DXO(data_kind=DataKind.WEIGHT_DIFF, data={name: value.copy() for name, value in given.items()})
    dxo.set_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND, 1)
    state = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        out: dict[str, Any] = from_shareable(chosen.process(dxo.to_shareable(), FLContext())).data
    except Exception as error:  # the filter's own code
        raise BenchError(f"{type(chosen).__name__}: {type(error).__name__}: {first_line(error)}") from error
    finally:
        np.random.set_state(state)
    if out.keys() != given.keys() or any(np.shape(out[name]) != np.shape(value) for name, value in given.items()):
        raise BenchError(f"{type(chosen).__name__} changes the names or shapes of a weight difference")
    return out
