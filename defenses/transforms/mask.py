"""Masks: transforms that keep some coordinates of each row and set the others to zero."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import Context, Shown, State, Tensors, Transform
from bench.defenses.ranges import at_least, share
from bench.defenses.transforms.rows import broadcast
from bench.rows import flattened, kth_smallest, rows, unflattened
from bench.trip import Outcomes

_SHARE = "share of coordinates set to zero"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepLargest(Transform):
    """Keep the coordinates with the largest magnitude in each row (a client's or an example's tensors), and set the
    others to zero (Fed-αCDP §4.1, threshold pruning; Lin et al. 2018). Exactly round(share·n) of the n coordinates in
    all tensors become zero; ties are kept in tensor order."""

    reads: ClassVar[Shown] = "directions"  # magnitudes up to a factor, so a clip may follow

    share: float
    """Share of the coordinates that become zero."""

    def __post_init__(self) -> None:
        share(_SHARE, self.share)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        magnitudes = {name: tensor.abs() for name, tensor in tensors.items()}
        return _masked(tensors, _first(magnitudes, self.share, context.lead))

    @property
    def keeps(self) -> tuple[Shown, ...]:
        return ("zeros",)

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        return self.apply(tensors, context), state

    def smoothed(
        self, tensors: Tensors, state: State, context: Context, width: float
    ) -> tuple[dict[str, Tensor], State]:
        """Simulate the mask on an attacker's candidate gradients `tensors`, with a gradual transition from dropped to
        kept, so that a search has a useful derivative. Return the result and the unchanged `state`.

        A coordinate g becomes κ·g·sigmoid((|g|/t - 1)/`width`), with t the least kept magnitude; `width` is relative to
        t. The factor κ of each row (a client or an example) makes the squared distance to the masked row least.
        `context`: place in the training."""
        vectors = flattened(tensors, context.lead)
        kept = max(1, vectors.shape[-1] - round(self.share * vectors.shape[-1]))
        least = vectors.abs().topk(kept, dim=-1).values[..., -1:]
        soft = vectors * gradual(vectors, least, width)
        hard = vectors.where(vectors.abs() >= least, 0.0)
        energy = soft.square().sum(-1, keepdim=True).clamp_min(torch.finfo(soft.dtype).tiny)
        return unflattened((hard * soft).sum(-1, keepdim=True) / energy * soft, tensors, context.lead), state

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """Simulate the transform on an attacker's candidate gradients `tensors`, with the mask that the attacked
        reading `observed` shows: the candidate at the reading's nonzero coordinates. At other coordinates, the result
        is the candidate's excess over the least kept magnitude: a zeroed value cannot exceed it. `context`: place in
        the training."""
        kept = {name: observed[name] != 0 for name in tensors}
        least = _least_kept(_masked(tensors, kept), observed, context.lead)
        return {
            name: torch.where(kept[name], tensor, tensor - tensor.clamp(-bound, bound))
            for name, tensor in tensors.items()
            for bound in (broadcast(least, tensor),)
        }


def _least_kept(masked: Tensors, observed: Tensors, lead: int) -> Tensor:
    """Return each row's smallest nonzero magnitude in `observed`, before a later clip, (row,). The clip's factor is the
    ratio of norms: `masked`, the candidate at the kept coordinates, over `observed`, at least 1. A tensor has `lead`
    leading axes."""
    bounds = []
    for name, tensor in masked.items():
        seen, candidate = rows(observed[name], lead), rows(tensor, lead)
        norm = torch.linalg.vector_norm(seen, dim=-1)
        factor = torch.linalg.vector_norm(candidate, dim=-1) / norm.clamp_min(torch.finfo(norm.dtype).tiny)
        magnitudes = seen.abs().where(seen != 0, seen.new_tensor(torch.inf))
        bounds.append(magnitudes.amin(-1) * factor.clamp_min(1))
    return torch.stack(bounds).amin(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRandom(Transform):
    """Keep a random subset of the coordinates with magnitude above `threshold`, and set all others to zero. A fixed
    share 1 - `share` of all coordinates is drawn without replacement from the coordinates above the threshold. If too
    few coordinates exceed the threshold, all of these are kept (DSSGD, Shokri & Shmatikov 2015)."""

    random: ClassVar[bool] = True
    reads: ClassVar[Shown] = "zeros"

    share: float
    """Share of the coordinates that become zero."""
    threshold: float = 0.0
    """Magnitude that a kept coordinate exceeds."""

    def __post_init__(self) -> None:
        share(_SHARE, self.share)
        at_least("threshold", self.threshold)

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        above = {name: tensor.abs() > self.threshold for name, tensor in tensors.items()}
        lots = {
            name: context.draws.uniform(f"{name}/mask", tensor).where(above[name], tensor.new_tensor(-1.0))
            for name, tensor in tensors.items()
        }
        drawn = _first(lots, self.share, context.lead)
        return _masked(tensors, {name: drawn[name] & above[name] for name in tensors})

    @property
    def keeps(self) -> tuple[Shown, ...]:
        return ("zeros",)

    def expected(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        """Return the transform's output for an attacker's candidate gradients `tensors`, averaged over the random mask,
        and the unchanged `state`: each coordinate above the threshold, times its probability to be kept. `context`:
        place in the training."""
        above = {name: (tensor.abs() > self.threshold).to(tensor) for name, tensor in tensors.items()}
        return self._in_mean(tensors, above, context.lead), state

    def smoothed(
        self, tensors: Tensors, state: State, context: Context, width: float
    ) -> tuple[dict[str, Tensor], State] | None:
        """Simulate the mask on an attacker's candidate gradients `tensors`, averaged over its random choice, with a
        gradual threshold, so that a search has a useful derivative. Return the result and the unchanged `state`; None
        for threshold 0, because no transition is needed. sigmoid((|g|/`threshold` - 1)/`width`) replaces the decision
        |g| > `threshold` for each coordinate g; `width` is relative to the threshold. `context`: place in the training.
        """
        if not self.threshold:
            return None
        above = {name: gradual(tensor, tensor.new_tensor(self.threshold), width) for name, tensor in tensors.items()}
        return self._in_mean(tensors, above, context.lead), state

    def outcomes(self, tensors: Tensors, context: Context) -> Outcomes:
        """Return the two values that an attacker must consider for each coordinate of `tensors`, with their
        probabilities: zero, and the coordinate itself. The number of kept coordinates is fixed, so coordinates depend
        on each other a little; this is neglected. `context`: place in the training."""
        above = {name: (tensor.abs() > self.threshold).to(tensor) for name, tensor in tensors.items()}
        chances = self._chances(above, context.lead)
        return Outcomes(
            values={name: torch.stack([torch.zeros_like(tensor), tensor]) for name, tensor in tensors.items()},
            chances={name: torch.stack([1 - chance, chance]) for name, chance in chances.items()},
        )

    def _in_mean(self, tensors: Tensors, above: Tensors, lead: int) -> dict[str, Tensor]:
        chances = self._chances(above, lead)
        return {name: tensor * chances[name] for name, tensor in tensors.items()}

    def _chances(self, above: Tensors, lead: int) -> dict[str, Tensor]:
        """Return each coordinate's probability to be kept; `above` says which may be kept (0, 1, or between)."""
        drawn = flattened(above, lead)
        kept = drawn.shape[-1] - round(self.share * drawn.shape[-1])
        chance = (kept / drawn.sum(-1).clamp_min(1)).clamp_max(1)
        return {name: value * broadcast(chance, value) for name, value in above.items()}

    def simulate(self, tensors: Tensors, observed: Tensors, context: Context) -> dict[str, Tensor]:
        """Simulate the transform on an attacker's candidate gradients `tensors`, with the mask that the attacked
        reading `observed` shows: the candidate at the reading's nonzero coordinates, and zero at the others. `context`:
        place in the training."""
        return _masked(tensors, {name: observed[name] != 0 for name in tensors})


def _first(scores: Tensors, share: float, lead: int) -> dict[str, Tensor]:
    """Return masks of the coordinates with the highest `scores`, compared over all tensors of a row together. A row's n
    scores give False for the round(`share`·n) lowest, True for the others. `scores` have `lead` leading axes."""
    vectors = flattened(scores, lead).nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    kept = vectors.shape[-1] - round(share * vectors.shape[-1])
    if not kept:
        return unflattened(torch.zeros_like(vectors, dtype=torch.bool), scores, lead)
    least = kth_smallest(vectors, vectors.shape[-1] - kept + 1)
    mask = vectors >= least
    if bool((mask.sum(-1) > kept).any()):  # of equal scores, the first
        above, equal = vectors > least, vectors == least
        mask = above | (equal & (equal.cumsum(-1) <= kept - above.sum(-1, keepdim=True)))
    return unflattened(mask, scores, lead)


def gradual(tensor: Tensor, threshold: Tensor, width: float) -> Tensor:
    """Soften the decision |g| > t for each coordinate g in `tensor`, with t = `threshold`, so that an attacker's search
    has a derivative: return sigmoid((|g|/t - 1)/`width`), in [0, 1]. `width` is the transition's width relative to t.
    """
    return torch.sigmoid((tensor.abs() / threshold.clamp_min(torch.finfo(tensor.dtype).tiny) - 1) / width)


def _masked(tensors: Tensors, masks: Tensors) -> dict[str, Tensor]:
    return {name: torch.where(masks[name], tensor, torch.zeros_like(tensor)) for name, tensor in tensors.items()}
