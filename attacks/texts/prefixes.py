"""Texts token by token, for models whose vectors depend on earlier tokens only."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_MOST = 4096  # beginnings of a length: more are no result of a test that excludes


def grown(shares: Callable[[Tensor], Tensor], lists: Sequence[Tensor], limit: float) -> list[tuple[int, ...]]:
    """Return all longest texts whose beginnings pass a test, token by token (after DAGER, Petrov et al. 2024, §4, for
    decoders): each beginning is continued by the candidates of the next position. A text ends where no continuation
    passes. Empty if more than 4096 beginnings of a length pass.

    - `shares`: function from beginnings (beginning, position) to a figure for the last token of each, (beginning,).
    - `lists`: candidates (token,) of each position.
    - `limit`: largest figure that passes."""
    ended: list[tuple[int, ...]] = []
    beginnings = torch.empty(1, 0, dtype=torch.long)
    for candidates in lists:
        longer = continued(beginnings, candidates)
        passed = shares(longer) <= limit
        goes_on = passed.unflatten(0, (len(beginnings), -1)).any(1)
        ended += map(tuple, beginnings[~goes_on].tolist())
        beginnings = longer[passed]
        if len(beginnings) > _MOST:
            return []
        if not len(beginnings):
            break
    return [text for text in (*ended, *map(tuple, beginnings.tolist())) if text]


def continued(beginnings: Tensor, candidates: Tensor) -> Tensor:
    """Return each of the `beginnings` (beginning, position) with each of the `candidates` (token,) behind it:
    (beginning·token, position + 1)."""
    rows = beginnings.repeat_interleave(len(candidates), 0)
    return torch.cat([rows, candidates.repeat(len(beginnings))[:, None]], 1)
