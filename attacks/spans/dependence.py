"""Right texts by their vectors' linear dependence, behind a row space with too few directions for all texts."""

import torch
from torch import Tensor

from bench.attacks.spans.outside import EXACT, Outside, complement
from bench.attacks.spans.whole import Texts, WholeTexts
from bench.kinds.texts import PAD

_SPARE = 8  # directions left outside the row space and the vectors of found texts: no text lies in all directions
_RIDGE = 1e-13  # square of a length: keeps products of dependent vectors invertible


def most(space: Outside) -> int:
    """Return the largest number of vectors to compare for linear dependence: 8 below the number of directions outside
    `space`. 0 or less with too few directions."""
    return space.null.shape[1] - _SPARE


def dependent(whole: WholeTexts, ranked: list[tuple[int, ...]]) -> Texts:
    """Find right texts by their linear dependence, although the row space has too few directions for
    all tokens: each vector of such a text lies in the span of the row space and the other found texts' vectors.
    Wrong vectors are independent, as long as the span has fewer directions than a vector has values. Right vectors
    become dependent if more are found than the row space lacks (subspace augmentation, Lee et al. 2012).
    The values are the tokens' mean squared shares outside this span.

    - `whole`: the test for whole texts.
    - `ranked`: found texts (token ids), the most probable first; as many are compared as fit."""
    if not ranked:
        return {}
    space, texts = whole.space, torch.tensor(ranked)
    fits = int(((texts != PAD).sum(1).cumsum(0) <= most(space)).sum()) if space.exact else 0
    texts = texts[:fits]
    if fits < 2:
        return {}
    parts, owner = space.parts(whole.vectors(texts)), (texts != PAD).nonzero()[:, 0]
    if independent(parts):
        return {}
    each = [parts[owner == text] @ complement(parts[owner != text]) for text in range(fits)]
    shares = [float(outside.square().sum(1).mean()) for outside in each]
    return {text: share for text, share in zip(ranked, shares, strict=False) if share <= EXACT}


def independent(parts: Tensor) -> bool:
    """Return whether the rows in `parts` (vector, outside) are linearly independent. The rows are vectors' parts
    outside a row space."""
    return not complement(parts.mT).shape[1]


def redundant(parts: Tensor) -> Tensor:
    """Return which rows in `parts` (vector, outside) lie in the other rows' span: (vector,). The rows are
    vectors' parts outside a row space."""
    products = parts @ parts.mT + _RIDGE * torch.eye(len(parts), dtype=parts.dtype)
    shares: Tensor = 1 / torch.linalg.inv(products).diagonal()  # of each vector outside the others' span
    return shares <= EXACT
