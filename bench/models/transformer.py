"""A small transformer encoder that classifies texts."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.errors import NotApplicable
from bench.kinds.texts import PAD
from bench.models.base import Model
from bench.parameters import parameter


@dataclass(frozen=True, kw_only=True)
class TinyTransformer(Model):
    """Transformer encoder for texts, with learned positions and LayerNorm after each sublayer, as in BERT. The mean
    over a text's tokens feeds a linear classifier; padding is ignored."""

    reference = "Vaswani et al. 2017; layout of BERT (Devlin et al. 2019), sizes ours"
    takes = ("text",)
    work = 4.0

    tokens: int = parameter(512, "tokens of the vocabulary, padding included", source="ours", low=2)
    width: int = parameter(128, "values of a token's vector", source="ours", low=1)
    heads: int = parameter(4, "attention heads; they divide the width", source="ours", low=1)
    blocks: int = parameter(2, "blocks of attention and a network per token", source="ours", low=1)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if self.width % self.heads:
            raise NotApplicable(f"width {self.width} is no multiple of {self.heads} heads")
        blocks = (_Block(self.width, self.heads) for _ in range(self.blocks))
        return _Transformer(self.tokens, shape[0], self.width, nn.ModuleList(blocks), classes)


class _Transformer(nn.Module):
    def __init__(self, tokens: int, positions: int, width: int, blocks: nn.ModuleList, classes: int) -> None:
        super().__init__()
        self.token = nn.Embedding(tokens, width)
        self.position = nn.Embedding(positions, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = blocks
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        ids = x.round().long().clamp(PAD, self.token.num_embeddings - 1)
        present = (ids != PAD).to(self.token.weight.dtype)
        z = self.norm(self.token(ids) + self.position(torch.arange(ids.shape[-1], device=ids.device)))
        for block in self.blocks:
            z = block(z, present)
        shares = present / present.sum(-1, keepdim=True).clamp_min(1)
        logits: Tensor = self.classifier((shares[..., None] * z).sum(-2))
        return logits


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.mixed = nn.Linear(width, width)
        self.first_norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.second_norm = nn.LayerNorm(width)

    def forward(self, z: Tensor, present: Tensor) -> Tensor:
        query, key, value = (
            layer(z).unflatten(-1, (self.heads, -1)).transpose(-2, -3) for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.mT / query.shape[-1] ** 0.5
        hidden = (1 - present)[..., None, None, :] * -1e9
        attended = ((scores + hidden).softmax(-1) @ value).transpose(-2, -3).flatten(-2)
        z = self.first_norm(z + self.mixed(attended))
        after: Tensor = self.second_norm(z + self.outer(torch.nn.functional.gelu(self.inner(z))))
        return after
