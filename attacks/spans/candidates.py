"""Candidates: the tokens at each position whose vectors lie in the first layers' row spaces."""

import torch
from torch import Tensor

from bench.attacks.spans.layers import CHUNK, LayeredModel
from bench.attacks.spans.outside import Outside
from bench.attacks.spans.remainder import Remainder
from bench.kinds.texts import PAD

_MEMBER = 1e-4  # share of a vector's length outside the row space: rounding, if the vector belongs to it
_FIRST = 16  # directions outside the row space, for the first test of a token


def candidates(left: Remainder, whole: Outside) -> tuple[Tensor, bool]:
    """Return which tokens may stand at which positions, (token, position), by the first layers' row spaces, and whether
    these spaces hold any token. Under noise, and if the row spaces hold no token, each position has its nearest tokens.

    - `left`: the reading.
    - `whole`: the row space for whole texts. If only later layers are trained, texts with a repeated token tell the
      nearest tokens."""
    net, count = left.net, left.count - len(left.gone)
    table = left.sent.get(f"{net.embedding}.weight")
    rows = torch.ones(net.tokens, dtype=torch.bool) if table is None else table.flatten(1).any(1)
    allowed = rows.clone() if rows.any() else torch.ones_like(rows)
    allowed[PAD] = False
    ids = allowed.nonzero()[:, 0].double()
    result = torch.zeros(net.tokens, net.positions, dtype=torch.bool)
    inside, exact = torch.ones(len(ids), net.positions, dtype=torch.bool), False
    # the layers on a token's whole vector come first: LoRA's B has few inputs, and tests the tokens that are left
    spaces = [Outside.of(left, paths) for paths in left.seen(net.single)] or [whole]
    last = left.last  # a copy of the model, for all spaces
    for space in spaces:
        if space.exact and (members := _members(left, last, space, ids, inside))[:, 0].any():
            inside, exact = members, True
    result[allowed] = inside if exact else _nearest(net, spaces[0], ids, 2 * count)
    return result, exact


def _members(left: Remainder, last: LayeredModel | None, space: Outside, ids: Tensor, inside: Tensor) -> Tensor:
    """Return which tokens' vectors lie in the row space of `space`, (token, position). Tokens `ids` (token,) are tested
    at the positions in `inside` (token, position): first in some directions outside the row space, so that a large
    vocabulary takes seconds, then in all directions. `last` is `left.last`, and gives later steps' tolerance."""
    net, some, members = left.net, space.some(_FIRST), torch.zeros_like(inside)
    for part in inside.any(1).nonzero()[:, 0].split(CHUNK):
        texts = ids[part, None].expand(-1, net.positions)
        with torch.no_grad():
            inputs = net.inputs(space.path, texts)
            tolerance = torch.full(texts.shape, _MEMBER, dtype=torch.float64)
            if last is not None:  # vectors move in later steps, by up to 1 - 1/L of their way to the last weights
                way = torch.linalg.vector_norm(last.inputs(space.path, texts) - inputs, dim=-1)
                tolerance += (1 - 1 / left.later) * way / space.lengths(inputs).sqrt()
            near = inside[part] & (some.squares(inputs) <= tolerance.square())
            near[near.clone()] = space.squares(inputs[near]) <= tolerance[near].square()
        members[part] = near
    return members


def _nearest(net: LayeredModel, space: Outside, ids: Tensor, count: int) -> Tensor:
    """Return for each position the `count` tokens in `ids` (token,) nearest to the row space of `space`: (token,
    position)."""
    with torch.no_grad():
        texts = (part[:, None].expand(-1, net.positions) for part in ids.split(CHUNK))
        far = torch.cat([space.squares(net.inputs(space.path, each)) for each in texts])
    closest = far.topk(min(count, len(far)), 0, largest=False).indices
    return torch.zeros(far.shape, dtype=torch.bool).scatter_(0, closest, True)
