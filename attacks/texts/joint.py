"""Search for many texts behind a mean of gradients, by changes of two texts at once."""

import numpy as np
import torch
from torch import Tensor

from bench.attacks.texts.fit import Fit
from bench.attacks.texts.moves import changed, shifted, shorter, swapped
from bench.attacks.texts.search import exchanged, likely
from bench.attacks.texts.sketches import Entry, Sketches
from bench.kinds.texts import PAD

_EXACT = 1e-9  # of the reading's squared length: no better texts exist
_LESS = 1e-6  # share by which a change lowers the distance at least: above rounding
_SWEEPS = 3  # over the texts at a start
_MOVES = 64  # exchanges of a token in a text, by first order the best
_NEXT = 8  # continuations of a text
_WIDER = 4  # times as many, before a search ends
_PAIRS = 600  # changes compared in pairs, alone the best


class Joint:
    """Search for many texts and labels whose mean gradient is nearest to a reading (observed update), with changes of
    two texts at once. Short vectors stand for gradients (`Sketches`); the distance is quadratic in these vectors, so
    pairs of changes are compared without a new gradient."""

    def __init__(self, fit: Fit, sketches: Sketches, *, labels_known: bool) -> None:
        """`fit` has the model and the labels at the start; with `labels_known`, no label changes."""
        self._fit, self._sketches, self._known = fit, sketches, labels_known
        self._labels = fit.targets.argmax(1).tolist()
        self._zero = float(sketches.observed.square().sum())
        self._scale = 1.0
        if sketches.clipped:
            self._scale = float(sketches.observed.norm() / sketches.mean_lengths().median())
        self.exact = _EXACT
        """Distance below which no better texts exist, as a share of the reading's squared length."""
        rows = fit.observed.get(f"{fit.embedding}.weight")
        filled = None if rows is None else rows[0].flatten(1).any(1).cpu()
        self._absent = None if filled is None or not filled.any() else ~filled

    def improve(
        self, random: np.random.Generator, most: int, before: list[Entry] | None
    ) -> tuple[float, list[Entry], int]:
        """Run a search from a start until no change lowers the distance, with at most `most` steps. Return the distance
        as a share of the reading's squared length, the labelled texts, and the number of steps.

        - `random`: draws the start.
        - `before`: None starts from public texts; otherwise from these labelled texts, with half of them replaced by
          random public texts."""
        state = self._start(random) if before is None else self._drawn(random, before)
        loss, wide, steps = self._loss(state), False, 0
        while loss > _EXACT * self._zero and steps < most:
            steps += 1
            better, nearer = self._step(state, loss, wide)
            if nearer < loss * (1 - _LESS):
                state, loss, wide = better, nearer, False
                self._sketches.forget(state)
            elif wide:
                break
            else:
                wide = True
        return loss / self._zero, state, steps

    def _loss(self, state: list[Entry]) -> float:
        mean, observed = self._sketches(state).mean(0), self._sketches.observed
        if self._sketches.clipped and (fitted := float(mean @ observed)) > 0:
            self._scale = fitted / float(mean.square().sum())
        return float((self._scale * mean - observed).square().sum())

    def _shares(self, entries: list[Entry]) -> Tensor:
        """Return what each entry adds to the reading if it is in the batch, (entry, value)."""
        return self._scale * self._sketches(entries) / len(self._labels)

    def _choices(self, example: int) -> list[Entry]:
        public = self._sketches.public
        return [entry for entry in public if entry[0] == self._labels[example]] if self._known else public

    def _start(self, random: np.random.Generator) -> list[Entry]:
        choices = [self._choices(example) for example in range(len(self._labels))]
        state = [each[int(random.integers(len(each)))] for each in choices]
        for _ in range(_SWEEPS):
            for example, each in enumerate(choices):
                vectors, own = self._shares(each), self._shares(state)
                missing = self._sketches.observed - own.sum(0) + own[example]
                state[example] = each[int((vectors.square().sum(1) - 2 * vectors @ missing).argmin())]
            self._loss(state)  # fits an unknown scale
        return state

    def _drawn(self, random: np.random.Generator, before: list[Entry]) -> list[Entry]:
        state = list(before)
        for example in random.permutation(len(state))[: (len(state) + 1) // 2].tolist():
            choices = [entry for entry in self._sketches.public if entry[0] == state[example][0]]
            state[example] = choices[int(random.integers(len(choices)))]
        return state

    def _step(self, state: list[Entry], loss: float, wide: bool) -> tuple[list[Entry], float]:
        """Change two texts, then further texts, each as the distance becomes lowest."""
        moves = self._moves(state, wide)
        own = torch.tensor([example for example, _ in moves])
        now = self._shares(state)
        steps = self._shares([entry for _, entry in moves]) - now[own]
        gap = now.sum(0) - self._sketches.observed
        alone = loss + 2 * steps @ gap + steps.square().sum(1)
        best = alone.argsort()[:_PAIRS]
        pairs = alone[best][:, None] + alone[best] - loss + 2 * steps[best] @ steps[best].mT
        pairs[own[best][:, None] == own[best]] = torch.inf
        if float(pairs.min()) < float(alone.min()):
            chosen = [int(best[n]) for n in divmod(int(pairs.argmin()), len(best))]
        else:
            chosen = [int(alone.argmin())]
        lowest, total = float(min(pairs.min(), alone.min())), steps[chosen].sum(0)
        while len(chosen) < len(state):
            losses = lowest + alone - loss + 2 * steps @ total
            losses[(own[:, None] == own[chosen]).any(1)] = torch.inf
            at = int(losses.argmin())
            if float(losses[at]) >= lowest * (1 - _LESS):
                break
            lowest, total = float(losses[at]), total + steps[at]
            chosen.append(at)
        better = list(state)
        for at in chosen:
            example, entry = moves[at]
            better[example] = entry
        return better, self._loss(better)

    def _moves(self, state: list[Entry], wide: bool) -> list[tuple[int, Entry]]:
        """Return changed texts, each with its example's number."""
        factor = _WIDER if wide else 1
        texts = torch.tensor([text for _, text in state])
        fit = self._fit.with_labels(torch.tensor([label for label, _ in state]))
        known = fit.state(texts)
        promise, rows = fit.promise(known), fit.wanted(known).get(f"{fit.embedding}.weight")
        expected = likely(fit.language, texts)
        if self._absent is not None:
            promise, expected = (scores.masked_fill(self._absent, -torch.inf) for scores in (promise, expected))
        moves: dict[tuple[int, Entry], None] = {}
        for example, (label, text) in enumerate(state):
            one = texts[example : example + 1]
            made = [exchanged(one, promise[example : example + 1], _MOVES * factor), shorter(one)]
            made.append(self._longer(one, rows, _NEXT * factor))
            if wide:
                made += [exchanged(one, expected[example : example + 1], _MOVES), shifted(one), swapped(one)]
            moves |= {(example, (label, tuple(each))): None for each in torch.cat(made)[:, 0].tolist()}
            if not self._known:
                moves |= {(example, (other, text)): None for other in range(self._sketches.classes) if other != label}
            if wide:
                moves |= {(example, entry): None for entry in self._choices(example)}
        return [move for move in moves if move[1] != state[move[0]]]

    def _longer(self, text: Tensor, rows: Tensor | None, most: int) -> Tensor:
        length = int((text != PAD).sum())
        if length == text.shape[1]:
            return text[None][:0]
        scores = [self._fit.language.following(text[0, length - 1])] + (
            [] if rows is None else [rows.norm(dim=1).cpu()]
        )
        if self._absent is not None:
            scores = [score.masked_fill(self._absent, -torch.inf) for score in scores]
        tokens = {token for score in scores for token in score.topk(min(most, len(score))).indices.tolist()}
        new = [(0, text[0].clone()) for _ in tokens - {PAD}]
        for (_, made), token in zip(new, sorted(tokens - {PAD}), strict=True):
            made[length] = token
        return changed(text, new)
