"""Audit of a pipeline from another project: a function that releases arrays for each of two neighbouring data sets."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from bench.audit.bounds import Values, epsilon_of
from bench.audit.measure import Pipeline, Plan, Score, Tick, measured
from bench.audit.result import Audit, Claim
from bench.errors import BenchError, with_place
from bench.registry import plugins

Foreign = Callable[[int, int], Any]
Shapes = tuple[tuple[str, tuple[int, ...]], ...]
WORLDS = "the caller's two data sets"


def audit(
    pipeline: Foreign | str,
    *,
    runs: int = 2000,
    delta: float = 1e-5,
    epsilon: float | None = None,
    multiplier: float | None = None,
    confidence: float = 0.95,
    score: Score | None = None,
    seed: int = 0,
    name: str | None = None,
    tick: Tick | None = None,
) -> Audit:
    """Measure a lower bound of ε at δ = `delta` for a pipeline of your own, from many runs on two neighbouring data
    sets (worlds).

    - `pipeline`: a function of the world (0 or 1) and a seed that returns all released values: an array, or a mapping
      or sequence of arrays. A text names the function, `pkg.mod:function` or `FILE.py:function`.
    - `runs`: number of runs in each world, each with another seed.
    - `epsilon`: the claimed ε at `delta`; None: no claim, unless `multiplier` is given.
    - `multiplier`: the claimed noise multiplier of a Gaussian mechanism: the noise's standard deviation divided by the
      sensitivity; None: no such claim.
    - `confidence`: probability with which each bound holds.
    - `score`: function from the released values (value,) to their exact likelihood ratio, if known; None: scores are
      learned.
    - `seed`: seed from which the runs' seeds follow.
    - `name`: name in the result; None: the function's name.
    - `tick`: function without arguments, called after every pair of runs (a run in each world); None: no call.

    Raises `BenchError` for a pipeline that fails, or that releases unequal shapes, NaN, or the same values in all
    runs."""
    plan = Plan(runs=runs, delta=delta, confidence=confidence, seed=seed)
    claim = claimed(epsilon, multiplier, delta)
    called = pipeline if isinstance(pipeline, str) else str(getattr(pipeline, "__name__", "pipeline"))
    flat = released(load(pipeline) if isinstance(pipeline, str) else pipeline)
    start = time.process_time()
    found = measured(flat, plan, score=score, tick=tick)["released"]
    return Audit(
        name=name or called,
        point="released",
        worlds=WORLDS,
        stated=None,
        claim=claim,
        delta=delta,
        confidence=confidence,
        runs=runs,
        epsilon=found.epsilon,
        mu=found.mu,
        scores=found.scores,
        seconds=time.process_time() - start,
    )


def claimed(epsilon: float | None, multiplier: float | None, delta: float) -> Claim | None:
    """Return the claim to audit: the claimed ε `epsilon` at δ = `delta`, or a Gaussian mechanism with the noise
    multiplier `multiplier` (the noise's standard deviation divided by the sensitivity). None if both are None. Raises
    `BenchError` if both are given, for an ε that is negative or infinite, for a multiplier that is not positive and
    finite, and for a multiplier at δ = 0."""
    if epsilon is not None and multiplier is not None:
        raise BenchError("give the claim as ε or as a noise multiplier, not both")
    if multiplier is not None:
        if not 0 < multiplier < np.inf:
            raise BenchError(f"the noise multiplier must be above 0 and finite, got {multiplier:g}")
        if delta == 0:
            raise BenchError("Gaussian noise has no ε at δ = 0; give δ, such as 1e-5")
        return Claim(epsilon=epsilon_of(1 / multiplier, delta), mu=1 / multiplier)
    if epsilon is None:
        return None
    if not 0 <= epsilon < np.inf:
        raise BenchError(f"the claimed ε must be at least 0 and finite, got {epsilon:g}")
    return Claim(epsilon=epsilon)


def load(text: str) -> Foreign:
    """Import and return the user's pipeline, the function that `text` names as `pkg.mod:function` or
    `FILE.py:function`. Raises `BenchError` for a missing file, module or function, and for an error inside the
    module."""
    module, sign, function = text.rpartition(":")
    if not sign or not module or not function:
        raise BenchError(f"{text!r} names no function; write pkg.mod:function or FILE.py:function")
    loaded = plugins.module(module, "pipeline")
    found = getattr(loaded, function, None)
    if not callable(found):
        own = {name: value for name, value in vars(loaded).items() if not name.startswith("_")}
        known = [
            name
            for name, value in own.items()
            if callable(value) and not isinstance(value, type) and value.__module__ == loaded.__name__
        ]
        raise BenchError(f"{module} has no function {function!r}; there are {', '.join(known) or 'none'}")
    chosen: Foreign = found
    return chosen


def released(pipeline: Foreign) -> Pipeline:
    """Wrap the user's `pipeline` for an audit: return a function of world (0 or 1, two neighbouring data sets) and seed
    that runs the pipeline and checks the released values. Its result is {`released`: all values as a vector, (value,)}.
    A run raises `BenchError` for an exception in the pipeline, and for an output that is no array, is empty, is not
    finite, or has other shapes than the first run."""
    known: list[Shapes] = []

    def run(world: int, seed: int) -> dict[str, Values]:
        place = f"the pipeline in world {world}, seed {seed}"
        try:
            output = pipeline(world, seed)
        except Exception as error:
            raise BenchError(f"{place}: {with_place(error)}") from error
        arrays = dict(_arrays(output, "", place))
        shapes: Shapes = tuple((name, value.shape) for name, value in arrays.items())
        if not known:
            known.append(shapes)
        if shapes != known[0]:
            raise BenchError(
                f"{place} releases {_words(shapes)}, the first run {_words(known[0])}; a shape that differs tells the "
                "worlds apart: release equal shapes, with sizes as values"
            )
        values = np.concatenate([value.ravel() for value in arrays.values()]) if arrays else np.zeros(0)
        if not values.size:
            raise BenchError(f"{place} releases no value; return the arrays that leave the pipeline")
        if not np.isfinite(values).all():
            wrong = int((~np.isfinite(values)).sum())
            raise BenchError(f"{place} releases NaN or infinity in {wrong} of {values.size} values")
        return {"released": values}

    return run


def _arrays(output: Any, name: str, place: str) -> Iterator[tuple[str, Values]]:
    if isinstance(output, Mapping):
        for key in sorted(output, key=str):
            yield from _arrays(output[key], f"{name}.{key}" if name else str(key), place)
    elif isinstance(output, Sequence) and not isinstance(output, str | bytes) and not _is_numbers(output):
        for at, value in enumerate(output):
            yield from _arrays(value, f"{name}[{at}]", place)
    else:
        value = output.detach().cpu().double().numpy() if isinstance(output, Tensor) else output
        try:
            yield name, np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            kind = type(output).__name__
            raise BenchError(f"{place} releases a {kind}; return an array, or a mapping or list of arrays") from None


def _is_numbers(output: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) for value in output)


def _words(shapes: Shapes) -> str:
    shown = ", ".join(f"{name} {shape}".strip() for name, shape in shapes[:4])
    return f"{shown}, …" if len(shapes) > 4 else shown or "no array"
