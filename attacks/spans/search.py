"""Search for whole texts whose vectors lie in a row space, by exchanged tokens."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from bench.attacks.spans.candidates import candidates
from bench.attacks.spans.layers import CHUNK
from bench.attacks.spans.outside import EXACT
from bench.attacks.spans.positions import lengths
from bench.attacks.spans.remainder import Remainder
from bench.attacks.spans.starts import Choices
from bench.attacks.spans.whole import Texts, WholeTexts
from bench.attacks.texts.embedding import vectors
from bench.attacks.texts.language import Language
from bench.kinds.texts import PAD

_BETTER = 1e-7  # of the loss: rounding
_CLOSE = 4  # changed texts compared again in double precision, in single precision the nearest
_MOVES = 32  # exchanges of a token tested exactly, by the derivative the best
_WIDER = 4  # times as many, before a start is given up
_KICKS = 12  # of a text without a lower loss, before a start is given up
_LEAST = 0.01  # of the mean share outside, in a position: bounds the weights of positions


class Search:
    """Search for texts whose vectors lie in the row space for whole texts."""

    def __init__(
        self, whole: WholeTexts, choices: Choices, language: Language | None = None, *, kicks: bool = False
    ) -> None:
        """`whole` tests texts, `choices` are the candidates, and `language` draws starts; None: no start is drawn by
        a language model. With `kicks`, random changes follow local minima in half of the starts, and only these
        changes make a text shorter: beginnings of few tokens are near to any row space."""
        self.whole = whole
        """The test for whole texts."""
        self.choices = choices
        """The candidates."""
        self._language = language
        self._kicks = _KICKS if kicks else 0
        self._rough = whole.single_precision()
        self._weights = torch.ones(whole.net.positions, dtype=torch.float64)
        if self.possible:
            self._weights = self._weights_of(torch.full((whole.net.positions,), PAD))

    @classmethod
    def of(cls, left: Remainder, language: Language | None) -> "Search":
        """Prepare a search for the unknown texts in a reading. Known texts still in the rest extend its row space.

        - `left`: the reading.
        - `language`: a language model for starts; None: no start is drawn by a language model."""
        whole = WholeTexts.of(left)
        allowed, some = candidates(left, whole.space)
        kicks = whole.space.exact and some  # otherwise, a text's loss says little
        choices = Choices.of(allowed, lengths(left, allowed) if some else None)
        return cls(whole.with_known(left.kept) if left.kept else whole, choices, language, kicks=kicks)

    @property
    def possible(self) -> bool:
        """Whether any token passed the tests at the first position."""
        return self.choices.longest > 0

    def losses(self, texts: Iterable[tuple[int, ...]]) -> Texts:
        """Return a map from `texts` (token ids) to losses."""
        keys = list(texts)
        losses: list[float] = []
        with torch.no_grad():
            for start in range(0, len(keys), CHUNK):
                losses += self._loss(torch.tensor(keys[start : start + CHUNK])).tolist()
        return dict(zip(keys, losses, strict=True))

    def improve(self, draws: list[np.random.Generator], known: set[tuple[int, ...]]) -> Texts:
        """Search for texts with a low loss: from a random text, exchange tokens until no exchange lowers the loss.
        If no text is certain, the second half of the starts has kicks: random changes of several tokens or of the
        length leave local minima. Return a map from the best text of each start (token ids) to its loss.

        - `draws`: a random generator for each start.
        - `known`: texts from earlier searches; random texts prefer tokens outside these texts."""
        ended = self._climb(draws[::2] if self._kicks else draws, known, 0)
        if self._kicks and min(ended.values()) > EXACT:
            ended |= self._climb(draws[1::2], known, self._kicks)
        return ended

    def _climb(self, draws: list[np.random.Generator], known: set[tuple[int, ...]], kicks: int) -> Texts:
        climbs = [_Climb(self.choices.start(random, known, self._language), random, kicks) for random in draws]
        self._measure(climbs)
        active = climbs
        while active:
            scores = self._promising(active)
            moves = [self._moves(climb, score) for climb, score in zip(active, scores, strict=True)]
            stuck = [
                climb
                for climb, (text, loss) in zip(active, self._nearest(moves), strict=True)
                if climb.ends(text, float(loss))
            ]
            active = [climb for climb in active if climb not in stuck or climb.kicks_left > 0]
            kicked = [climb for climb in stuck if climb.kicks_left > 0]
            for climb in kicked:
                self._kick(climb)
            self._measure(kicked)
        return {tuple(climb.best.tolist()): climb.least for climb in climbs}

    def _measure(self, climbs: list["_Climb"]) -> None:
        if climbs:
            with torch.no_grad():
                losses = self._loss(torch.stack([climb.text for climb in climbs]))
            for climb, loss in zip(climbs, losses.tolist(), strict=True):
                climb.loss = loss

    def _kick(self, climb: "_Climb") -> None:
        with torch.no_grad():
            shares = self.whole.squares(climb.best[None])[0]
        climb.text = self.choices.kicked(climb.best, shares, climb.random)
        climb.kicks_left -= 1

    def _loss(self, texts: Tensor) -> Tensor:
        return self.whole.loss(texts, self._weights)

    def _weights_of(self, empty: Tensor) -> Tensor:
        """Return a weight for each position, (position,): random candidates then have equal losses on average. Without
        weights, a text of only a first token that hardly changes between texts (such as [CLS]) is nearest."""
        texts = self.choices.completed(empty, 0, np.random.default_rng(0))
        with torch.no_grad():
            parts = [self.whole.squares(part) for part in texts.split(CHUNK)]
        total = torch.cat([torch.nn.functional.pad(part, (0, texts.shape[1] - part.shape[1])) for part in parts]).sum(0)
        mean = total / (texts != PAD).sum(0).clamp_min(1)
        overall = mean[: self.choices.longest].mean()
        return overall / (mean + _LEAST * overall) if float(overall) > 0 else torch.ones_like(mean)

    def _nearest(self, moves: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return the text with the lowest loss in each of `moves` (text, position), and its loss. Losses in single
        precision select the texts whose losses are computed in double precision."""
        with torch.no_grad():
            texts = torch.cat(moves)
            order = (texts != PAD).sum(1).argsort()  # texts of equal length in a pass
            rough = torch.cat([self._rough.loss(texts[part], self._weights) for part in order.split(CHUNK)])[
                order.argsort()
            ]
            each = zip(moves, rough.split([len(move) for move in moves]), strict=True)
            close = [move[loss.topk(min(_CLOSE, len(loss)), largest=False).indices] for move, loss in each]
            losses = self._loss(torch.cat(close)).split([len(move) for move in close])
        best = [int(loss.argmin()) for loss in losses]
        return [(move[n], loss[n]) for move, loss, n in zip(close, losses, best, strict=True)]

    def _promising(self, climbs: list["_Climb"]) -> Tensor:
        """Return how much each token exchange lowers the loss to first order, (climb, position, token): with likely
        candidates, and before a start is given up with all."""
        net, texts = self.whole.net, torch.stack([climb.text for climb in climbs])
        with torch.enable_grad(), vectors(net.model, net.embedding) as leaves:
            slopes = torch.autograd.grad(self._loss(texts).sum(), leaves[0])[0]
        slopes = torch.nn.functional.pad(slopes, (0, 0, 0, texts.shape[1] - slopes.shape[1]))
        drop = (slopes * net.table[texts]).sum(-1, keepdim=True) - slopes @ net.table.mT
        choices = [self.choices.allowed if climb.wide else self.choices.likely for climb in climbs]
        other = torch.stack(choices).mT & (texts != PAD)[..., None]
        return drop.masked_fill(~other, -torch.inf).scatter(2, texts[..., None], -torch.inf)

    def _moves(self, climb: "_Climb", score: Tensor) -> Tensor:
        """Return texts near the text of `climb`, (neighbour, position): the most promising exchanges, some
        continuations, and without kicks all beginnings."""
        text, most, tokens = climb.text, _MOVES * (_WIDER if climb.wide else 1), score.shape[1]
        best = score.flatten().topk(min(most, score.numel()))
        chosen = best.indices[best.values > -torch.inf]
        exchanged = text.repeat(len(chosen), 1)
        exchanged[torch.arange(len(chosen)), chosen // tokens] = chosen % tokens
        length = int((text != PAD).sum())
        moves = [text[None], exchanged]
        if not climb.kicks:
            moves.append(text.repeat(length - 1, 1) * (torch.arange(len(text)) < torch.arange(1, length)[:, None]))
        if length < self.choices.longest and (climb.wide or not climb.kicks):
            following = torch.from_numpy(climb.random.permutation(self.choices.lists[length].numpy()))[: most // 2]
            longer = text.repeat(len(following), 1)
            longer[:, length] = following
            moves.append(longer)
        if climb.wide:
            moves.append(self.choices.completed(text, length, climb.random))
        return torch.cat(moves)


class _Climb:
    """A start on its way to a lower loss."""

    def __init__(self, text: Tensor, random: np.random.Generator, kicks: int) -> None:
        self.text, self.loss, self.random = text, np.inf, random
        self.best, self.least = text, np.inf  # over all kicks
        self.wide = False  # more exchanges are compared
        self.kicks = self.kicks_left = kicks

    def ends(self, text: Tensor, loss: float) -> bool:
        """Move to the best neighbour `text` with its `loss`, if the loss is lower; return whether no move is left."""
        better = loss < self.loss * (1 - _BETTER)
        if better:
            self.text, self.loss = text, loss
        exact, stuck = self.loss <= EXACT, not better and self.wide
        if exact or stuck:
            if self.loss < self.least * (1 - _BETTER):
                self.best, self.least, self.kicks_left = self.text, self.loss, self.kicks
            if exact:
                self.kicks_left = 0
        self.wide = not better and not stuck
        return exact or stuck
