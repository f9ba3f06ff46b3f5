"""More local steps than a client has examples: which positions hold the same one."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.answer.victims import Truth, scored_once
from bench.attacks.labels.last_layer import LastLayer
from bench.attacks.labels.sequence_scores import marginal_scores
from bench.attacks.labels.sequences import all_sequences, any_sequence, canonical, count_sequences, descend
from bench.attacks.objective.distance import Distance
from bench.attacks.objective.mismatch import Mismatch, observations
from bench.attacks.objective.repeats import distinct_examples, segments, tied_examples
from bench.attacks.search.prior import NoiseModel, Prior
from bench.attacks.search.problem import MatchingProblem
from bench.contracts.situations import situation
from bench.rng import Key

CLASSES, FEATURES = 3, 6


def _layer(steps: int, batch: int, distinct: int) -> LastLayer:
    zeros = torch.zeros(CLASSES, FEATURES, dtype=torch.float64)
    return LastLayer(
        weight=zeros,
        bias=zeros[:, 0],
        d_weight=zeros,
        d_bias=zeros[:, 0],
        spread=1.0,
        rate=0.5,
        kept=torch.ones(CLASSES, FEATURES + 1, dtype=torch.bool),
        means=zeros.expand(steps, -1, -1),
        batches=(batch,) * steps,
        client_examples=distinct,
    )


@pytest.mark.parametrize(("examples", "distinct"), [(8, 4), (7, 3), (5, 5), (6, 1), (4, 9)])
def test_ties_of_the_pipelines_draws(examples: int, distinct: int) -> None:
    """With a label of its own for each example, ties are the draw itself, numbered by first use."""
    draw = np.random.default_rng(0)
    passes = [draw.permutation(distinct) for _ in range(-(-examples // distinct))]
    drawn = torch.from_numpy(np.concatenate(passes)[:examples])
    ties = tied_examples(drawn, distinct)
    for i, j in product(range(examples), repeat=2):
        assert bool(ties[i] == ties[j]) == bool(drawn[i] == drawn[j])
    assert int(ties.max()) + 1 == min(examples, distinct)


def test_equal_labels_are_tied_once_each() -> None:
    labels = torch.tensor([[1, 0, 1, 1, 1, 0], [2, 2, 0, 0, 2, 2]])
    assert tied_examples(labels, 3).tolist() == [[0, 1, 2, 0, 2, 1], [0, 1, 2, 2, 0, 1]]
    assert tied_examples(labels[None], 3).shape == (1, 2, 6)
    assert tied_examples(torch.tensor([0, 1, 0, 0]), 2).tolist() == [0, 1, 0, -1]


def test_segments_end_with_each_step_and_each_pass() -> None:
    assert segments((2, 2, 2), 3) == [2, 1, 1, 2]
    assert segments((2, 2, 2), 6) == [2, 2, 2]
    assert segments((4,), 2) == [2, 2]
    assert segments((2, 1, 2, 1), 3) == [2, 1, 2, 1]


def test_distinct_examples_of_a_reading() -> None:
    reading = situation("type-1", batch=2, steps=3).reading
    assert distinct_examples(replace(reading, client_examples=4)) == 4
    assert distinct_examples(replace(reading, client_examples=100)) == 6
    assert distinct_examples(replace(reading, client_examples=2, senders=2)) == reading.examples


@pytest.mark.parametrize(("steps", "batch", "distinct"), [(4, 1, 2), (3, 2, 3), (5, 1, 3), (2, 2, 2), (1, 4, 3)])
def test_all_sequences_are_those_of_passes(steps: int, batch: int, distinct: int) -> None:
    """Against every labelling of every position: those whose passes have the first one's labels, once each."""
    layer = _layer(steps, batch, distinct)
    sequences = all_sequences(layer, None)
    assert len(sequences) <= count_sequences(layer, None)

    def fits(row: tuple[int, ...]) -> bool:
        return bool((tied_examples(torch.tensor(row), distinct) >= 0).all())

    every = [row for row in product(range(CLASSES), repeat=steps * batch) if fits(row)]
    expected = canonical(torch.tensor(every), layer).unique(dim=0)
    assert torch.equal(sequences, expected)
    known = sequences[len(sequences) // 3]
    of_known = all_sequences(layer, known.sort().values)
    assert bool((of_known.sort(1).values == known.sort().values).all())
    assert bool((of_known == known).all(1).any())
    draw = np.random.default_rng(1)
    for labels in (None, known.sort().values):
        start = any_sequence(layer, labels, draw)
        assert bool((sequences == start).all(1).any())
        assert labels is None or torch.equal(start.sort().values, labels)


def _two_epochs(labels: Tensor, order: Tensor, rate: float) -> LastLayer:
    """A linear layer trained for two passes, a step each example, on features that are the class means."""
    torch.manual_seed(0)
    linear = nn.Linear(FEATURES, CLASSES).double()
    means = torch.rand(CLASSES, FEATURES, dtype=torch.float64)
    first = weight, bias = linear.weight.detach(), linear.bias.detach()
    for n in order:
        w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
        loss = F.cross_entropy(F.linear(means[labels[n]], w, b), labels[n])
        gradients = torch.autograd.grad(loss, (w, b))
        weight, bias = weight - rate * gradients[0], bias - rate * gradients[1]
    return replace(
        _layer(len(order), 1, len(labels)),
        weight=first[0],
        bias=first[1],
        rate=rate,
        spread=1e-3,
        d_weight=(first[0] - weight) / rate,
        d_bias=(first[1] - bias) / rate,
        means=means.expand(len(order), -1, -1),
    )


def test_the_sequence_of_two_epochs_is_the_likeliest_of_all_and_descent_comes_to_it() -> None:
    labels, order = torch.tensor([2, 0, 1]), torch.tensor([0, 1, 2, 1, 2, 0])
    layer = _two_epochs(labels, order, rate=1.5)
    sequences = all_sequences(layer, None)
    scores = marginal_scores(layer, sequences)
    best = sequences[scores.argmin()]
    assert torch.equal(best, labels[order])
    assert torch.equal(tied_examples(best, 3), order)
    starts = torch.stack([any_sequence(layer, None, np.random.default_rng(n)) for n in range(4)])
    met, met_scores = descend(layer, lambda rows: marginal_scores(layer, rows), starts, labels_known=False)
    assert torch.equal(met[met_scores.argmin()], best)
    assert bool((tied_examples(met, 3) >= 0).all())


def test_an_example_that_is_claimed_once_is_scored_once() -> None:
    indices = torch.tensor([[[7, 4, 9, 4, 9, 7]], [[3, 1, 2, 1, 3, 2]]])
    truth = Truth(inputs=indices[:, 0, :, None].float() / 10, labels=indices[:, 0] % 2, indices=indices[:, 0])
    once = scored_once(truth, 3)
    assert once.indices.tolist() == [[7, 4, 9], [3, 1, 2]]
    assert torch.equal(once.inputs[:, :, 0] * 10, once.indices.float())
    assert torch.equal(once.labels, once.indices % 2)
    assert scored_once(truth, 6) is truth
    assert scored_once(truth, 4) is truth
    lone = replace(truth, indices=torch.tensor([[1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]]))
    assert torch.equal(scored_once(lone, 6).indices, lone.indices)


def test_tied_positions_share_variables() -> None:
    """Two epochs over two examples: two have variables, and their gradient is that of untied ones, summed."""
    case = situation("type-1", steps=4, readings=2)
    labels = torch.tensor([[3, 5, 5, 3], [1, 2, 1, 2]])
    reading = replace(case.reading, client_examples=2, labels=labels)
    observed = observations(reading)
    tied, untied = (
        MatchingProblem(
            mismatch=Mismatch(reading=reading, distance=Distance(kind="l2"), unrolled=True),
            observed=observed,
            labels=labels,
            start_kind="uniform",
            prior=Prior(),
            noise=NoiseModel.of(reading, 1),
            key=Key(seed=0),
            distinct=distinct,
        )
        for distinct in (2, None)
    )
    rows = torch.arange(2)
    x = torch.stack([tied.start(row, 0) for row in range(2)]).double()
    assert x.shape == (2, 2 * 64)
    positions = torch.tensor([[0, 1, 1, 0], [0, 1, 0, 1]])
    wide = x.unflatten(1, (2, 64))[rows[:, None], positions]
    loss, gradient = tied.subset(rows, rows * 0)(x)
    wide_loss, wide_gradient = untied.subset(rows, rows * 0)(wide.flatten(1))
    torch.testing.assert_close(loss, wide_loss)
    summed = torch.zeros(2, 2, 64, dtype=torch.float64)
    for row in range(2):
        summed[row].index_add_(0, positions[row], wide_gradient[row].unflatten(0, (4, 64)))
    torch.testing.assert_close(gradient, summed.flatten(1))
