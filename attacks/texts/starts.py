"""Starts of a search for texts and labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bench.attacks.texts.fit import Fit
from bench.attacks.texts.joint import Joint
from bench.attacks.texts.search import Search
from bench.attacks.texts.sketches import Entry, Sketches

_DOUBT = 20.0  # nats between the first texts of two lists of labels: both are tested


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Best result of a search for texts and labels over all its starts."""

    loss: float
    """Distance to the reading."""
    texts: Tensor
    """(example, position)."""
    labels: Tensor
    """(example,): class numbers."""
    steps: int
    """Steps of all starts."""
    restarts: int
    """Starts after the first."""


def label_lists(inferred: Tensor, classes: int) -> list[Tensor]:
    """Propose lists of labels for a search, in case the inferred labels have an error: the list itself, and each list
    with a single other label. Lists with the same number of each class appear once.

    - `inferred` (example,): inferred class numbers.
    - `classes`: number of classes."""
    lists = {tuple(sorted(inferred.tolist())): inferred}
    for example in range(len(inferred)):
        for label in range(classes):
            other = inferred.clone()
            other[example] = label
            lists.setdefault(tuple(sorted(other.tolist())), other)
    return list(lists.values())


def by_labels(fit: Fit, lists: list[Tensor], zero: float, draws: Sequence[np.random.Generator], most: int) -> Estimate:
    """Search the texts from one start for each generator in `draws`. Public texts under each list of labels give a
    first distance to the reading. Up to half of the starts try the lists with the least first distances, each list
    once. The other starts use the list with the least distance so far.

    - `lists`: lists of labels to try, each (example,).
    - `zero`: distance of a zero gradient from the reading, the scale of a distance.
    - `draws`: a random generator for each start.
    - `most`: total number of steps over all starts."""
    searches = [Search(fit.with_labels(labels), zero) for labels in lists]
    if len(searches) > 1:
        firsts = [search.first(np.random.default_rng(0)) for search in searches]
        likely = [n for n in np.argsort(firsts, kind="stable") if firsts[n] <= min(firsts) + _DOUBT * fit.scale]
        searches = [searches[n] for n in likely[: max(min(2, len(draws)), len(draws) // 2)] or [0]]
    best = Estimate(loss=float("inf"), texts=torch.empty(0), labels=lists[0], steps=0, restarts=-1)
    nearest, ends = searches[0], set[tuple[int, tuple[tuple[int, ...], ...]]]()
    for start, draw in enumerate(draws):
        search = searches[start] if start < len(searches) else nearest
        loss, texts, steps = search.improve(draw, most - best.steps)
        nearer = loss <= best.loss
        nearest = search if nearer else nearest
        best = Estimate(
            loss=min(loss, best.loss),
            texts=texts if nearer else best.texts,
            labels=search.labels if nearer else best.labels,
            steps=best.steps + steps,
            restarts=start,
        )
        end = id(search), tuple(sorted(map(tuple, texts.tolist())))
        if loss <= search.exact or best.steps >= most or (nearer and end in ends):
            break  # the last reason: two starts have the same best end
        ends.add(end)
    return best


def jointly(
    fit: Fit, sketches: Sketches, draws: Sequence[np.random.Generator], most: int, *, labels_known: bool
) -> Estimate:
    """Search for all texts and labels behind a mean of gradients together, by changes of two texts at once (`Joint`).
    Each later start keeps half of the best texts so far. Return the best result.

    - `fit`: objective, with the reading and the labels at the start.
    - `sketches`: map from gradients to short vectors, for the same model and weights.
    - `draws`: a random generator for each start.
    - `most`: total number of steps over all starts.
    - `labels_known`: True keeps the labels."""
    joint = Joint(fit, sketches.of_reading(fit.observed), labels_known=labels_known)
    lowest, best, steps, restarts = float("inf"), list[Entry](), 0, -1
    for draw in draws:
        loss, state, used = joint.improve(draw, most - steps, best or None)
        steps, restarts = steps + used, restarts + 1
        if loss <= lowest:
            lowest, best = loss, state
        if lowest <= joint.exact or steps >= most:
            break
    texts, labels = torch.tensor([text for _, text in best]), torch.tensor([label for label, _ in best])
    whole = fit.with_labels(labels)
    loss = float(whole.losses(whole.state(texts), texts[None]))
    return Estimate(loss=loss, texts=texts, labels=labels, steps=steps, restarts=restarts)
