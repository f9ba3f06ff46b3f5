"""Promise: a mean of randomly masked messages does not hide its clients' examples."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from tests.test_separate import behind_a_mean
from torch import Tensor

from bench.attacks.map import Map
from bench.attacks.objective.choices import surprise
from bench.attacks.search.chosen import by_choices
from bench.defenses.base import Transform
from bench.defenses.transforms.levels import StochasticLevels
from bench.defenses.transforms.mask import KeepLargest, KeepRandom
from bench.rng import Key
from bench.trip import Budget, Outcomes, Reconstruction

FLOOR = 0.01


def masked(g: Tensor, chance: Tensor) -> Outcomes:
    return Outcomes(
        values={"a": torch.stack([torch.zeros_like(g), g])}, chances={"a": torch.stack([1 - chance, chance])}
    )


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    """Gradients and chances (client, coordinate), and a sum (coordinate,)."""
    random = torch.Generator().manual_seed(0)
    g, chance = torch.randn(3, 20, generator=random).double(), torch.rand(3, 20, generator=random).double()
    return g.requires_grad_(), chance.requires_grad_(), torch.randn(20, generator=random).double()


def listed(g: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
    """Each sum of masked values and its probability, (sum, coordinate), by enumeration."""
    masks = torch.tensor(list(product((0.0, 1.0), repeat=len(g)))).double()[..., None]
    return (masks * g).sum(1), (masks * chance + (1 - masks) * (1 - chance)).prod(1)


def test_the_likelihood_and_its_derivatives_are_those_of_all_sums() -> None:
    g, chance, total = drawn()
    sums, weights = listed(g, chance)
    variance = (0.5**2 * (chance * g.square()).sum(0) + FLOOR).detach()
    density = (weights * torch.exp(-0.5 * (total - sums).square() / variance)).sum(0) / variance.sqrt()
    expected = -density.log().sum()
    likelihood = surprise(masked(g, chance), {"a": total}, 0.5, {"a": torch.tensor(FLOOR).double()})
    torch.testing.assert_close(likelihood, expected, rtol=1e-6, atol=0)
    for one, other in zip(
        torch.autograd.grad(likelihood, (g, chance)), torch.autograd.grad(expected, (g, chance)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_the_widest_distribution_has_the_mean_and_variance_of_all_sums() -> None:
    g, chance, total = drawn()
    sums, weights = listed(g, chance)
    mean = (weights * sums).sum(0)
    variance = (weights * (sums - mean).square()).sum(0) + FLOOR
    expected = 0.5 * ((total - mean).square() / variance + variance.log()).sum()
    likelihood = surprise(masked(g, chance), {"a": total}, torch.inf, {"a": torch.tensor(FLOOR).double()})
    torch.testing.assert_close(likelihood, expected, rtol=1e-6, atol=0)


def test_the_true_values_are_likelier_than_others_under_a_narrow_distribution() -> None:
    g, _, _ = drawn()
    chance, floor = torch.full_like(g, 0.5), {"a": torch.tensor(1e-6).double()}
    total = g[0].where(torch.arange(20) % 2 == 0, g[1] + g[2])
    right, wrong = (surprise(masked(each, chance), {"a": total}, 0.01, floor) for each in (g, 1.1 * g))
    assert right < wrong - 20


def error(result: Reconstruction, truth: Tensor) -> float:
    """Mean squared error; examples of different labels are in the order of the labels."""
    return float((result.inputs[0] - truth).square().mean())


def test_examples_behind_random_masks_come_back() -> None:
    """Four clients, a third of each message masked."""
    reading, _, truth, _ = behind_a_mean(KeepRandom(share=0.3), None)
    budget, key = Budget(evaluations=80), Key(seed=0)
    result = by_choices(reading, budget, key)
    assert result is not None
    assert error(result, truth) < 0.02 * float(truth.var())
    assert result.evaluations.tolist() == [80]
    short = Budget(evaluations=6)
    alone = by_choices(reading, short, key)
    assert alone is not None
    assert torch.equal(Map().reconstruct(reading, short, key).inputs, alone.inputs)


@pytest.mark.parametrize("transform", [KeepLargest(share=0.5), StochasticLevels(levels=1, norm="max")])
def test_other_messages_are_left_to_other_searches(transform: Transform) -> None:
    reading, *_ = behind_a_mean(transform, None)
    assert by_choices(reading, Budget(evaluations=20), Key(seed=0)) is None


def test_many_clients_and_missing_defenses_are_left_to_other_searches() -> None:
    reading, *_ = behind_a_mean(KeepRandom(share=0.5), None)
    assert by_choices(replace(reading, description=None), Budget(evaluations=20), Key(seed=0)) is None
    assert by_choices(replace(reading, senders=2, batch=2), Budget(evaluations=20), Key(seed=0)) is None
