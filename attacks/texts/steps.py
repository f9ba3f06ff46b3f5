"""Search for the texts behind several local steps: each changed batch is trained on, step by step."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from bench.attacks.texts.fit import Fit
from bench.attacks.texts.search import Search
from bench.attacks.texts.starts import Estimate

_TURNS = 4  # of order and texts, at most


def in_steps(
    fit: Fit, zero: float, first: Estimate, draws: Sequence[np.random.Generator], most: int, *, known: bool
) -> Estimate:
    """Search for the texts, labels and order behind an update of several local steps. The search changes the order of
    two texts in different steps and the labels, then the texts, in turn, while the simulated update comes nearer to the
    observed update. Return the best result over all starts: the first from an estimate, the others from public texts.

    - `fit`: objective that simulates the local steps.
    - `zero`: distance of a zero update, the scale of a distance.
    - `first`: the estimate, such as of a search that takes the update for a gradient at the given weights.
    - `draws`: a random generator for each start.
    - `most`: total number of steps of the search, with those of `first`.
    - `known`: True keeps the labels."""
    best, used = replace(first, loss=float("inf")), first.steps
    for number, draw in enumerate(draws):
        texts, labels = first.texts.long().cpu(), best.labels.cpu()
        if number:
            _, texts, steps = Search(fit.with_labels(labels), zero).improve(draw, most - used)
            used += steps
        loss, texts, labels, steps = _from(fit, zero, texts, labels, draw, most - used, known=known)
        used += steps
        if loss < best.loss:
            best = replace(best, loss=loss, texts=texts, labels=labels, restarts=first.restarts + number)
        if used >= most or best.loss <= Search(fit, zero).exact:
            break
    return replace(best, steps=used)


def _from(
    fit: Fit, zero: float, texts: Tensor, labels: Tensor, draw: np.random.Generator, most: int, *, known: bool
) -> tuple[float, Tensor, Tensor, int]:
    """Return objective, texts, labels and number of steps after changes in turn, from the given texts and labels."""
    best, used = float("inf"), 0
    for _ in range(_TURNS):
        loss, texts, labels = _arranged(fit, texts, labels, known=known)
        search = Search(fit.with_labels(labels), zero)
        if loss > search.exact and used < most:
            loss, texts, steps = search.improve(draw, most - used, texts)
            used += steps
        if loss >= best or loss <= search.exact or used >= most:
            return loss, texts, labels, used
        best = loss
    return best, texts, labels, used


def _arranged(fit: Fit, texts: Tensor, labels: Tensor, *, known: bool) -> tuple[float, Tensor, Tensor]:
    """Return the least objective over orders and labels, with texts and labels in this order."""
    steps = torch.repeat_interleave(torch.tensor(fit.mismatch.reading.batches))

    def objective(some: Tensor, own: Tensor) -> float:
        return float(fit.with_labels(own).losses((some, {}), some[None]))

    least = objective(texts, labels)
    while True:
        tries = []
        for one in range(len(texts)):
            for other in range(one + 1, len(texts)):
                if steps[one] != steps[other]:
                    order = torch.arange(len(texts))
                    order[one], order[other] = other, one
                    tries.append((texts[order], labels[order]))
            for label in range(0 if known else fit.targets.shape[1]):
                own = labels.clone()
                own[one] = label
                tries.append((texts, own))
        losses = [objective(*each) for each in tries]
        if not losses or min(losses) >= least:
            return least, texts, labels
        least = min(losses)
        texts, labels = tries[losses.index(least)]
