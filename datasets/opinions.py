"""Opinions: short English sentences of praise or complaint, made by a grammar here, no file needed."""

from bisect import bisect
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from bench import rng
from bench.datasets.base import Dataset, Raw, held_out
from bench.kinds.texts import PAD

POSITIONS = 20  # of every stored text: the longest sentence has 16 tokens
_SENTENCES = 8000
_CLASSES = ("complaint", "praise")

# Things with the words that complain of them and that praise them; frequent words first.
_THINGS = (
    (
        "food soup bread fish rice coffee pizza cake salad chicken pasta sauce steak cheese tea dessert breakfast",
        "cold salty dry burnt stale bland greasy bitter tasteless soggy",
        "fresh tasty delicious warm perfect excellent crisp rich juicy spicy",
    ),
    (
        "waiter manager driver cook guide teacher doctor nurse owner clerk mechanic barber",
        "rude slow careless impatient unhelpful arrogant late confused dishonest lazy",
        "friendly helpful kind patient polite honest careful quick cheerful attentive",
    ),
    (
        "room hotel bar garden kitchen museum station beach terrace hall lobby market park",
        "dirty noisy dark cramped crowded shabby cold smelly ugly gloomy",
        "clean quiet bright cosy spacious beautiful sunny charming tidy peaceful",
    ),
    (
        "film book play song story concert series novel album show ending speech",
        "boring dull silly predictable endless tedious confusing weak shallow awful",
        "funny clever moving gripping beautiful brilliant touching witty original wonderful",
    ),
    (
        "phone camera laptop printer lamp bike clock radio heater watch screen battery charger",
        "slow faulty useless fragile heavy noisy cheap unreliable broken awkward",
        "fast reliable solid simple light sturdy handy elegant precise affordable",
    ),
)
_WORDS = {
    "OFTEN": "very really quite so far-too always rather extremely truly surprisingly",
    "WHEN": "yesterday today this-morning last-week on-monday on-friday in-june this-year on-sunday last-night "
    "in-march at-noon in-october after-work before-christmas on-tuesday",
    "WHO": "my-wife my-brother my-friend my-mother our-neighbour my-son my-boss my-sister her-uncle his-aunt "
    "my-daughter a-colleague my-father our-cousin",
    "WHERE": "near-the-river in-the-old-town at-the-airport by-the-lake next-to-the-church behind-the-school "
    "in-the-village across-the-street downstairs on-the-corner at-the-harbour in-the-hills",
    "GOT": "had tried saw bought found chose picked rented booked ordered",
    "PLURAL": "children guests students tourists neighbours friends parents colleagues",
    "HATES": "hated disliked left returned regretted",
    "LIKES": "loved enjoyed liked praised recommended",
    "NO": "never-again what-a-shame no-thanks a-waste-of-money i-want-my-money-back i-expected-more",
    "YES": "thank-you what-a-joy well-done worth-every-penny i-will-come-back i-could-not-ask-for-more",
}
# THING and ADJ belong together; OTHER and MIXED are a second thing and its word of the other class.
_PATTERNS = (
    "the THING was OFTEN ADJ .",
    "the THING was ADJ and ADJ .",
    "we GOT the THING WHEN and it was ADJ .",
    "the THING WHERE was OFTEN ADJ .",
    "i FEELS the THING because it was ADJ .",
    "the OTHER was MIXED , but the THING was ADJ .",
    "WHO said the THING was ADJ and OFTEN ADJ .",
    "WHO FEELS the ADJ THING .",
    "CRY , the THING was OFTEN ADJ !",
    "what a ADJ THING , CRY !",
    "WHEN the PLURAL GOT a ADJ THING WHERE .",
    "although the OTHER was MIXED , WHO FEELS the ADJ THING .",
    "the PLURAL FEELS the THING WHERE , it was OFTEN ADJ .",
    "it was the most ADJ THING that we ever GOT .",
)
_LISTS = {name: tuple(words.replace("-", " ") for words in text.split()) for name, text in _WORDS.items()}
_PARTS = tuple(tuple(part.split() for part in thing) for thing in _THINGS)
_GRAMMAR = (*_LISTS.values(), *(part for thing in _PARTS for part in thing), _PATTERNS)
TOKENS = (
    "",  # padding
    *sorted({word for texts in _GRAMMAR for text in texts for word in text.split() if not word.isupper()}),
)
"""Tokens by id; id 0 is the padding."""


@dataclass(frozen=True, kw_only=True)
class Opinions(Dataset):
    """Opinions about food, people, places, stories and devices: 6000 training and 2000 test sentences of 6 to 16
    tokens, all different; the class is complaint or praise. A grammar with a fixed random seed makes the sentences.
    Words of a list have frequencies by Zipf's law."""

    reference = "ours"
    kind = "text"
    private = False

    def load(self, folders: tuple[Path, ...]) -> Raw:
        draws = _Draws()
        numbers = {token: number for number, token in enumerate(TOKENS)}
        sentences: dict[str, int] = {}
        while len(sentences) < _SENTENCES:
            label = len(sentences) % len(_CLASSES)
            sentences.setdefault(_sentence(draws, label), label)
        ids = np.full((len(sentences), POSITIONS), PAD, np.int16)
        for row, sentence in enumerate(sentences):
            tokens = [numbers[word] for word in sentence.split()]
            ids[row, : len(tokens)] = tokens
        return held_out("opinions", ids, np.array([*sentences.values()], np.int64), _CLASSES, tokens=TOKENS)


class _Draws:
    """Draws from lists by Zipf's law: the word of rank r has a probability proportional to 1 / r."""

    def __init__(self) -> None:
        self._random = rng.generator(0, "opinions")
        self._sums: dict[int, list[float]] = {}

    def __call__(self, texts: tuple[str, ...] | list[str]) -> str:
        sums = self._sums.setdefault(len(texts), list(accumulate(1 / rank for rank in range(1, len(texts) + 1))))
        return texts[bisect(sums, self._random.random() * sums[-1])]


def _sentence(draws: _Draws, label: int) -> str:
    """Draw a sentence of the class `label`, as tokens separated by spaces."""
    order = draws._random.permutation(len(_PARTS))
    (things, *words), (others, *other_words) = _PARTS[order[0]], _PARTS[order[1]]
    adjectives = list(words[label])
    parts = []
    for symbol in draws(_PATTERNS).split():
        match symbol:
            case "THING":
                parts.append(draws(things))
            case "OTHER":
                parts.append(draws(others))
            case "ADJ":
                parts.append(draws(adjectives))
                adjectives.remove(parts[-1])  # no word twice
            case "MIXED":
                parts.append(draws(other_words[1 - label]))
            case "FEELS":
                parts.append(draws(_LISTS[("HATES", "LIKES")[label]]))
            case "CRY":
                parts.append(draws(_LISTS[("NO", "YES")[label]]))
            case _:
                parts.append(draws(_LISTS[symbol]) if symbol in _LISTS else symbol)
    return " ".join(parts)
