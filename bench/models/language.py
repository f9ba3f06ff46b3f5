"""A small causal language model: it predicts each next token of a text."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.errors import NotApplicable
from bench.kinds.texts import PAD
from bench.models.transformer import HIDDEN, Encoder, Layout, TinyTransformer
from bench.training import declare, next_token_loss


@dataclass(frozen=True, kw_only=True)
class TinyLanguageModel(TinyTransformer):
    """The layers of `tiny-transformer` with a causal mask: a position sees itself and earlier positions. A linear layer
    predicts each next token, and the end (padding) after the last token. Clients train with the mean cross entropy over
    a text's tokens; labels of the data set are not used. Test accuracy is the mean share of next tokens predicted
    right; `perplexity` is recorded, too."""

    reference = "Radford et al. 2019 (GPT-2): causal mask, next-token loss; layout and sizes ours"
    takes = ("text",)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if self.width % self.heads:
            raise NotApplicable(f"width {self.width} is no multiple of {self.heads} heads")
        if classes < 2:
            raise NotApplicable("a data set has 2 classes or more")
        inner = 2 * self.width
        layout = Layout(tokens=self.tokens, width=self.width, heads=self.heads, inner=inner, blocks=self.blocks)
        module = _Causal(layout, positions=shape[0], outputs=classes)
        declare(module, loss=next_token_loss, batch_statistics=False)
        return module


class _Causal(Encoder):
    def __init__(self, layout: Layout, *, positions: int, outputs: int) -> None:
        super().__init__(layout, positions=positions, classes=layout.tokens)
        self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return for each text in `x` (text, position) the mean loss of its next tokens, the share of them predicted
        right, and zeros up to the data set's number of classes: (text, class)."""
        ids, present = self.read(x)
        later = torch.ones(ids.shape[-1], ids.shape[-1], device=ids.device).triu(1)
        scores = self.classifier(self.encode(ids, later.to(present.dtype) * HIDDEN))
        following = torch.cat([ids[..., 1:], torch.full_like(ids[..., :1], PAD)], -1)
        losses = -scores.log_softmax(-1).gather(-1, following[..., None])[..., 0]
        right = (scores.detach().argmax(-1) == following).to(present.dtype)
        shares = present / present.sum(-1, keepdim=True).clamp_min(1)
        both = torch.stack([(shares * losses).sum(-1), (shares * right).sum(-1)], -1)
        return nn.functional.pad(both, (0, self.outputs - 2))
