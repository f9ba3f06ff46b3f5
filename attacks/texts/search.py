"""Search for the texts behind a reading, by exchanged tokens."""

import numpy as np
import torch
from torch import Tensor

from bench.attacks.texts.fit import Fit, State
from bench.attacks.texts.language import Language
from bench.attacks.texts.moves import changed, crossed, shifted, shorter, swapped, together
from bench.kinds.texts import PAD

_EXACT = 1e-9  # of a zero gradient's distance: no better texts exist
_PUBLIC = 64  # public texts compared as starts
_EACH = 4  # tokens of a place
_MOVES = 32  # exchanges of a token compared exactly, by first order the best
_WIDER = 4  # times as many, before a search ends
_NEXT = 8  # continuations of a text


class Search:
    """Search for the texts behind a reading (observed update), with fixed labels: start at public texts and exchange,
    append, remove or move tokens as long as the objective `Fit` falls."""

    def __init__(self, fit: Fit, zero: float) -> None:
        """`fit` computes distances; `zero` is a zero gradient's distance."""
        self._fit = fit
        self.exact = _EXACT * zero
        """Distance below which no better texts exist."""
        self._public = fit.mismatch.reading.public_inputs.cpu().round().long().clamp(PAD, len(fit.table) - 1)

    def improve(self, random: np.random.Generator, most: int, texts: Tensor | None = None) -> tuple[float, Tensor, int]:
        """Run the search from a start until no change lowers the objective, in at most `most` steps. Return the
        objective's value, the texts (example, position) and the number of steps.

        - `random`: draws the public texts at the start.
        - `texts`: starts from these texts (example, position) instead."""
        if texts is None:
            state, loss = self._start(random)
        else:
            state = self._fit.state(texts)
            loss = float(self._fit.losses(state, texts[None]))
        wide, steps = False, 0
        while loss > self.exact and steps < most:
            steps += 1
            moves = self._moves(state, wide)
            losses = self._fit.losses(state, moves)
            better = (losses < loss).nonzero()[:, 0]
            if not len(better):
                if wide:
                    break
                wide = True
                continue
            joint = together(state[0], moves[better[losses[better].argsort()]])
            if len(joint):
                moves, losses = torch.cat([moves, joint]), torch.cat([losses, self._fit.losses(state, joint)])
            loss, state, wide = float(losses.min()), self._moved(state, moves[losses.argmin()]), False
        return loss, state[0], steps

    @property
    def labels(self) -> Tensor:
        """Class numbers of the texts in this search, (example,)."""
        return self._fit.targets.argmax(1).cpu()

    def first(self, random: np.random.Generator) -> float:
        """Return the objective's value at a start, for the best public texts of a random selection; this value compares
        lists of labels before the search. `random` draws the selection."""
        return self._start(random)[1]

    def _moved(self, state: State, texts: Tensor) -> State:
        other = (texts != state[0]).any(-1).nonzero()[:, 0]
        if not len(other):
            return state
        new = self._fit.gradients(texts[other], other)
        return texts, {name: value.index_copy(0, other.to(value.device), new[name]) for name, value in state[1].items()}

    def _start(self, random: np.random.Generator) -> tuple[State, float]:
        """Choose public texts, example by example, each the best next to the others."""
        drawn = self._public[torch.from_numpy(random.permutation(len(self._public))[:_PUBLIC].copy())]
        state = self._fit.state(drawn[torch.arange(len(self._fit.targets)) % len(drawn)])
        loss = float("inf")
        for example in range(len(self._fit.targets)):
            moves = changed(state[0], ((example, text) for text in drawn))
            losses = self._fit.losses(state, moves)
            loss, state = float(losses.min()), self._moved(state, moves[losses.argmin()])
        return state, loss

    def _moves(self, state: State, wide: bool) -> Tensor:
        """Return changed batches (move, example, position): the most promising exchanges, shorter and longer texts; if
        `wide`, more exchanges, and tokens moved within and between texts."""
        texts, factor = state[0], _WIDER if wide else 1
        moves = [
            exchanged(texts, self._fit.promise(state), _MOVES * factor),
            shorter(texts),
            self._longer(state, _NEXT * factor),
        ]
        if wide:
            moves += [self._probable(texts), shifted(texts), swapped(texts), crossed(texts)]
        return torch.cat(moves)

    def _probable(self, texts: Tensor) -> Tensor:
        """Exchange each token for the tokens expected by the language model."""
        return exchanged(texts, likely(self._fit.language, texts), texts.numel() * _EACH)

    def _longer(self, state: State, most: int) -> Tensor:
        """Append the language model's next tokens, and tokens with a row in the reading."""
        texts = state[0]
        rows = self._fit.wanted(state).get(f"{self._fit.embedding}.weight")
        made = []
        for example, text in enumerate(texts):
            length = int((text != PAD).sum())
            if length < len(text):
                scores = [self._fit.language.following(text[length - 1])] + ([] if rows is None else [rows.norm(dim=1)])
                tokens = {token for score in scores for token in score.topk(min(most, len(score))).indices.tolist()}
                for token in sorted(tokens - {PAD}):
                    made.append((example, text.clone()))
                    made[-1][1][length] = token
        return changed(texts, made)


def likely(language: Language, texts: Tensor) -> Tensor:
    """Score each token at each position by the language model, given its neighbours: log probability (example,
    position, token), up to a constant for each position. The scores select plausible exchanges.

    - `language`: the language model.
    - `texts` (example, position): the batch of texts."""
    ids = torch.nn.functional.pad(texts, (1, 1), value=PAD)
    return language.following(ids[:, :-2]) + language.preceding(ids[:, 2:])


def exchanged(texts: Tensor, scores: Tensor, most: int) -> Tensor:
    """Propose exchanges of a single token in a batch, those with the highest scores. Return a batch for each proposal,
    (move, example, position): at most `most`, with at most 4 for each position.

    - `texts` (example, position): the batch.
    - `scores` (example, position, token): score of each exchange."""
    scores = scores.masked_fill((texts == PAD)[..., None], -torch.inf).scatter(2, texts[..., None], -torch.inf)
    scores[..., PAD] = -torch.inf
    each = scores.topk(min(_EACH, scores.shape[2]), 2)
    best = each.values.flatten().topk(min(most, each.values.numel()))
    chosen = best.indices[best.values > -torch.inf]
    moves = texts.flatten().repeat(len(chosen), 1)
    moves[torch.arange(len(chosen)), chosen // each.values.shape[2]] = each.indices.flatten()[chosen]
    return moves.reshape(-1, *texts.shape)
