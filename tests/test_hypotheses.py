"""Label hypotheses against exhaustive oracles: plain local training of the last layer, on known features."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import api
from bench.attacks.labels.hypotheses import label_hypotheses
from bench.attacks.labels.infer import infer_labels
from bench.attacks.labels.last_layer import LastLayer, last_layers
from bench.attacks.labels.sequence_scores import fitted_scores, marginal_scores, mean_residuals
from bench.attacks.labels.sequences import all_sequences, descend
from bench.attacks.objective.local import unrolled_update
from bench.attacks.objective.mismatch import observations
from bench.contracts.situations import Situation, situation
from bench.gradients import one_hot
from bench.kinds.images import IMAGE
from bench.kinds.tables import TABLE
from bench.models.base import Model
from bench.registry import entries as registry
from bench.rng import Key
from bench.trip import Reading

CLASSES, FEATURES, RATE = 3, 5, 2.0


def _trained(layer: nn.Linear, h: Tensor, labels: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Σ of the mean gradients of local SGD on features (example, feature), by autograd, step by step."""
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    for x, y in zip(h.split(batch), labels.split(batch), strict=True):
        w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
        gradients = torch.autograd.grad(F.cross_entropy(F.linear(x, w, b), y), (w, b))
        weight, bias = weight - RATE * gradients[0], bias - RATE * gradients[1]
    return (layer.weight.detach() - weight) / RATE, (layer.bias.detach() - bias) / RATE


def _layer(steps: int, batch: int, labels: Tensor, spread: float = 0.0) -> tuple[LastLayer, nn.Linear]:
    """A layer trained on its class means, the further off the larger `spread` is."""
    draw = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    linear = nn.Linear(FEATURES, CLASSES).double()
    means = torch.rand(steps, CLASSES, FEATURES, dtype=torch.float64, generator=draw)
    at = torch.arange(steps * batch) // batch
    noise = torch.randn(len(labels), FEATURES, dtype=torch.float64, generator=draw)
    d_weight, d_bias = _trained(linear, means[at, labels] + spread * noise, labels, batch)
    layer = LastLayer(
        weight=linear.weight.detach(),
        bias=linear.bias.detach(),
        d_weight=d_weight,
        d_bias=d_bias,
        kept=torch.ones(CLASSES, FEATURES + 1, dtype=torch.bool),
        means=means,
        spread=max(spread, 1e-3) ** 2,
        batches=(batch,) * steps,
        rate=RATE,
    )
    return layer, linear


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
def test_residuals_are_those_of_local_training_on_the_class_means(masked: bool) -> None:
    layer, linear = _layer(2, 2, torch.tensor([0, 2, 1, 2]), spread=0.3)
    kept = torch.rand(CLASSES, FEATURES + 1, generator=torch.Generator().manual_seed(1)) < 0.6
    if masked:
        layer = replace(layer, kept=kept)
    sequences = all_sequences(layer, None)
    assert len(sequences) == 6**2
    scores = mean_residuals(layer, sequences)
    for sequence, score in zip(sequences[::5], scores[::5], strict=True):
        h = layer.means[torch.tensor([0, 0, 1, 1]), sequence]
        d_weight, d_bias = _trained(linear, h, sequence, 2)
        gap = (torch.cat([d_weight - layer.d_weight, (d_bias - layer.d_bias)[:, None]], 1) * layer.kept).square()
        torch.testing.assert_close(score, gap[:, :-1].sum() + layer.bias_unit * gap[:, -1].sum())


def test_rescaled_residuals_are_the_least_over_factors() -> None:
    layer, _ = _layer(1, 2, torch.tensor([0, 2]), spread=0.3)
    sequences = all_sequences(layer, None)
    scores = mean_residuals(layer, sequences, rescaled=True)
    assert bool((scores <= mean_residuals(layer, sequences) + 1e-12).all())
    shorter = replace(layer, d_weight=layer.d_weight / 7, d_bias=layer.d_bias / 3)
    assert torch.equal(mean_residuals(shorter, sequences, rescaled=True).argsort()[:1], scores.argsort()[:1])
    weights = replace(layer, d_bias=layer.d_bias * 0, kept=layer.kept & (torch.arange(FEATURES + 1) < FEATURES))
    by_hand = torch.stack(
        [
            mean_residuals(replace(weights, d_weight=layer.d_weight / s), sequences) * s**2
            for s in torch.cat([torch.linspace(1e-3, 1, 500), torch.linspace(1, 9, 500)])
        ]
    ).amin(0)
    torch.testing.assert_close(mean_residuals(weights, sequences, rescaled=True), by_hand, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(("steps", "batch"), [(1, 1), (1, 3), (3, 1), (2, 2)])
def test_the_true_sequence_has_no_residual_on_its_own_features(steps: int, batch: int) -> None:
    truth = torch.tensor([2, 0, 1, 2, 1, 0])[: steps * batch].unflatten(0, (steps, batch)).sort(1).values.flatten()
    layer, _ = _layer(steps, batch, truth)
    sequences = all_sequences(layer, None)
    scores = mean_residuals(layer, sequences)
    assert torch.equal(sequences[scores.argmin()], truth)
    assert scores.min() < 1e-12
    assert scores.sort().values[1] > 1e-6


def test_the_fit_in_the_span_is_the_fit_over_all_features() -> None:
    """A coordinate that was not sent takes the way without the span; here its residual is 0 for everybody."""
    layer, _ = _layer(3, 1, torch.tensor([2, 0, 2]), spread=0.2)
    extra = torch.zeros(CLASSES, 1, dtype=torch.float64)
    wide = replace(
        layer,
        weight=torch.cat([layer.weight, extra], 1),
        d_weight=torch.cat([layer.d_weight, extra], 1),
        means=torch.cat([layer.means, torch.zeros(3, CLASSES, 1, dtype=torch.float64)], 2),
        kept=torch.ones(CLASSES, FEATURES + 2, dtype=torch.bool),
    )
    part_kept = wide.kept.clone()
    part_kept[0, FEATURES] = False
    sequences = all_sequences(layer, None)[:12]
    whole = fitted_scores(wide, sequences, evaluations=400)
    direct = fitted_scores(replace(wide, kept=part_kept), sequences, evaluations=400)
    torch.testing.assert_close(whole, direct, rtol=1e-4, atol=1e-4)


def test_marginal_scores_are_a_gaussian_density_of_the_residual() -> None:
    layer, linear = _layer(2, 2, torch.tensor([0, 2, 1, 2]), spread=0.3)
    sequences = all_sequences(layer, None)
    floor = 0.01 * layer.d_weight.square().mean()
    by_hand = []
    for sequence in sequences:
        h = layer.means[torch.tensor([0, 0, 1, 1]), sequence]
        d_weight, d_bias = _trained(linear, h, sequence, 2)
        sends = []
        for n in range(4):  # what an example sends to the bias, by leaving it out of the linear combination
            w, b = layer.weight - RATE * _trained(linear, h[:2], sequence[:2], 2)[0], layer.bias
            b = b - RATE * _trained(linear, h[:2], sequence[:2], 2)[1]
            w, b = (layer.weight, layer.bias) if n < 2 else (w, b)
            sends.append((F.linear(h[n], w, b).softmax(0) - F.one_hot(sequence[n], CLASSES)) / 2)
        rows = torch.stack(sends)
        covariance = layer.spread * rows.mT @ rows + floor * torch.eye(CLASSES)
        gap = torch.cat([layer.d_weight - d_weight, layer.bias_unit**0.5 * (layer.d_bias - d_bias)[:, None]], 1)
        by_hand.append((gap * torch.linalg.solve(covariance, gap)).sum() + FEATURES * torch.logdet(covariance))
    torch.testing.assert_close(marginal_scores(layer, sequences), torch.stack(by_hand), rtol=1e-5, atol=1e-5)


def test_noise_is_read_off_the_columns() -> None:
    layer, _ = _layer(3, 1, torch.tensor([2, 0, 2]))
    assert layer.noise < 1e-30
    wide = replace(layer, d_weight=layer.d_weight.repeat(1, 2000), kept=torch.ones(CLASSES, 10001, dtype=torch.bool))
    noise = torch.randn(wide.d_weight.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert replace(wide, d_weight=wide.d_weight + 0.3 * noise).noise == pytest.approx(0.09, rel=0.1)
    nothing = torch.zeros(CLASSES, 10001, dtype=torch.bool)
    assert replace(wide, kept=nothing).noise == 0


def test_known_labels_are_tried_in_each_of_their_orders_once() -> None:
    layer, _ = _layer(2, 2, torch.tensor([0, 2, 2, 2]))
    orders = all_sequences(layer, torch.tensor([0, 2, 2, 2]))
    assert orders.tolist() == [[0, 2, 2, 2], [2, 2, 0, 2]]
    layer, _ = _layer(3, 1, torch.tensor([0, 1, 2]))
    assert len(all_sequences(layer, torch.tensor([0, 1, 2]))) == 6


def test_descent_comes_to_the_best_of_all_sequences() -> None:
    layer, _ = _layer(3, 2, torch.tensor([0, 1, 2, 2, 0, 0]), spread=0.1)
    sequences = all_sequences(layer, None)
    best = sequences[mean_residuals(layer, sequences).argmin()]
    starts = torch.tensor(list(product(range(CLASSES), repeat=6)))[::60]
    met, scores = descend(layer, lambda rows: mean_residuals(layer, rows), starts, labels_known=False)
    assert torch.equal(met[scores.argmin()], best)
    assert len(met.unique(dim=0)) == len(met)
    known = torch.tensor([0, 0, 0, 1, 2, 2])
    orders, _ = descend(layer, lambda rows: mean_residuals(layer, rows), known[None], labels_known=True)
    assert torch.equal(orders.sort(1).values, known.expand(len(orders), -1))


def _observed(reading: Reading) -> dict[str, Tensor]:
    return observations(reading)[0]


def _masked(values: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {
        name: value * (torch.rand(value.shape, generator=draw) >= share).to(value) for name, value in values.items()
    }


def test_one_example_sent_whole_has_its_exact_label_in_every_hypothesis() -> None:
    """Another one in a later start would waste it."""
    for table in (False, True):
        case = situation(readings=12, kind=TABLE if table else IMAGE)
        hypotheses = label_hypotheses(case.reading, _observed(case.reading), 5)
        assert hypotheses.shape == (12, 5, 1)
        assert hypotheses.dtype == torch.int64
        assert torch.equal(hypotheses[:, 0], infer_labels(case.reading, _observed(case.reading)))
        assert torch.equal(hypotheses, case.labels[:, None].expand(-1, 5, -1))


@pytest.mark.parametrize(("share", "batch"), [(0.7, 1), (0.9, 1), (0.7, 3)])
def test_labels_behind_a_random_mask(share: float, batch: int) -> None:
    """Digits; one example's label by the least bias is right for 4 of 12 at .9."""
    case = situation("type-1", batch=batch, readings=12)
    observed = _masked(_observed(case.reading), share)
    first = label_hypotheses(case.reading, observed, 1)[:, 0]
    right = (first == case.labels.sort(1).values).all(1)
    assert int(right.sum()) >= 11


def test_granted_labels_are_kept_and_ordered() -> None:
    case = situation("type-1", steps=3, readings=4)
    granted = replace(case.reading, labels=case.labels.sort(1).values)
    hypotheses = label_hypotheses(granted, _observed(granted), 3)
    assert torch.equal(hypotheses.sort(2).values, granted.labels[:, None].expand(-1, 3, -1))  # type: ignore[index]
    single = replace(situation("type-1", batch=3).reading, labels=case.labels[:3])
    assert torch.equal(
        label_hypotheses(single, _observed(single), 4), case.labels[:3].sort(1).values[:, None].expand(-1, 4, -1)
    )


def test_the_same_alone_and_in_company() -> None:
    case = situation("type-1", steps=3, batch=2, readings=3)
    both = label_hypotheses(case.reading, _observed(case.reading), 4, Key(seed=3))
    alone = case.reading.of((1,))
    assert torch.equal(label_hypotheses(alone, _observed(alone), 4, Key(seed=3)), both[1:2])


def test_without_public_examples_or_a_last_layer_there_is_still_an_answer() -> None:
    case = situation("type-1", steps=2, readings=2)
    bare = replace(
        case.reading, public_inputs=case.reading.public_inputs[:0], public_labels=case.reading.public_labels[:0]
    )
    assert label_hypotheses(bare, _observed(bare), 2).shape == (2, 2, 2)
    unknown = replace(case.reading, public_labels=torch.full_like(case.reading.public_labels, -1))
    assert label_hypotheses(unknown, _observed(unknown), 2).shape == (2, 2, 2)
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 7), nn.Linear(7, 5), nn.Softmax(1)).double()
    x = torch.rand(1, 4, dtype=torch.float64)
    weights = {name: value.detach() for name, value in module.named_parameters()}
    sent = unrolled_update(module, weights, x[:, None], one_hot(torch.tensor([[1]]), 5, x.dtype), steps=1, rate=1.0)
    reading = api.reading(
        {name: value[0] for name, value in sent.items()}, model=module, shape=(4,), classes=5, public=x
    )
    assert last_layers(reading, _observed(reading)) is None  # its outputs are no logits
    assert label_hypotheses(reading, _observed(reading), 2).shape == (1, 2, 1)


def _under(case: Situation, seed: int, steps: int, rate: float) -> Reading:
    """The update of the same examples, from other initial weights."""
    like = case.reading
    architecture: Model = registry.instance("models", "dlg-lenet", {})
    weights = {name: value.double() for name, value in architecture.initial(like.model, seed).items()}
    targets = one_hot(case.labels, 10, torch.float64)
    sent = unrolled_update(like.model, weights, case.truth.double(), targets, steps=steps, rate=rate)
    return replace(
        like,
        weights={name: value[None] for name, value in weights.items()},
        rate=rate,
        unit=rate,
        values={name: steps * rate * value[:, None] for name, value in sent.items()},
    )


def _among(case: Situation, reading: Reading, count: int) -> int:
    """In how many readings the true sequence is among the first."""
    steps = reading.steps
    hypotheses = label_hypotheses(reading, _observed(reading), count)
    truth = case.labels.unflatten(1, (steps, -1)).sort(2).values.flatten(1)
    return int((hypotheses == truth[:, None]).all(2).any(1).sum())


def test_the_order_of_three_steps_is_among_the_first_four() -> None:
    case = situation("type-1", steps=3, readings=8)
    assert _among(case, _under(case, 0, 3, 0.05), 4) >= 7


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "batch", "rate", "share"),
    [(3, 1, 0.05, 0.9), (3, 1, 0.004, 0.9), (2, 2, 0.05, 0.9), (3, 2, 0.05, 0.7), (5, 1, 0.05, 0.7)],
)
def test_sequences_over_four_weight_seeds(steps: int, batch: int, rate: float, share: float) -> None:
    """Digits, 32 victims: the true sequence is among the first four of so many."""
    case = situation("type-1", steps=steps, batch=batch, readings=8)
    right = sum(_among(case, _under(case, seed, steps, rate), 4) for seed in range(4))
    assert right >= share * 32
