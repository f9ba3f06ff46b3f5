"""Random texts from candidates, as starts for a search and as continuations."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bench.attacks.texts.language import Language
from bench.kinds.texts import PAD

_PLAUSIBLE = 0.5  # of the starts: texts drawn by a language model of public texts; the others are uniform
_OTHER_LENGTH = 0.5  # of the kicks: the text's length changes
_FURTHER = 4  # positions, by a kick
_RARE = 1e-300  # keeps chances positive
_UNLIKELY = 0.002  # of a position's largest chance: chance of a candidate without gradient there
_LIKELY = 0.02  # of a position's largest chance: less for most wrong candidates, more for nearly all true ones
_COMPLETIONS = 4  # of a text to each greater length, before a start is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Candidates for each position, to draw random texts."""

    allowed: Tensor
    """(token, position): whether a token is a candidate."""
    lists: tuple[Tensor, ...]
    """Candidates (token,) at each position, up to the first position without candidates."""
    chances: Tensor
    """(token, position): relative chance of each candidate at each position, 1 at most."""

    @classmethod
    def of(cls, allowed: Tensor, lengths: Tensor | None = None) -> "Choices":
        """List the candidates in `allowed` (token, position) by position. The chances are proportional to `lengths`
        (token, position) of gradients; None: all are equal."""
        longest = int(allowed.any(0).long().cumprod(0).sum())
        lists = tuple(column.nonzero()[:, 0] for column in allowed.mT[:longest])
        given = allowed.double() if lengths is None else lengths
        chances = (given + _UNLIKELY * given.max(0).values + _RARE) * allowed
        return cls(allowed=allowed, lists=lists, chances=chances / chances.max(0).values.clamp_min(_RARE))

    @property
    def likely(self) -> Tensor:
        """Whether a candidate's chance is 2 % at least: (token, position)."""
        return self.chances >= _LIKELY

    @property
    def longest(self) -> int:
        """Tokens in the longest possible text."""
        return len(self.lists)

    def start(
        self, random: np.random.Generator, known: set[tuple[int, ...]], language: Language | None = None
    ) -> Tensor:
        """Draw a text (position,): with random length and uniform over the candidates, or by the language model.

        - `random`: draws the text.
        - `known`: texts (token ids) from earlier searches; half of the uniform draws avoid their tokens.
        - `language`: draws half the texts; None draws none."""
        text = torch.full((self.allowed.shape[1],), PAD)
        if language is not None and random.random() < _PLAUSIBLE:
            return self._plausible(language, random)
        for position in range(int(random.integers(1, self.longest + 1))):
            fresh = [all(token not in other for other in known) for token in self.lists[position].tolist()]
            only = torch.tensor(fresh) if any(fresh) and random.random() < 0.5 else None
            text[position] = self._drawn(position, random, 1, only)[0]
        return text

    def kicked(self, text: Tensor, shares: Tensor, random: np.random.Generator) -> Tensor:
        """Change several tokens of a text at once, to leave a local minimum: (position,). Half of the changes redraw
        tokens at up to a third of the positions, mostly tokens far from the row space. The others cut the text or
        continue the text by random candidates, by up to four positions.

        - `text` (position,): the text.
        - `shares` (position,): share of each token's squared length outside the row space.
        - `random`: draws the change."""
        length, changed = int((text != PAD).sum()), text.clone()
        free = np.array([position for position in range(length) if len(self.lists[position]) > 1], dtype=int)
        if not len(free) or random.random() < _OTHER_LENGTH:
            end = int(random.integers(max(1, length - _FURTHER), min(self.longest, length + _FURTHER) + 1))
            changed[end:] = PAD
            at = np.arange(length, end)
        else:
            chance = shares[free].double().numpy() + float(shares[:length].mean()) / 10 + _RARE
            count = min(len(free), int(random.integers(2, max(3, length // 3 + 1))))
            at = random.choice(free, size=count, replace=False, p=chance / chance.sum())
        for position in at.tolist():
            changed[position] = self._drawn(position, random, 1)[0]
        return changed

    def _plausible(self, language: Language, random: np.random.Generator) -> Tensor:
        """Draw a text (position,) from candidates, each as probable as the `language` model expects the token after the
        token before."""
        text, before = torch.full((self.allowed.shape[1],), PAD), torch.tensor(PAD)
        for position in range(self.longest):
            choice = self.lists[position]
            chances = (language.between(before, choice).exp() * self.chances[choice, position]).numpy().cumsum()
            end = float(language.between(before, torch.tensor(PAD)).exp()) if position else 0.0
            drawn = int(np.searchsorted(chances, random.random() * (chances[-1] + end), side="right"))
            if drawn == len(choice):
                break
            text[position] = before = choice[drawn]
        return text

    def completed(self, text: Tensor, length: int, random: np.random.Generator) -> Tensor:
        """Continue a text by random candidates, to each greater length: (neighbour, position). A pretrained model's
        vectors may lie outside the row space until the text is complete.

        - `text` (position,): the text.
        - `length`: number of first tokens that stay.
        - `random`: draws the candidates."""
        ends = torch.arange(length, self.longest).repeat_interleave(_COMPLETIONS)
        longer = text.repeat(len(ends), 1)
        for position in range(length, self.longest):
            longer[:, position] = torch.where(ends >= position, self._drawn(position, random, len(ends)), PAD)
        return longer

    def _drawn(self, position: int, random: np.random.Generator, count: int, only: Tensor | None = None) -> Tensor:
        """Draw `count` candidates for a position, (token,), of those in `only` (token,) if given."""
        choice = self.lists[position]
        chances = self.chances[choice, position]
        ends = (chances if only is None else chances * only).cumsum(0).numpy()
        at = np.searchsorted(ends, random.random(count) * ends[-1], side="right").clip(max=len(ends) - 1)
        return choice[torch.from_numpy(at)]
