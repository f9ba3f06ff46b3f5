"""What searches for the most probable examples share (`map`, `demix`): their objective, and the stages of a start."""

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from bench.attacks.parts.curvature import LARGEST, equal_curvature
from bench.attacks.parts.distance import Distance
from bench.attacks.parts.objective import Mismatch, by_likelihood
from bench.attacks.parts.soften import has_relu, softened
from bench.attacks.parts.space import Gaussian
from bench.attacks.staged import Stage
from bench.rng import Key
from bench.trip import Reading

# Of softened ReLUs, stage by stage, and the weight of -log p; None: the ReLU itself.
_SHARPNESS = (1.0, 2.0, 5.0, 15.0, 50.0, 150.0, None)
_WEIGHTS = (1e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 1e-6)
_SOFT_STAGE = 150  # evaluations of each of these stages from which another start pays
_LEAST_CURVED = 200  # evaluations of a start from which the curvature matrix pays


def mismatch_of(reading: Reading) -> Mismatch:
    """The distance of a reading from what candidates would show, by the described noise."""
    return Mismatch(
        reading=reading, distance=by_likelihood(Distance(kind="l2"), reading),
        unrolled=reading.steps > 1 and reading.senders == 1,
    )  # fmt: skip


def starts_worth(reading: Reading, evaluations: int, starts: int) -> int:
    """So many starts, or as many as so many evaluations suffice for."""
    if not has_relu(reading.model):
        return starts
    return max(1, min(starts, evaluations // (_SOFT_STAGE * len(_SHARPNESS))))


def ways(
    reading: Reading, space: Gaussian, variance: float, evaluations: int, key: Key, *, bound: bool
) -> tuple[tuple[Stage, ...], ...]:
    """The stages of one start that may take so many evaluations, and of the next."""
    model = reading.model
    if has_relu(model):
        return (tuple(_softened_stages(model, space, by_angle=variance == 0)),)
    if variance > 0:  # of a bound, the second stage has what the first one's residual says
        first = (Stage(model=model, space=space, until=0.3),) if bound else ()
        return ((*first, Stage(model=model, space=space)),)
    curved = evaluations >= _LEAST_CURVED and reading.public_mean.numel() <= LARGEST
    until = 0.3 if curved else 0.5
    last = Stage(model=model, space=equal_curvature(space, reading, key) if curved else space)
    by_distance = Stage(model=model, space=space, weight=2e-6, until=until)
    by_angle = (
        Stage(model=model, space=space, weight=1e-4, until=until / 2, cosine=True),
        Stage(model=model, space=space, weight=1e-6, until=until, cosine=True),
    )
    return ((by_distance, last), (*by_angle, last)) if reading.examples == 1 else ((by_distance, last),)


def _softened_stages(model: nn.Module, space: Gaussian, *, by_angle: bool) -> Iterator[Stage]:
    for n, (sharpness, weight) in enumerate(zip(_SHARPNESS, _WEIGHTS, strict=True), 1):
        stage = Stage(model=model, space=space, weight=weight, until=n / len(_SHARPNESS))
        if sharpness is not None:
            stage = replace(stage, model=softened(model, sharpness), cosine=by_angle)
        yield stage
