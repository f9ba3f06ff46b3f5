"""A small transformer encoder that classifies texts."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.errors import NotApplicable
from bench.kinds.texts import PAD
from bench.models.base import Model
from bench.parameters import parameter

HIDDEN = -1e9
"""Score of attention without weight."""


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
        inner = 2 * self.width
        layout = Layout(tokens=self.tokens, width=self.width, heads=self.heads, inner=inner, blocks=self.blocks)
        return Encoder(layout, positions=shape[0], classes=classes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes of an encoder."""

    tokens: int
    """Tokens of the vocabulary, padding included."""
    width: int
    """Values of a token's vector."""
    heads: int
    """Attention heads; they divide the width."""
    inner: int
    """Values between the two linear layers of a block's network per token."""
    blocks: int
    """Blocks of attention and a network per token."""
    eps: float = 1e-5
    """Term in LayerNorm's variance."""


class Encoder(nn.Module):
    """BERT's encoder of token ids (text, position), with a linear classifier on the mean over a text's tokens.

    - `layout`: sizes.
    - `positions`: token positions of a text.
    - `classes`: number of classes."""

    clients_together = True
    """Trainings differentiate all clients of a round in a pass: whole trainings are 1.6 times as fast."""

    def __init__(self, layout: Layout, *, positions: int, classes: int) -> None:
        super().__init__()
        width = layout.width
        self.token = nn.Embedding(layout.tokens, width)
        self.position = nn.Embedding(positions, width)
        self.norm = nn.LayerNorm(width, eps=layout.eps)
        self.blocks = nn.ModuleList(_Block(layout) for _ in range(layout.blocks))
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (text, class) of the token ids `x` (text, position)."""
        ids, present = self.read(x)
        z = self.encode(ids, (1 - present)[..., None, None, :] * HIDDEN)
        shares = present / present.sum(-1, keepdim=True).clamp_min(1)
        logits: Tensor = self.classifier((shares[..., None] * z).sum(-2))
        return logits

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the token ids in `x` (text, position), and 1 for tokens and 0 for padding, (text, position) each."""
        ids = x.round().long().clamp(PAD, self.token.num_embeddings - 1)
        return ids, (ids != PAD).to(self.token.weight.dtype)

    def encode(self, ids: Tensor, hidden: Tensor) -> Tensor:
        """Return the last block's vectors (text, position, value) of token `ids` (text, position). `hidden` is added to
        the scores of attention (text, head, position, seen position): large and negative where a position must not be
        seen."""
        z: Tensor = self.norm(self.token(ids) + self.position(torch.arange(ids.shape[-1], device=ids.device)))
        for block in self.blocks:
            z = block(z, hidden)
        return z


class _Block(nn.Module):
    def __init__(self, layout: Layout) -> None:
        super().__init__()
        width = layout.width
        self.heads = layout.heads
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.mixed = nn.Linear(width, width)
        self.first_norm = nn.LayerNorm(width, eps=layout.eps)
        self.inner, self.outer = nn.Linear(width, layout.inner), nn.Linear(layout.inner, width)
        self.second_norm = nn.LayerNorm(width, eps=layout.eps)

    def forward(self, z: Tensor, hidden: Tensor) -> Tensor:
        query, key, value = (
            layer(z).unflatten(-1, (self.heads, -1)).transpose(-2, -3) for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.mT / query.shape[-1] ** 0.5
        attended = ((scores + hidden).softmax(-1) @ value).transpose(-2, -3).flatten(-2)
        z = self.first_norm(z + self.mixed(attended))
        after: Tensor = self.second_norm(z + self.outer(torch.nn.functional.gelu(self.inner(z))))
        return after
