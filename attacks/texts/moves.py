"""Changed texts for a search: tokens moved within a text and between texts."""

from collections.abc import Iterable

import torch
from torch import Tensor

from bench.kinds.texts import PAD


def changed(texts: Tensor, new: Iterable[tuple[int, Tensor]]) -> Tensor:
    """Apply changes to a batch of candidate texts, each to its own copy: return the batches (move, example, position).

    - `texts` (example, position): the batch.
    - `new`: the changes, each an example's number and its new text (position,)."""
    moves = []
    for example, text in new:
        moves.append(texts.clone())
        moves[-1][example] = text
    return torch.stack(moves) if moves else texts[None][:0]


def together(texts: Tensor, ranked: Tensor) -> Tensor:
    """Combine single changes of a batch without overlap, as larger changes for a search: the best two, three, …
    together. Return the batches (move, example, position).

    - `texts` (example, position): the unchanged batch.
    - `ranked` (move, example, position): batches with a single change, the best first."""
    joined, taken, several = texts, torch.zeros_like(texts, dtype=torch.bool), []
    for move in ranked:
        places = move != texts
        if bool((places & taken).any()):
            continue
        joined, taken = torch.where(places, move, joined), taken | places
        filled = (joined != PAD).long()
        if torch.equal(filled, filled.cumprod(-1)):  # no padding between tokens
            several.append(joined)
    return torch.stack(several[1:]) if len(several) > 1 else texts[None][:0]


def shorter(texts: Tensor) -> Tensor:
    """Propose shorter texts for a search: every beginning of each text in the batch `texts` (example, position). Return
    a batch for each proposal, with the other texts unchanged: (move, example, position)."""
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
    """Propose texts with a token removed, repeated, or moved to another position, for each token in the batch `texts`
    (example, position). Return a batch for each proposal, with the other texts unchanged: (move, example, position)."""
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
    """Propose texts with two tokens swapped, for each pair of positions in each text of the batch `texts` (example,
    position). Return a batch for each proposal, with the other texts unchanged: (move, example, position)."""
    made = []
    for example, text in enumerate(texts):
        for one, other in torch.combinations(torch.arange(int((text != PAD).sum()))).tolist():
            order = torch.arange(len(text))
            order[one], order[other] = other, one
            made.append((example, text[order]))
    return changed(texts, made)


def crossed(texts: Tensor) -> Tensor:
    """Propose exchanges between two texts of the batch `texts` (example, position): a single token at the same
    position, or all tokens from this position on. Return a batch for each proposal: (move, example, position)."""
    moves, places = [], torch.arange(texts.shape[1])
    for one, other in torch.combinations(torch.arange(len(texts))).tolist():
        least = int((texts[[one, other]] != PAD).sum(1).min())
        for place in range(least):
            for chosen in (places == place, places >= place):
                moves.append(texts.clone())
                moves[-1][one] = torch.where(chosen, texts[other], texts[one])
                moves[-1][other] = torch.where(chosen, texts[one], texts[other])
    return torch.stack(moves) if moves else texts[None][:0]
