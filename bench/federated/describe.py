"""A defense's public description: the composition, in stage order, of its transforms' descriptions."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from bench.defenses.base import Context, Law, Tensors, Transform
from bench.federated.draws import NoDraws
from bench.federated.stages import Stages
from bench.points import SENT, STAGES, Point, Scope, Stage
from bench.trip import Noise

_OF_A_CLIENT = ("step", *SENT)
_Parts = tuple[tuple[Stage, tuple[Transform, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """`bench.trip.Description` for one point: maps candidates' per-example gradients to what it shows."""

    parts: _Parts
    contexts: Mapping[Stage, Context]
    unit: float
    noise: Noise = Noise()
    additive: bool = True

    @property
    def inside_steps(self) -> bool:
        return any(transforms for stage, transforms in self.parts if stage in ("example", "step"))

    def simulate(self, per_example: Tensors, observed: Tensors) -> dict[str, Tensor]:
        """`per_example` (reading, example, *shape), `observed` (reading, *shape) in gradient units →
        (reading, *shape): exact for one local step."""
        candidate = dict(per_example)
        batch = {name: value[:, None] for name, value in observed.items()}
        for stage, transforms in self.parts:
            if stage == "step":
                candidate = {name: value.mean(1) for name, value in candidate.items()}
            scale = self.unit if stage in SENT else 1.0
            seen = batch if stage == "example" else observed
            if transforms and scale != 1.0:
                candidate = {name: scale * value for name, value in candidate.items()}
                seen = {name: scale * value for name, value in seen.items()}
            for transform in transforms:
                after = transform.simulate(candidate, seen, self.contexts[stage])
                assert after is not None  # `describe` tried it
                candidate = after
            if transforms and scale != 1.0:
                candidate = {name: value / scale for name, value in candidate.items()}
        if self.parts[-1][0] == "example":
            candidate = {name: value.mean(1) for name, value in candidate.items()}
        return candidate

    def __repr__(self) -> str:
        """Equal where a later tap adds no transform, so that equal readings are attacked once."""
        acting = tuple((stage, transforms) for stage, transforms in self.parts if transforms)
        return f"Composition({acting!r}, unit={self.unit}, noise={self.noise})"


def untouched(stages: Stages, point: Point) -> bool:
    """Whether no transform acts on what `point` shows, so that there is nothing to describe."""
    return not any(stages.has(stage) for stage in STAGES if point.sees(stage))


def is_random(stages: Stages, point: Point) -> bool:
    """Whether what `point` shows depends on the defense's draws: one reading is then one of many."""
    seen = (stage for stage in STAGES if point.sees(stage))
    return any(transform.random for stage in seen for transform in stages.transforms.get(stage, ()))


def describe(
    stages: Stages, point: Point, *, round_: int, unit: float, probe: Tensors, weights: Tensors | None = None,
    colluders: float = 0.0,
) -> Composition | None:  # fmt: skip
    """The description of everything that `point` shows; None where a transform has no description, or acts on single
    clients and only their mean is shown.  `unit`: one unit of the mean gradient in the units that are sent, 1 or η·L.

    `probe`, name → (*shape), is any gradient, on which each transform is tried once.  `weights`, name → (*shape) of
    that round, and `colluders`: see `Context`.
    """
    seen = [stage for stage in STAGES if point.sees(stage)]
    contexts: dict[Stage, Context] = {
        stage: Context(
            lead=2 if stage == "example" else 1,  # a candidate keeps the readings' axis at `aggregate`
            stage=stage, round=round_, step=0, setting=stages.setting, draws=NoDraws(),
            weights=weights, colluders=colluders,
        )
        for stage in seen
    }  # fmt: skip
    if point.scope is Scope.AGGREGATE and any(stages.has(stage) for stage in seen if stage in _OF_A_CLIENT):
        return None
    for stage in seen:
        trial = {n: v[(None,) * contexts[stage].lead] for n, v in probe.items()}
        for transform in stages.transforms.get(stage, ()):
            if transform.simulate(trial, trial, contexts[stage]) is None:
                return None
    parts = tuple((stage, stages.transforms.get(stage, ())) for stage in seen)
    return Composition(
        parts=parts, contexts=contexts, unit=unit,
        noise=_noise(
            parts, contexts, unit,
            batch=1 if point.scope is Scope.EXAMPLE else stages.setting.batch,
            steps=stages.setting.steps if point.after_training else 1,
        ),
        additive=_additive(parts, contexts),
    )  # fmt: skip


def _noise(parts: _Parts, contexts: Mapping[Stage, Context], unit: float, *, batch: int, steps: int) -> Noise:
    """The noise of all transforms together, in gradient units; means over batch and steps divide by B and L.

    A transform after a noise can only shrink it: the sum is then an upper bound.  A single Laplace noise keeps its law;
    sums and means of several count as Gaussian.
    """
    added: list[tuple[Law, float]] = []
    for stage, transforms in parts:
        if stage == "step":
            added = [(law if batch == 1 else "gaussian", variance / batch) for law, variance in added]
        if stage == "client" and steps > 1:
            added = [("gaussian", variance / steps) for _, variance in added]
        scale = unit if stage in SENT else 1.0
        for transform in transforms:
            noise = transform.noise(contexts[stage])
            if noise is not None and noise[1] > 0:
                added.append((noise[0], noise[1] / scale**2))
    law = added[0][0] if len(added) == 1 else "gaussian"
    return Noise(law=law, variance=sum(variance for _, variance in added))


def _additive(parts: _Parts, contexts: Mapping[Stage, Context]) -> bool:
    """Whether only additive noise is random, and only noise comes after it."""
    noised = False
    for stage, transforms in parts:
        for transform in transforms:
            adds = transform.noise(contexts[stage]) is not None
            if not adds and (transform.random or noised):
                return False
            noised |= adds
    return True
