"""Unrolled local steps against plain autograd, one reading at a time, and against the pipeline itself."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from bench import api
from bench.answer.context import Memory, RunContext
from bench.answer.run import run
from bench.attacks.objective.local import unrolled_update
from bench.cell import AttackCell, DataRef, Entry, Federated, Grants
from bench.contracts.situations import data, situation
from bench.defenses.base import Defense, Setting
from bench.defenses.fed_cdp import FedCdp
from bench.defenses.none import NoDefense
from bench.errors import BenchError, NotApplicable
from bench.federated.batches import Batches
from bench.federated.pipeline import run_round
from bench.federated.stages import DrawKey, Stages, stages
from bench.gradients import one_hot
from bench.models.base import Model
from bench.models.cnn import FedCnn
from bench.models.lenet import CplLenet, DlgLenet
from bench.models.mlp import Mlp
from bench.registry import entries as registry
from bench.rng import Key
from bench.trip import Budget, Candidates

READINGS, STEPS, BATCH, CLASSES, RATE = 3, 3, 2, 4, 0.3
SHAPE = (1, 12, 12)


def _of(model: Model) -> Callable[[], nn.Module]:
    return lambda: model.build(SHAPE, CLASSES)


def _flat(*layers: Callable[[], nn.Module], units: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(layer() for layer in layers), nn.Flatten(), nn.Linear(units, CLASSES))


# a LayerNorm goes one reading at a time by autograd, all others by vmap
MODELS: dict[str, Callable[[], nn.Module]] = {
    "dlg-lenet": _of(DlgLenet()),
    "cpl-lenet": _of(CplLenet(activation="tanh")),
    "mlp sigmoid": _of(Mlp(hidden=(9, 8))),
    "mlp tanh": _of(Mlp(hidden=(9, 8), activation="tanh")),
    "mlp relu": _of(Mlp(hidden=(9, 8), activation="relu")),
    "fed-cnn": _of(FedCnn()),
    "every option of a convolution": _flat(
        lambda: nn.Conv2d(1, 3, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
        nn.Sigmoid,
        lambda: nn.Conv2d(3, 2, 3, stride=3, bias=False),
        lambda: nn.ReLU(inplace=True),
        units=16,
    ),
    "depthwise": _flat(lambda: nn.Conv2d(1, 4, 3), nn.Tanh, lambda: nn.Conv2d(4, 4, 3, groups=2), units=256),
    "group norm": _flat(lambda: nn.Conv2d(1, 4, 3), lambda: nn.GroupNorm(2, 4), nn.Tanh, units=400),
    "layer norm": _flat(nn.Flatten, lambda: nn.Linear(144, 6), lambda: nn.LayerNorm(6), nn.Tanh, units=6),
}


def _problem(name: str, steps: int = STEPS, batch: int = BATCH) -> tuple[nn.Module, dict[str, Tensor], Tensor, Tensor]:
    torch.manual_seed(0)
    model = MODELS[name]().double()
    weights = {key: value.detach() + 0.1 * torch.randn_like(value) for key, value in model.named_parameters()}
    inputs = torch.rand(READINGS, steps * batch, *SHAPE, dtype=torch.float64)
    targets = torch.rand(READINGS, steps * batch, CLASSES, dtype=torch.float64).mul(3).softmax(-1)
    return model, weights, inputs.requires_grad_(), targets.requires_grad_()


def _textbook(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    inputs: Tensor,
    targets: Tensor,
    steps: int,
    bound: float | None = None,
) -> dict[str, Tensor]:
    """(w_0 - w_L) / (η L) of each reading by itself, examples one by one if their gradients are clipped."""
    rows = []
    for x, y in zip(inputs, targets, strict=True):
        now = {name: value.clone().requires_grad_() for name, value in weights.items()}
        batch = len(x) // steps
        for step in range(steps):
            part = slice(step * batch, (step + 1) * batch)
            groups = [part] if bound is None else [slice(n, n + 1) for n in range(part.start, part.stop)]
            gradients = []
            for group in groups:
                loss = F.cross_entropy(functional_call(model, now, (x[group],)), y[group])
                gradient = torch.autograd.grad(loss, list(now.values()), create_graph=True)
                if bound is not None:
                    gradient = tuple(g * min(1.0, bound / g.norm()) for g in gradient)
                gradients.append(gradient)
            mean = [torch.stack(each).mean(0) for each in zip(*gradients, strict=True)]
            now = {key: value - RATE * g for (key, value), g in zip(now.items(), mean, strict=True)}
        rows.append({key: (weights[key] - value) / (RATE * steps) for key, value in now.items()})
    return {key: torch.stack([row[key] for row in rows]) for key in weights}


def _agree(update: Mapping[str, Tensor], expected: Mapping[str, Tensor], x: Tensor, y: Tensor) -> None:
    """The same values, and the same derivatives of a sum of linear and square parts."""
    assert list(update) == list(expected)
    torch.manual_seed(1)
    directions = {key: torch.rand_like(value) for key, value in expected.items()}

    def derivatives(result: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        total = torch.stack([(directions[k] * v + v.square()).sum() for k, v in result.items()]).sum()
        return torch.autograd.grad(total, (x, y))

    for key, value in expected.items():
        torch.testing.assert_close(update[key], value, rtol=1e-10, atol=1e-10)
    for ours, theirs in zip(derivatives(update), derivatives(expected), strict=True):
        assert theirs.abs().max() > 1e-5  # the oracle is not constant
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_values_and_derivatives_are_plain_autograds(name: str) -> None:
    model, weights, x, y = _problem(name)
    update = unrolled_update(model, weights, x, y, steps=STEPS, rate=RATE)
    _agree(update, _textbook(model, weights, x, y, STEPS), x, y)


def test_the_later_steps_count() -> None:
    """The oracle above is not blind to them: the update is not the gradient of all examples at once."""
    model, weights, x, y = _problem("dlg-lenet")
    unrolled = unrolled_update(model, weights, x, y, steps=STEPS, rate=RATE)
    at_once = unrolled_update(model, weights, x, y, steps=1, rate=RATE)
    gaps = [(unrolled[name] - at_once[name]).norm() / at_once[name].norm() for name in weights]
    assert min(gaps) > 0.01
    still = unrolled_update(model, weights, x, y, steps=STEPS, rate=0.0)
    for name in weights:
        torch.testing.assert_close(still[name], at_once[name], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ["dlg-lenet", "fed-cnn", "group norm", "layer norm"])
def test_gradients_can_be_clipped_example_by_example_inside_the_steps(name: str) -> None:
    model, weights, x, y = _problem(name)
    bound = 0.3
    seen: list[int] = []

    def clip(step: int, per_example: Mapping[str, Tensor], _: Candidates) -> dict[str, Tensor]:
        seen.append(step)
        norms = {key: value.flatten(2).norm(dim=2) for key, value in per_example.items()}
        factors = {key: (bound / norm).clamp(max=1.0) for key, norm in norms.items()}
        assert all(value.shape == (READINGS, BATCH, *weights[key].shape) for key, value in per_example.items())
        return {key: torch.einsum("rb,rb...->r...", factors[key], value) / BATCH for key, value in per_example.items()}

    update = unrolled_update(model, weights, x, y, steps=STEPS, rate=RATE, between=clip)
    assert seen == [0, 1, 2]
    _agree(update, _textbook(model, weights, x, y, STEPS, bound), x, y)
    plain = unrolled_update(model, weights, x, y, steps=STEPS, rate=RATE)
    assert any((plain[key] - update[key]).norm() > 0.01 for key in weights)  # the bound binds


def _round(
    defense: Defense, model: nn.Module, weights: dict[str, Tensor], inputs: Tensor, labels: Tensor
) -> tuple[dict[str, Tensor], Stages]:
    """What the server gets from each client, in gradient units."""
    federated = Federated(algorithm="fedavg", clients=READINGS, per_round=READINGS, steps=STEPS, batch=BATCH, rate=RATE)
    setting = Setting(
        clients=READINGS, per_round=READINGS, rounds=1, steps=STEPS, batch=BATCH, client_examples=10, rate=RATE
    )
    before = stages(defense, setting, {name: tuple(value.shape) for name, value in weights.items()})
    batches = Batches(
        clients=tuple(range(READINGS)),
        inputs=inputs.unflatten(1, (STEPS, BATCH)),
        labels=labels.unflatten(1, (STEPS, BATCH)),
    )
    taps = run_round(model, weights, batches, federated, before, DrawKey(seed=0, draw=0, round=0), classes=CLASSES)
    return {name: value / (RATE * STEPS) for name, value in taps.shown["server"].items()}, before


@pytest.mark.parametrize("defended", [False, True], ids=["no defense", "fed-cdp without noise"])
def test_at_the_truth_it_is_what_the_pipeline_sends(defended: bool) -> None:
    model, weights, x, _ = _problem("dlg-lenet")
    labels = torch.arange(READINGS * STEPS * BATCH).reshape(READINGS, -1) % CLASSES
    defense: Defense = FedCdp(clip=0.3, sigma=0.0) if defended else NoDefense()
    sent, before = _round(defense, model, weights, x.detach(), labels)

    def through(step: int, per_example: Mapping[str, Tensor], candidates: Candidates) -> dict[str, Tensor]:
        del candidates
        draw_key = DrawKey(seed=0, draw=0, round=0, step=step)
        shown, _ = before.apply("example", per_example, draw_key, tuple(range(READINGS)))
        return {name: value.mean(1) for name, value in shown.items()}

    update = unrolled_update(
        model,
        weights,
        x,
        one_hot(labels, CLASSES, torch.float64),
        steps=STEPS,
        rate=RATE,
        between=through if defended else None,
    )
    for name, value in sent.items():
        torch.testing.assert_close(update[name], value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["dlg-lenet", "group norm", "layer norm"])
def test_without_a_graph_the_values_are_the_same_and_nothing_is_kept(name: str) -> None:
    model, weights, x, y = _problem(name)
    expected = unrolled_update(model, weights, x, y, steps=STEPS, rate=RATE)
    with torch.no_grad():
        silent = unrolled_update(model, weights, x, y, steps=STEPS, rate=RATE)
    constant = unrolled_update(model, weights, x.detach(), y.detach(), steps=STEPS, rate=RATE)
    for key, value in expected.items():
        assert value.requires_grad
        for update in (silent[key], constant[key]):
            assert not update.requires_grad
            torch.testing.assert_close(update, value.detach(), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ["every option of a convolution", "mlp tanh"])
def test_second_derivatives_of_the_update_pass_gradgradcheck(name: str) -> None:
    model, weights, x, y = _problem(name, steps=2, batch=1)
    x, y = x[:2].detach().requires_grad_(), y[:2].detach()

    def squares(inputs: Tensor) -> Tensor:
        update = unrolled_update(model, weights, inputs, y, steps=2, rate=RATE)
        return torch.stack([value.square().sum() for value in update.values()])

    assert torch.autograd.gradgradcheck(squares, (x,), fast_mode=True)


def test_the_weights_of_the_module_neither_count_nor_change() -> None:
    model, weights, x, y = _problem("dlg-lenet")
    before = unrolled_update(model, weights, x, y, steps=STEPS, rate=RATE)
    for parameter in model.parameters():
        parameter.data.fill_(9.0)
    after = unrolled_update(model, weights, x, y, steps=STEPS, rate=RATE)
    assert all(torch.equal(before[key], after[key]) for key in weights)
    assert all((value == 9).all() and value.grad is None for value in model.parameters())


def test_batches_of_unlike_size_and_mixed_examples_are_refused() -> None:
    model, weights, x, y = _problem("mlp tanh")
    with pytest.raises(BenchError, match="6 examples are not 4 local batches"):
        unrolled_update(model, weights, x, y, steps=4, rate=RATE)
    mixing = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(144), nn.Linear(144, CLASSES)).double()
    weights = {key: value.detach() for key, value in mixing.named_parameters()}
    with pytest.raises(NotApplicable, match="mixes the examples"):
        unrolled_update(mixing, weights, x, y, steps=STEPS, rate=RATE)


@pytest.mark.parametrize("refined", [False, True])
def test_restarts_try_the_labels_in_other_orders(refined: bool) -> None:
    """Two local steps at a high rate, on labels whose ascending order is the wrong one: without a restart the
    update is not explained, with some it is, and the labels are given back as they were used.  A wrong order is no
    row for a refinement to wait for."""
    torch.manual_seed(1)
    model = Mlp(hidden=(12,), activation="tanh").build((4,), CLASSES)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    x, y = torch.rand(1, 2, 4), torch.tensor([[3, 0]])
    sent = unrolled_update(model, weights, x, one_hot(y, CLASSES, torch.float32), steps=2, rate=2.0)
    bare = api.reading(
        sent, model=model, shape=(4,), classes=CLASSES, batch=1, steps=2, public=torch.rand(16, 4), labels=y
    )
    reading = replace(bare, unit=1.0 / 2, rate=2.0)
    single, restarted = (
        registry.instance(
            "attacks",
            "cpl",
            {
                "local": "unrolled",
                "line_search": "backtracking",
                "restarts": restarts,
                "start": "uniform",
                "refine_float64": refined,
            },
        ).reconstruct(reading, Budget(evaluations=4000, chunk=1), Key(seed=0))
        for restarts in (0, 8)
    )
    assert single.labels.tolist() == [[0, 3]]
    assert restarted.labels.tolist() == [[3, 0]]
    assert restarted.loss[0] < 1e-3 * single.loss[0]
    assert (restarted.inputs - x).abs().max() < 1e-2


@pytest.mark.parametrize(("local", "last"), [("one-gradient", 875), ("unrolled", 291)])
def test_gradinv_lowers_its_rate_by_its_own_iterations(local: str, last: int) -> None:
    """Of 1000 evaluations, three a simulation of three local steps, its last milestone comes at 7/8."""
    reading = situation("type-1", batch=1, steps=3, readings=1).reading
    attack = registry.instance("attacks", "gradinv", {"local": local})
    assert abs(attack.parts(reading, Budget(evaluations=1000)).solver.milestones[-1] - last) <= 1


@pytest.mark.parametrize(("where", "explained"), [("type-0", True), ("aggregate", None)])
def test_local_steps_of_several_clients_are_answered_and_their_self_check_says_nothing(
    where: str, explained: bool | None, tmp_path: Path
) -> None:
    """No one simulates each client's steps behind their mean."""
    cell = AttackCell(
        dataset=DataRef(name="digits", sha256=data().sha256),
        model=Entry(name="dlg-lenet"),
        attack=Entry(name="map"),
        defense=Entry(name="gaussian"),
        knowledge="adaptive",
        point=where,
        federated=Federated(algorithm="fedavg", clients=20, per_round=2, steps=2, batch=2),
        grants=Grants(labels=True),
        readings=1,
        evaluations=2,
    )
    record = run(cell, RunContext(run=tmp_path), Memory())
    assert record.attack is not None, record.reason
    assert record.attack.self_check.explained is explained
