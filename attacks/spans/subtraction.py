"""Subtraction of known texts' gradients from a reading."""

from collections.abc import Iterable
from dataclasses import replace

import torch

from bench.attacks.spans.outside import Outside, complement
from bench.attacks.spans.remainder import Remainder
from bench.attacks.spans.whole import Texts, WholeTexts

_GONE = 1e-6  # mean square of a text's shares outside, at least, after its gradient was subtracted


def without(left: Remainder, whole: WholeTexts, certain: Iterable[tuple[int, ...]]) -> Remainder:
    """Subtract the gradients for `certain` texts (token ids). A label and the weight 1 / examples are right if the
    text's vectors leave the span of the row space and the other texts' vectors. Return the rest.

    - `left`: the reading.
    - `whole`: the test for whole texts in this reading."""
    rest, gone, kept = dict(left.rest), set(left.gone), []
    waiting = [text for text in certain if text not in gone]
    for text in waiting:
        others = [other for other in waiting if other not in gone and other != text]
        tries = []
        for label in range(left.classes):
            gradient = left.net.gradient(text, label, left.classes)
            less = {name: value - gradient[name] / left.count for name, value in rest.items()}
            outside = Outside.of(replace(left, rest=less), whole.space.paths)
            tries.append((_share(replace(whole, space=outside), text, others), label, less))
        share, _, less = max(tries, key=lambda each: each[0])
        if share > _GONE:
            rest = less
            gone.add(text)
        else:
            kept.append(text)
    return replace(left, rest=rest, gone=frozenset(gone), kept=tuple(kept))


def beyond(left: Remainder, whole: WholeTexts, certain: Texts) -> Remainder:
    """Subtract the gradients for the `certain` texts, the nearest to the row space first, local step by local step.
    Return the rest.

    - `left`: the reading.
    - `whole`: the test for whole texts in this reading."""
    while True:
        waiting = sorted(certain.keys() - left.gone, key=lambda text: certain[text])
        after = without(left, whole, waiting[: left.room])
        left = after.advanced()
        if left is after or not certain.keys() - left.gone:
            return left
        whole = WholeTexts.of(left)


def _share(whole: WholeTexts, text: tuple[int, ...], others: list[tuple[int, ...]]) -> float:
    """Return the mean share by which the squared lengths in `text` are outside the row space and outside the vectors in
    `others` (token ids)."""
    parts = whole.space.parts(whole.vectors(torch.tensor([text])))
    if others:
        parts = parts @ complement(whole.space.parts(whole.vectors(torch.tensor(others))))
    return float(parts.square().sum(1).mean())
