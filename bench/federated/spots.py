"""Spots: measurements, in a few rounds of a training, of the change that the defense makes to updates.

They reveal defenses that protect trainings less than attacked rounds (`bench.leaderboard.strength`)."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from bench.defenses.base import Tensors
from bench.points import POINTS, Scope, Stage
from bench.record.schema import Spot
from bench.rng import generator

_DRAWN = 4


def looked_at(seed: int, rounds: int) -> frozenset[int]:
    """Return the numbers of the rounds in which a training measures its defense: the first, the last, and random rounds
    drawn with `seed`, which a defense cannot predict. `rounds` is the number of rounds."""
    drawn = generator(seed, "spots", rounds).integers(rounds, size=_DRAWN)
    return frozenset({0, rounds - 1, *map(int, drawn)})


def spot(round_: int, undefended: Tensors, shown: Mapping[Stage, Tensors], mean: Tensors, unit: float) -> Spot | None:
    """Measure how much each stage of a defense changes the first client's update in a round of a training. The record
    keeps the result, to reveal a defense that protects trainings less than the attacked rounds. None if a figure is not
    finite, as in a diverged training.

    The result holds the squared norm of the change at each interception point after local training, the squared norm of
    the undefended update, and the cosine between the undefended and the sent update.

    - `round_`: number of the round, from 0.
    - `undefended`: updates without the defense, name → (client, *shape).
    - `shown`: stage → updates after the stage, name → (client, *shape); at stage `aggregate`, their mean, name →
      (*shape).
    - `mean`: mean of the updates before stage `aggregate`, name → (*shape).
    - `unit`: factor from gradient units to the update's units; figures are divided by this factor, squared norms by its
      square."""
    alone = {name: value[0] for name, value in undefended.items()}
    squares, sent = {}, alone
    for name, point in POINTS.items():
        if point.scope is Scope.UPDATE:
            sent = {name: value[0] for name, value in shown[point.after].items()}
            squares[name] = _product(*[_difference(sent, alone)] * 2)
        elif point.scope is Scope.AGGREGATE:
            squares[name] = _product(*[_difference(shown[point.after], mean)] * 2)
    products = [_product(alone, alone), _product(sent, sent), _product(alone, sent)]
    figures = torch.stack([*products, *squares.values()]).tolist()  # a single synchronisation with a GPU
    if not all(map(math.isfinite, figures)):
        return None
    signal, energy, product, *changes = figures
    length = math.sqrt(signal) * math.sqrt(energy)
    return Spot(
        round=round_,
        signal=signal / unit**2,
        cosine=product / length if length else 0.0,
        changes={name: change / unit**2 for name, change in zip(squares, changes, strict=True)},
    )


def _difference(one: Tensors, other: Tensors) -> dict[str, Tensor]:
    return {name: value.double() - other[name].double() for name, value in one.items()}


def _product(one: Tensors, other: Tensors) -> Tensor:
    return torch.stack([(value.double() * other[name].double()).sum() for name, value in one.items()]).sum()
