"""A language model from public texts: which token follows which."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.kinds.texts import PAD

_FOLLOWS, _OCCURS = 0.75, 0.2  # weights of token pairs and of single tokens; the rest is equal for all tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """Language model for the plausibility of a text: the probability of each token after the token before, from public
    texts. Padding stands for a text's beginning and end."""

    log: Tensor
    """(known before, known after): log probabilities. The last row and column stand for all tokens that occur in no
    public text, so that a vocabulary of 30 000 tokens needs little memory."""
    place: Tensor
    """(token,): each token's row and column in `log`."""

    @classmethod
    def of(cls, texts: Tensor, tokens: int) -> "Language":
        """Fit the language model to public `texts` (text, position): frequencies of token pairs, smoothed by the
        frequencies of single tokens. `tokens` is the vocabulary's size."""
        ids = texts.cpu().long().clamp(PAD, tokens - 1)
        ids = torch.nn.functional.pad(ids, (1, 1), value=PAD)
        known = ids.unique()
        place = torch.full((tokens,), len(known))
        place[known] = torch.arange(len(known))
        before, after = place[ids[:, :-1].flatten()], place[ids[:, 1:].flatten()]
        kept = (before != place[PAD]) | (after != place[PAD])
        pairs = torch.zeros(len(known) + 1, len(known) + 1, dtype=torch.float64)
        pairs.index_put_((before[kept], after[kept]), torch.ones(int(kept.sum()), dtype=torch.float64), accumulate=True)
        single = pairs.sum(0) / pairs.sum().clamp_min(1)
        follows = pairs / pairs.sum(1, keepdim=True).clamp_min(1)
        log = (_FOLLOWS * follows + _OCCURS * single + (1 - _FOLLOWS - _OCCURS) / tokens).log()
        return cls(log=log, place=place)

    def between(self, before: Tensor, after: Tensor) -> Tensor:
        """Return the log probability of each token in `after` behind the token in `before`, for token ids of equal
        shape: (...,)."""
        return self.log[self.place[before], self.place[after]]

    def following(self, before: Tensor) -> Tensor:
        """Return the log probability of every token behind each token id in `before` (...,): (..., token)."""
        return self.log[self.place[before]][..., self.place]

    def preceding(self, after: Tensor) -> Tensor:
        """Return the log probability of each token id in `after` (...,) behind every token: (..., token)."""
        return self.log.mT[self.place[after]][..., self.place]

    def log_probability(self, texts: Tensor) -> Tensor:
        """Return each text's log probability, for `texts` (..., position): (...,)."""
        ids = torch.nn.functional.pad(texts.long(), (1, 1), value=PAD)
        before, after = ids[..., :-1], ids[..., 1:]
        return (self.between(before, after) * ((before != PAD) | (after != PAD))).sum(-1)
