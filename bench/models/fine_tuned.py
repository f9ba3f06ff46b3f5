"""Fine-tuning of a small transformer: a trained part, and frozen weights that everybody knows."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from bench.models.transformer import TinyTransformer
from bench.parameters import parameter

_PUBLIC = 0  # seed of the frozen weights


@dataclass(frozen=True, kw_only=True)
class FineTunedTransformer(TinyTransformer):
    """A `tiny-transformer` under fine-tuning: clients train only a part (`part`, such as LoRA's matrices) and the
    classifier, and send only the gradients of these. All other weights are frozen, public, and equal for all seeds."""

    reference = "Hu et al. 2022 (LoRA); sizes ours"

    part: Literal["lora", "last-block", "blocks"] = parameter(
        "lora", "trained part: LoRA on query and value of each block, the last block, or all blocks", source="ours"
    )
    rank: int = parameter(8, "rank of LoRA's matrices A and B", source="Hu et al. 2022", low=1)
    b0: Literal["zero", "drawn"] = parameter(
        "zero", "LoRA's matrix B at the start: zero as in the paper, or drawn as after some rounds", source="ours"
    )

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        module = super().build(shape, classes)
        module.load_state_dict(self.initial(module, _PUBLIC))
        train_part(module, self.part, self.rank)
        return module

    def bound(self, name: str, fan_in: int) -> float:
        """Return the half width of the initial uniform distribution for the parameter `name` with `fan_in` inputs; 0
        for LoRA's matrix B with `b0` zero, so that fine-tuning starts from the frozen model."""
        return 0.0 if self.b0 == "zero" and name.endswith(".b.weight") else super().bound(name, fan_in)


def train_part(module: nn.Module, part: Literal["lora", "last-block", "blocks"], rank: int) -> None:
    """Freeze the encoder `module` (`Encoder`), except the classifier and `part`: LoRA's matrices of the given `rank` on
    query and value of each block, the last block, or all blocks. Frozen parameters become buffers."""
    blocks = list(module.get_submodule("blocks").children())
    frozen = [module.get_submodule(name) for name in ("token", "position", "norm")]
    frozen += {"lora": blocks, "last-block": blocks[:-1], "blocks": []}[part]
    for each in frozen:
        _freeze(each)
    for block in blocks if part == "lora" else ():
        for name in ("query", "value"):
            setattr(block, name, _Lora(block.get_submodule(name), rank))


class _Lora(nn.Module):
    """A frozen linear layer plus the product of two small matrices, B A."""

    def __init__(self, base: nn.Module, rank: int) -> None:
        super().__init__()
        self.base = base
        width = len(base.get_buffer("bias"))
        self.a, self.b = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, z: Tensor) -> Tensor:
        out: Tensor = self.b(self.a(z)) + self.base(z)  # in this order: passes that read B's inputs skip the base
        return out


def _freeze(module: nn.Module) -> None:
    """Make the parameters of `module` buffers: gradients and updates leave them out."""
    for layer in module.modules():
        for name, value in list(layer.named_parameters(recurse=False)):
            delattr(layer, name)
            layer.register_buffer(name, value.detach(), persistent=False)
