"""What a defense says of itself in public: the composition, in stage order, of its transforms' words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from bench.defenses.base import Context, Transform
from bench.federated.draws import NoDraws
from bench.federated.stages import Stages
from bench.points import SENT, STAGES, Point, Stage
from bench.trip import Noise

Tensors = Mapping[str, Tensor]


_OF_A_CLIENT = ("step", *SENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """`bench.trip.Description` for one point: maps candidates' per-example gradients to what it shows."""

    parts: tuple[tuple[Stage, tuple[Transform, ...]], ...]
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
        found = dict(per_example)
        batch = {name: value[:, None] for name, value in observed.items()}
        for stage, transforms in self.parts:
            if stage == "step":
                found = {name: value.mean(1) for name, value in found.items()}
            sent = stage in SENT
            scale = self.unit if sent else 1.0
            seen = batch if stage == "example" else observed
            if transforms and scale != 1.0:
                found = {name: scale * value for name, value in found.items()}
                seen = {name: scale * value for name, value in seen.items()}
            for transform in transforms:
                after = transform.simulate(found, seen, self.contexts[stage])
                assert after is not None  # `describe` asked
                found = after
            if transforms and scale != 1.0:
                found = {name: value / scale for name, value in found.items()}
        if self.parts[-1][0] == "example":
            found = {name: value.mean(1) for name, value in found.items()}
        return found

    def __repr__(self) -> str:
        """What it does: equal where a later tap adds no transform, so that equal readings are attacked once."""
        acting = tuple((stage, transforms) for stage, transforms in self.parts if transforms)
        return f"Composition({acting!r}, unit={self.unit}, noise={self.noise})"


def untouched(stages: Stages, point: Point) -> bool:
    """Whether no transform acts on what `point` shows: there is nothing to know."""
    return not any(stages.has(stage) for stage in STAGES if point.sees(stage))


def is_random(stages: Stages, point: Point) -> bool:
    """Whether what `point` shows depends on a draw of the defense's: one reading is then one of many."""
    seen = (stage for stage in STAGES if point.sees(stage))
    return any(transform.random for stage in seen for transform in stages.transforms.get(stage, ()))


def describe(
    stages: Stages, point: Point, *, round_: int, unit: float, probe: Tensors, weights: Tensors | None = None,
    colluders: float = 0.0,
) -> Composition | None:  # fmt: skip
    """The description of everything that `point` shows, or None where a transform describes nothing, or
    where it acts on each client of a mean that alone is shown.  `unit` is what one unit of the mean
    gradient amounts to in what is sent: 1, or η·L.

    `probe` name → (*shape), any gradient: each transform is asked once whether it answers.  `weights`
    name → (*shape) of that round, and `colluders`, the share of neighbours who tell: see `Context`.
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
    if point.unit == "sum" and any(stages.has(stage) for stage in seen if stage in _OF_A_CLIENT):
        return None
    for stage in seen:
        given = {n: v[(None,) * contexts[stage].lead] for n, v in probe.items()}
        for transform in stages.transforms.get(stage, ()):
            if transform.simulate(given, given, contexts[stage]) is None:
                return None
    parts = tuple((stage, stages.transforms.get(stage, ())) for stage in seen)
    return Composition(
        parts=parts, contexts=contexts, unit=unit,
        noise=_noise(
            parts, contexts, unit,
            batch=1 if point.unit == "example" else stages.setting.batch,
            steps=stages.setting.steps if point.unit in ("update", "sum") else 1,
        ),
        additive=_additive(parts, contexts),
    )  # fmt: skip


_Parts = tuple[tuple[Stage, tuple[Transform, ...]], ...]


def _noise(parts: _Parts, contexts: Mapping[Stage, Context], unit: float, *, batch: int, steps: int) -> Noise:
    """The sum of what all transforms add, in gradient units; means over batch and steps divide by B and L.

    What comes after a noise shortens or drops it at most: the sum is then an upper bound.  A single
    Laplace noise keeps its law; sums and means of several are taken as Gaussian.
    """
    found: list[tuple[Literal["gaussian", "laplace"], float]] = []
    for stage, transforms in parts:
        if stage == "step":
            found = [(law if batch == 1 else "gaussian", variance / batch) for law, variance in found]
        if stage == "client" and steps > 1:
            found = [("gaussian", variance / steps) for _, variance in found]
        scale = unit if stage in SENT else 1.0
        for transform in transforms:
            if (added := transform.noise(contexts[stage])) is not None and added[1] > 0:
                found.append((added[0], added[1] / scale**2))
    law = found[0][0] if len(found) == 1 else "gaussian"
    return Noise(law=law, variance=sum(variance for _, variance in found))


def _additive(parts: _Parts, contexts: Mapping[Stage, Context]) -> bool:
    """Whether additive noise is all that is random, and nothing but noise comes after it."""
    noised = False
    for stage, transforms in parts:
        for transform in transforms:
            adds = transform.noise(contexts[stage]) is not None
            if not adds and (transform.random or noised):
                return False
            noised |= adds
    return True
