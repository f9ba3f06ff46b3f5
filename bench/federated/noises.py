"""The total noise on a reading, from the noises of several transforms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.defenses.base import AddedNoise, Tensors
from bench.points import STAGES, UPDATE_STAGES, Stage
from bench.rows import flattened
from bench.trip import Noise

Added = tuple[Stage, AddedNoise]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanOver:
    """Numbers of examples, local steps and clients that a reading (an observed update) averages over. `total_noise`
    divides the variance of a defense's noise by these numbers."""

    batch: int
    """B, examples per local step."""
    steps: int
    """L, local steps."""
    senders: int
    """Number of clients averaged in the reading."""
    of_clients: bool
    """True if the reading is a mean over clients, even over a single client (of a round with dummies)."""


def total_noise(added: Sequence[Added], scales: Mapping[Stage, float], counts: MeanOver, probe: Tensors) -> Noise:
    """Return the total noise that a defense's transforms add to a reading (an observed update), in gradient units: its
    distribution and variance, which an adaptive attacker knows. A single Laplace noise stays Laplace; sums and means
    over several noises count as Gaussian.

    - `added`: pairs (stage of the round, noise added at this stage).
    - `scales`: size of a gradient unit at each stage: 1 for gradients, η·L for weight differences after L local steps
      with learning rate η.
    - `counts`: numbers of examples B, local steps L and clients K over which the reading is a mean.
    - `probe`: any gradient, which gives the shapes, name → (*shape)."""
    shrunk = [
        (stage, replace(noise, variance=_on_reading(stage, noise, scales[stage], counts))) for stage, noise in added
    ]
    acting = [(stage, noise) for stage, noise in shrunk if isinstance(noise.variance, Mapping) or noise.variance > 0]
    each = [noise for _, noise in acting]
    if not each:
        return Noise()
    single = len(each) == 1 and _behind(acting[0][0], counts) == 1
    law = each[0].law if single else "gaussian"
    bound = any(noise.bound for noise in each)
    if not any(isinstance(noise.variance, Mapping) for noise in each):
        return Noise(law=law, variance=sum(_number(noise) for noise in each), bound=bound)
    variances = {
        name: sum((_of(noise, name, value) for noise in each), value.new_zeros(())) for name, value in probe.items()
    }
    whole = {name: value.expand(probe[name].shape) for name, value in variances.items()}
    count = sum(value.numel() for value in whole.values())
    mean = float(sum(value.double().sum() for value in whole.values())) / count
    flat = flattened(whole, 0)
    if bool((flat == flat[0]).all()):
        return Noise(law=law, variance=mean, bound=bound)
    return Noise(law=law, variance=mean, variances=variances, bound=bound)


def _behind(stage: Stage, counts: MeanOver) -> int:
    """Return the number of independent draws that a reading averages, for noise at `stage`."""
    count = counts.batch if stage == "example" else 1
    count *= counts.steps if STAGES.index(stage) < STAGES.index(UPDATE_STAGES[0]) else 1
    return count * (counts.senders if stage != "aggregate" else 1)


def _on_reading(stage: Stage, noise: AddedNoise, scale: float, counts: MeanOver) -> float | dict[str, Tensor]:
    if counts.of_clients and noise.of_mean is not None and stage != "aggregate":
        return noise.of_mean / scale**2
    over = scale**2 * _behind(stage, counts)
    if isinstance(noise.variance, Mapping):
        return {name: value / over for name, value in noise.variance.items()}
    return noise.variance / over


def _number(noise: AddedNoise) -> float:
    assert not isinstance(noise.variance, Mapping)
    return noise.variance


def _of(noise: AddedNoise, name: str, like: Tensor) -> Tensor:
    value = noise.variance[name] if isinstance(noise.variance, Mapping) else noise.variance
    return torch.as_tensor(value, dtype=like.dtype, device=like.device)
