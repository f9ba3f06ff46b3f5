"""Texts token by token, for models whose vectors depend on earlier tokens only."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bench.attacks.spans.dependence import independent, most, redundant
from bench.attacks.spans.layers import CHUNK
from bench.attacks.spans.outside import EXACT, Outside
from bench.attacks.spans.whole import Texts, WholeTexts
from bench.kinds.texts import PAD

_MOST = 4096  # beginnings of a length: more are no result of a test that excludes
_DOUBT = 1e-4  # square of a vector's share outside: less may be rounding, so a text is continued by such a token


def longest(whole: WholeTexts, lists: Sequence[Tensor], known: set[tuple[int, ...]]) -> tuple[Texts, bool]:
    """Find the longest texts whose beginnings all lie in the row space, for a model whose vectors depend on earlier
    tokens only; the values are the tokens' mean squared shares outside. Without such a text, the row space is extended
    by beginnings in linear dependence with the row space. Return the texts, and whether the row space was
    extended. Without texts if noise fills the row space.

    - `whole`: the test for whole texts.
    - `lists`: candidates (token,) of each position.
    - `known`: texts (token ids) to leave out."""
    if whole.space.exact and whole.space.null.shape[1]:
        for extended in (False, True):
            outside = _extended(whole, lists) if extended else whole.space
            found = _inside(whole, outside, lists, known)
            if new := {text: loss for text, loss in found.items() if extended or loss <= EXACT}:
                return new, extended
    return {}, True


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


def _inside(whole: WholeTexts, outside: Outside, lists: Sequence[Tensor], known: set[tuple[int, ...]]) -> Texts:
    """Return the longest texts, except `known`, by the directions `outside`."""
    texts = grown(lambda some: outside.squares(_lasts(whole, some)), lists, _DOUBT)
    padded = (text + (PAD,) * (whole.net.positions - len(text)) for text in texts)
    new = [text for text in padded if text not in known]
    return {text: float(outside.squares(whole.vectors(torch.tensor([text]))).mean()) for text in new}


def _lasts(whole: WholeTexts, beginnings: Tensor) -> Tensor:
    """Return each beginning's last vector, for beginnings (beginning, position): (beginning, value + 1)."""
    net, length = whole.net, beginnings.shape[1]
    texts = torch.nn.functional.pad(beginnings, (0, net.positions - length), value=PAD).double()
    with torch.no_grad():
        return torch.cat([net.inputs(whole.space.path, part)[:, length - 1] for part in texts.split(CHUNK)])


def _extended(whole: WholeTexts, lists: Sequence[Tensor]) -> Outside:
    """Return the directions outside the row space extended by beginnings' vectors. The nearest beginnings with each
    length are compared; beginnings in the span of the row space and the others are right (see `dependent`)."""
    space, limit = whole.space, most(whole.space)
    beginnings, pool = torch.empty(1, 0, dtype=torch.long), list[Tensor]()
    for candidates in lists:
        beginnings = continued(beginnings, candidates)
        vectors = _lasts(whole, beginnings)
        near = space.squares(vectors).topk(min(max(limit // 2, 1), len(vectors)), largest=False).indices
        beginnings = beginnings[near]
        pool.append(vectors[near])
    vectors = torch.cat(pool)
    vectors = vectors[space.squares(vectors).topk(min(max(limit, 0), len(vectors)), largest=False).indices]
    parts = space.parts(vectors)
    if len(parts) < 2 or independent(parts):
        return space
    return space.with_known(vectors[redundant(parts)])
