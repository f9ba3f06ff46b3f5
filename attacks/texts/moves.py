"""Changed texts for a search: tokens moved within a text and between texts."""

from collections.abc import Iterable

import torch
from torch import Tensor

from bench.kinds.texts import PAD


def changed(texts: Tensor, new: Iterable[tuple[int, Tensor]]) -> Tensor:
    """Return a copy of `texts` (example, position) for each item in `new`, (move, example, position). An item is an
    example's number and its new text (position,)."""
    moves = []
    for example, text in new:
        moves.append(texts.clone())
        moves[-1][example] = text
    return torch.stack(moves) if moves else texts[None][:0]


def together(texts: Tensor, ranked: Tensor) -> Tensor:
    """Join the changes at different places in `texts` (example, position): the first two, three, … in `ranked` (move,
    example, position), as (move, example, position)."""
    joined, taken, found = texts, torch.zeros_like(texts, dtype=torch.bool), []
    for move in ranked:
        places = move != texts
        if bool((places & taken).any()):
            continue
        joined, taken = torch.where(places, move, joined), taken | places
        filled = (joined != PAD).long()
        if torch.equal(filled, filled.cumprod(-1)):  # no padding between tokens
            found.append(joined)
    return torch.stack(found[1:]) if len(found) > 1 else texts[None][:0]


def shorter(texts: Tensor) -> Tensor:
    """Return each text's beginnings, (move, example, position)."""
    places = torch.arange(texts.shape[1])
    return changed(
        texts,
        (
            (example, torch.where(places < length, text, PAD))
            for example, text in enumerate(texts)
            for length in range(1, int((text != PAD).sum()))
        ),
    )


def shifted(texts: Tensor) -> Tensor:
    """Remove each token, repeat each token, and move each token to all other places: (move, example, position)."""
    made = []
    for example, text in enumerate(texts):
        tokens = text[text != PAD].tolist()
        for place, token in enumerate(tokens):
            rest = tokens[:place] + tokens[place + 1 :]
            orders = [[*rest[:to], token, *rest[to:]] for to in range(len(tokens)) if to != place]
            orders += [rest] if rest else []
            orders += [[*tokens[:place], token, *tokens[place:]]] if len(tokens) < len(text) else []
            made += [(example, torch.tensor(order + [PAD] * (len(text) - len(order)))) for order in orders]
    return changed(texts, made)


def swapped(texts: Tensor) -> Tensor:
    """Swap each two tokens in a text: (move, example, position)."""
    made = []
    for example, text in enumerate(texts):
        for one, other in torch.combinations(torch.arange(int((text != PAD).sum()))).tolist():
            order = torch.arange(len(text))
            order[one], order[other] = other, one
            made.append((example, text[order]))
    return changed(texts, made)


def crossed(texts: Tensor) -> Tensor:
    """Exchange a token between two texts, or all tokens from a place on: (move, example, position)."""
    moves, places = [], torch.arange(texts.shape[1])
    for one, other in torch.combinations(torch.arange(len(texts))).tolist():
        least = int((texts[[one, other]] != PAD).sum(1).min())
        for place in range(least):
            for chosen in (places == place, places >= place):
                moves.append(texts.clone())
                moves[-1][one] = torch.where(chosen, texts[other], texts[one])
                moves[-1][other] = torch.where(chosen, texts[one], texts[other])
    return torch.stack(moves) if moves else texts[None][:0]
