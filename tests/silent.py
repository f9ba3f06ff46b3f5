"""Random and rounding transforms without a description: each defines `apply` only.  `--plugin tests/silent.py` offers
them as the defense `silent`, with the transform's name as parameter.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bench.defenses.base import Context, Defense, Setting, StageTransforms, Tensors, Transform
from bench.defenses.transforms.rows import broadcast
from bench.parameters import parameter
from bench.rows import flattened, rows


class ByTensor(Transform):
    """A transform of each tensor by `one`, (*lead, *shape) → (*lead, *shape)."""

    @abstractmethod
    def one(self, name: str, tensor: Tensor, context: Context) -> Tensor: ...

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        return {name: self.one(name, tensor, context) for name, tensor in tensors.items()}


@dataclass(frozen=True, kw_only=True)
class Drop(ByTensor):
    """Drop units with probability `share`: coordinates, blocks with 64, entries on an axis, or tensors (Srivastava et
    al. 2014; Wan et al. 2013, DropConnect; Tompson et al. 2015, whole feature maps).
    """

    random: ClassVar[bool] = True
    unit: str
    share: float
    rescaled: bool = False

    def one(self, name: str, tensor: Tensor, context: Context) -> Tensor:
        lead, flat = context.lead, rows(tensor, context.lead)
        if self.unit == "blocks":
            blocks = -(-flat.shape[-1] // 64)
            drawn = context.draws.uniform(name, flat[..., :1].expand(*flat.shape[:-1], blocks))
            kept = (drawn >= self.share).repeat_interleave(64, -1)[..., : flat.shape[-1]].reshape(tensor.shape)
        else:
            axes = {"coordinates": tensor.dim(), "outputs": lead + 1, "inputs": lead + 2, "tensors": lead}[self.unit]
            like = tensor.flatten(lead).sum(-1) if axes == lead else tensor
            while like.dim() > axes:
                like = like.sum(-1)
            like = like.sum(lead) if self.unit == "inputs" and like.dim() > lead + 1 else like
            kept = context.draws.uniform(name, like) >= self.share
            if self.unit == "inputs" and tensor.dim() > lead + 1:
                kept = kept.unsqueeze(lead)
            kept = kept.reshape(*kept.shape, *(1,) * (tensor.dim() - kept.dim()))
        return tensor * kept.to(tensor) / (1 - self.share if self.rescaled else 1.0)


@dataclass(frozen=True, kw_only=True)
class RandomGrid(ByTensor):
    """Round at random, without bias, to levels between a tensor's least and largest value (Suresh et al. 2017, §3)."""

    random: ClassVar[bool] = True
    levels: int = 16

    def one(self, name: str, tensor: Tensor, context: Context) -> Tensor:
        flat = rows(tensor, context.lead)
        least, most = flat.amin(-1), flat.amax(-1)
        step = broadcast((most - least).clamp_min(1e-12) / (self.levels - 1), tensor)
        start = broadcast(least, tensor)
        return ((tensor - start) / step + context.draws.uniform(name, tensor)).floor() * step + start


@dataclass(frozen=True, kw_only=True)
class SignTimes(ByTensor):
    """Signs times the mean magnitude (Bernstein et al. 2018), or times a number drawn for each tensor."""

    random: ClassVar[bool] = True
    drawn: bool

    def one(self, name: str, tensor: Tensor, context: Context) -> Tensor:
        size = rows(tensor, context.lead).abs().mean(-1)
        if self.drawn:
            size = 0.1 + context.draws.uniform(name, size)
        return broadcast(size, tensor) * tensor.sign()


@dataclass(frozen=True, kw_only=True)
class FlippedSigns(ByTensor):
    """Each sign is flipped with probability `share` (randomised response: Warner 1965); `values`: the value's sign."""

    random: ClassVar[bool] = True
    share: float
    values: bool

    def one(self, name: str, tensor: Tensor, context: Context) -> Tensor:
        sign = torch.where(context.draws.uniform(name, tensor) < self.share, -1.0, 1.0).to(tensor)
        if self.values:
            return sign * tensor
        return sign * broadcast(rows(tensor, context.lead).abs().mean(-1), tensor) * tensor.sign()


@dataclass(frozen=True, kw_only=True)
class ShuffleWithin(ByTensor):
    """Coordinates are permuted at random within blocks of `size` of a tensor."""

    random: ClassVar[bool] = True
    size: int

    def one(self, name: str, tensor: Tensor, context: Context) -> Tensor:
        flat = rows(tensor, context.lead)
        blocks = torch.arange(flat.shape[-1]) // self.size
        order = (blocks + context.draws.uniform(name, flat)).argsort(-1)
        return flat.gather(-1, order).reshape(tensor.shape)


@dataclass(frozen=True, kw_only=True)
class SubsetToMean(ByTensor):
    """A random share of coordinates in a tensor is replaced by their mean."""

    random: ClassVar[bool] = True
    share: float

    def one(self, name: str, tensor: Tensor, context: Context) -> Tensor:
        drawn = (context.draws.uniform(name, tensor) < self.share).to(tensor)
        total, count = (rows(value, context.lead).sum(-1) for value in (drawn * tensor, drawn))
        return torch.where(drawn > 0, broadcast(total / count.clamp_min(1), tensor), tensor)


@dataclass(frozen=True, kw_only=True)
class PowersOfTwo(ByTensor):
    """Each magnitude becomes the nearest power of `base` in the logarithm (Miyashita et al. 2016), or 0 if below
    base⁻⁸ of the tensor's largest.
    """

    base: float = 2.0

    def one(self, name: str, tensor: Tensor, context: Context) -> Tensor:
        del name
        most = broadcast(rows(tensor, context.lead).abs().amax(-1), tensor)
        exponents = (tensor.abs().clamp_min(1e-30).log2() / torch.tensor(self.base).log2().item()).round()
        power = self.base**exponents
        return tensor.sign() * power * (power >= self.base**-8 * most).to(tensor)


@dataclass(frozen=True, kw_only=True)
class RandomLimit(Transform):
    """Clip to a random bound, in [.2, 1) of the norm or of the largest magnitude: an update's norm, a tensor's, a row's
    (an entry on the first axis), or a tensor's magnitudes.
    """

    random: ClassVar[bool] = True
    over: str

    def apply(self, tensors: Tensors, context: Context) -> dict[str, Tensor]:
        lead = context.lead
        if self.over == "model":
            factor = 0.2 + 0.8 * context.draws.uniform("bound", flattened(tensors, lead)[..., 0])
            return {name: broadcast(factor, tensor) * tensor for name, tensor in tensors.items()}
        clipped = {}
        for name, tensor in tensors.items():
            if self.over == "row":
                like = rows(tensor, min(lead + 1, tensor.dim())).sum(-1)
                clipped[name] = broadcast(0.2 + 0.8 * context.draws.uniform(name, like), tensor) * tensor
                continue
            most = rows(tensor, lead).abs().amax(-1)
            drawn = 0.2 + 0.8 * context.draws.uniform(name, most)
            if self.over == "tensor":
                clipped[name] = broadcast(drawn, tensor) * tensor
            else:
                limit = broadcast(drawn * most, tensor)
                clipped[name] = torch.minimum(torch.maximum(tensor, -limit), limit)
        return clipped


PLUGINS: dict[str, Transform] = {
    "drop-coordinates": Drop(unit="coordinates", share=0.5),
    "drop-coordinates-rescaled": Drop(unit="coordinates", share=0.5, rescaled=True),
    "drop-inputs": Drop(unit="inputs", share=0.5),
    "drop-outputs": Drop(unit="outputs", share=0.5, rescaled=True),
    "drop-blocks": Drop(unit="blocks", share=0.7),
    "drop-tensors": Drop(unit="tensors", share=0.5),
    "random-grid": RandomGrid(),
    "signs": SignTimes(drawn=False),
    "signs-drawn-scale": SignTimes(drawn=True),
    "flipped-signs": FlippedSigns(share=0.1, values=False),
    "flipped-values": FlippedSigns(share=0.1, values=True),
    "shuffle-within-8": ShuffleWithin(size=8),
    "shuffle-within-64": ShuffleWithin(size=64),
    "subset-to-mean": SubsetToMean(share=0.5),
    "powers-of-two": PowersOfTwo(),
    "random-clip": RandomLimit(over="model"),
    "random-clip-tensors": RandomLimit(over="tensor"),
    "random-clip-rows": RandomLimit(over="row"),
    "random-clip-magnitudes": RandomLimit(over="magnitudes"),
}


@dataclass(frozen=True, kw_only=True)
class Silent(Defense):
    """A transform from `PLUGINS`, for a client's update."""

    reference = "for tests"
    stages = ("client",)

    kind: str = parameter("drop-coordinates", "name of the transform")

    def transforms(self, setting: Setting) -> StageTransforms:
        del setting
        return {"client": (PLUGINS[self.kind],)}
