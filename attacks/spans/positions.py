"""Tokens at positions, by the gradients of the token and the position embedding."""

import torch
from torch import Tensor

from bench.attacks.spans.remainder import Remainder

_EQUAL = 1e-5  # of a sum's length: rounding
_ROUNDS = ((100, 1.0), (30, 1.3))  # rounds, exponent of the weights: the second part leaves hardly any wrong pair,
_KEPT = 0.2  # and the lengths before keep the true pairs that it loses
_LEAST = 1e-6  # of the longest: keeps every pair in the next round


def lengths(left: Remainder, allowed: Tensor) -> Tensor | None:
    """Return how much of the gradients each token has at each position: (token, position), in the gradients' unit. A
    token's row in the token embedding's gradient is the sum over its positions of ∂loss/∂x, and a position's row in
    the position embedding's gradient is the sum over its tokens, for a model whose first vectors x are sums of both
    embeddings' rows. Of all ∂loss/∂x for the `allowed` pairs that give both gradients, those with a small sum of
    lengths are computed: few pairs are long, mostly the true ones (ours; reweighted least squares: Gorodnitsky and Rao
    1997).

    None without such gradients: frozen or tied embeddings, noise, dropped coordinates.

    - `left`: the reading.
    - `allowed` (token, position): the pairs to consider."""
    name = f"{left.net.embedding}.weight"
    places = _places(left, name)
    if places is None:
        return None
    tokens = allowed.any(1)
    parts = _parts(left.rest[name][tokens], places, allowed[tokens].double())
    return torch.zeros(allowed.shape, dtype=torch.float64).masked_scatter(tokens[:, None].expand_as(allowed), parts)


def _places(left: Remainder, name: str) -> Tensor | None:
    """Return the position embedding's gradient for a text's positions, (position, value): the matrix whose rows have
    the same sum as the rows of the token embedding's gradient, `name`. None without such a matrix."""
    table, positions = left.rest.get(name), left.net.positions
    if table is None or not (total := table.sum(0)).any():
        return None
    for other, value in left.rest.items():
        alike = value.ndim == 2 and len(value) >= positions and value.shape[1] == table.shape[1] and other != name
        if alike and float((value.sum(0) - total).norm()) <= _EQUAL * float(total.norm()):
            first = int(left.sent[other].any(1).nonzero()[0])  # some models leave rows in front
            rows = value[first : first + positions]
            return torch.cat([rows, rows.new_zeros(positions - len(rows), rows.shape[1])])
    return None


def _parts(tokens: Tensor, places: Tensor, allowed: Tensor) -> Tensor:
    """Return the lengths of vectors δ with Σ_position δ = `tokens` (token, value) and Σ_token δ = `places` (position,
    value), most of them short: (token, position). `allowed` (token, position) is 0 where δ is zero.

    With weights g, the least Σ ‖δ‖² / g has δ = g (u_token + v_position); u leaves the equations first. g = ‖δ‖ gives
    the least sum of lengths, and greater exponents fewer long vectors."""
    weights, kept = allowed, torch.zeros_like(allowed)
    for rounds, exponent in _ROUNDS:
        for _ in range(rounds):
            totals = weights.sum(1, keepdim=True)
            share = weights / totals
            products = torch.diag(weights.sum(0)) - weights.mT @ share
            v = torch.linalg.pinv(products, rtol=1e-12, hermitian=True) @ (places - share.mT @ tokens)
            u = tokens / totals - share @ v
            parts = weights * torch.cdist(u, -v, compute_mode="donot_use_mm_for_euclid_dist")
            weights = ((parts / parts.max()) ** exponent + _LEAST**exponent) * allowed
        kept = parts + _KEPT * kept
    return kept
