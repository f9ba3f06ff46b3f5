"""Random mixtures of a client's examples, as an attacker draws them from the description of a defense."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.defenses.base import Context, Setting, Transform
from bench.federated.draws import StreamDraws


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer:
    """The part of a defense's description that mixes examples (mixup): transforms before the gradient that replace a
    batch's examples by convex mixtures. Attackers draw possible mixtures from it."""

    transforms: tuple[Transform, ...]
    """The transforms, in order."""
    setting: Setting
    """Federated setting of the defense."""
    round: int
    """Number of the round, counted from 0."""

    def matrices(self, size: int, count: int, seed: int) -> Tensor:
        """Return `count` random mixing matrices of a client's batch with `size` examples: (draw, mixture, original),
        float32. A row of a matrix holds the shares of the originals in a mixture. `seed` determines the draws."""
        draws = StreamDraws.of(seed, 0, self.round, tuple(range(count)), torch.device("cpu"))
        context = Context(lead=2, stage="input", round=self.round, step=0, setting=self.setting, draws=draws)
        mixed = {"inputs": torch.eye(size).expand(count, size, size)}
        for transform in self.transforms:
            mixed = transform.apply(mixed, context)
        return mixed["inputs"]
