"""The federated pipeline against slow loops, and the pairing that makes cells comparable."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from bench.cell import Federated
from bench.defenses.base import Context, Defense, Setting, Transform
from bench.defenses.none import NoDefense
from bench.federated import pipeline
from bench.federated.batches import Batches
from bench.federated.draws import KeyedDraws
from bench.federated.pipeline import run_round, server_step
from bench.federated.stages import DrawKey, Stages, stages
from bench.points import Stage

CLIENTS, BATCH, CLASSES = 3, 4, 5


def setting(steps: int = 1) -> Setting:
    return Setting(clients=6, per_round=CLIENTS, rounds=2, steps=steps, batch=BATCH, client_examples=10, rate=0.1)


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(3 * 36, CLASSES)).double()


@pytest.fixture
def weights(model: nn.Module) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(value.shape, generator=made, dtype=torch.float64) * 0.3
        for name, value in model.named_parameters()
    }


def batches(steps: int) -> Batches:
    made = torch.Generator().manual_seed(1)
    return Batches(
        clients=(4, 0, 2),
        inputs=torch.rand((CLIENTS, steps, BATCH, 1, 6, 6), generator=made, dtype=torch.float64),
        labels=torch.randint(CLASSES, (CLIENTS, steps, BATCH), generator=made),
    )


def slow_client(
    model: nn.Module, weights: dict[str, Tensor], inputs: Tensor, labels: Tensor, rate: float
) -> dict[str, Tensor]:
    """Local SGD written the textbook way: w_0 - w_L."""
    now = {name: value.clone().requires_grad_() for name, value in weights.items()}
    for step in range(len(inputs)):
        loss = nn.functional.cross_entropy(functional_call(model, now, (inputs[step],)), labels[step])
        gradients = torch.autograd.grad(loss, list(now.values()))
        now = {
            name: (value - rate * gradient).detach().requires_grad_()
            for (name, value), gradient in zip(now.items(), gradients, strict=True)
        }
    return {name: (weights[name] - value).detach() for name, value in now.items()}


@pytest.mark.parametrize("steps", [1, 3])
def test_an_update_is_what_a_textbook_loop_gives(model: nn.Module, weights: dict[str, Tensor], steps: int) -> None:
    federated = Federated(algorithm="fedavg", steps=steps, batch=BATCH, rate=0.1)
    given = batches(steps)
    plain = stages(NoDefense(), setting(steps), {n: tuple(v.shape) for n, v in weights.items()})
    shown = run_round(model, weights, given, federated, plain, DrawKey(seed=0, draw=0, round=0), classes=CLASSES).shown
    expected = [slow_client(model, weights, given.inputs[c], given.labels[c], 0.1) for c in range(CLIENTS)]
    for name in weights:
        for client in range(CLIENTS):
            torch.testing.assert_close(shown["server"][name][client], expected[client][name], atol=1e-13, rtol=1e-11)
    new = server_step(weights, shown["aggregate"], federated)
    mean = {name: torch.stack([one[name] for one in expected]).mean(0) for name in weights}
    for name in weights:
        torch.testing.assert_close(new[name], weights[name] - mean[name], atol=1e-13, rtol=1e-11)


def test_fedsgd_sends_the_gradient_and_fedavg_of_one_step_eta_times_it(
    model: nn.Module, weights: dict[str, Tensor]
) -> None:
    plain = stages(NoDefense(), setting(), {n: tuple(v.shape) for n, v in weights.items()})
    draw_key = DrawKey(seed=0, draw=0, round=0)
    sgd = Federated(algorithm="fedsgd", batch=BATCH, rate=0.1)
    avg = Federated(algorithm="fedavg", batch=BATCH, rate=0.1)
    one = run_round(model, weights, batches(1), sgd, plain, draw_key, classes=CLASSES).shown
    other = run_round(model, weights, batches(1), avg, plain, draw_key, classes=CLASSES).shown
    for name in weights:
        torch.testing.assert_close(0.1 * one["client"][name], other["client"][name])
        torch.testing.assert_close(one["step"][name], one["client"][name])


def test_the_example_tap_is_the_first_example_of_the_batch(model: nn.Module, weights: dict[str, Tensor]) -> None:
    plain = stages(NoDefense(), setting(), {n: tuple(v.shape) for n, v in weights.items()})
    given = batches(1)
    shown = run_round(
        model, weights, given, Federated(batch=BATCH), plain, DrawKey(seed=0, draw=0, round=0), classes=CLASSES
    ).shown["example"]
    alone = slow_client(model, weights, given.inputs[1, :, :1], given.labels[1, :, :1], 1.0)
    for name in weights:
        torch.testing.assert_close(shown[name][1], alone[name], atol=1e-13, rtol=1e-11)


@dataclass(frozen=True, kw_only=True)
class Add(Transform):
    """Adds unit noise."""

    random: ClassVar[bool] = True

    def apply(self, tensors: Mapping[str, Tensor], context: Context) -> dict[str, Tensor]:
        return {name: value + context.draws.normal(name, value) for name, value in tensors.items()}


@dataclass(frozen=True, kw_only=True)
class AddAt(Defense):
    reference: ClassVar[str] = "test"
    stages: ClassVar[tuple[Stage, ...]] = ("example", "step", "client", "server", "aggregate")
    at: Stage = "client"

    def transforms(self, setting: Setting) -> Mapping[Stage, Sequence[Transform]]:
        del setting
        return {self.at: [Add()]}


@pytest.mark.parametrize("at", ["example", "step", "client", "server", "aggregate"])
def test_a_stage_shows_from_its_own_tap_on_and_nowhere_before(
    model: nn.Module, weights: dict[str, Tensor], at: Stage
) -> None:
    order: tuple[Stage, ...] = ("example", "step", "client", "server", "aggregate")
    shapes = {n: tuple(v.shape) for n, v in weights.items()}
    draw_key = DrawKey(seed=0, draw=0, round=0)
    found = {
        name: run_round(
            model,
            weights,
            batches(1),
            Federated(batch=BATCH),
            stages(defense, setting(), shapes),
            draw_key,
            classes=CLASSES,
        ).shown
        for name, defense in (("none", NoDefense()), ("noise", AddAt(at=at)))
    }
    for position, stage in enumerate(order):
        same = all(torch.equal(found["none"][stage][n], found["noise"][stage][n]) for n in weights)
        assert same == (position < order.index(at)), stage


def test_noise_of_a_client_does_not_depend_on_who_else_is_in_the_round(
    model: nn.Module, weights: dict[str, Tensor]
) -> None:
    shapes = {n: tuple(v.shape) for n, v in weights.items()}
    defended = stages(AddAt(at="example"), setting(), shapes)
    draw_key = DrawKey(seed=3, draw=1, round=2)
    whole = batches(1)
    alone = Batches(clients=(0,), inputs=whole.inputs[1:2], labels=whole.labels[1:2])
    federated = Federated(batch=BATCH)
    one = run_round(model, weights, alone, federated, defended, draw_key, classes=CLASSES).shown["server"]
    all_ = run_round(model, weights, whole, federated, defended, draw_key, classes=CLASSES).shown["server"]
    for name in weights:
        torch.testing.assert_close(one[name][0], all_[name][1], atol=1e-13, rtol=1e-11)


def test_keyed_draws_are_standard_and_differ_in_every_field() -> None:
    like = torch.zeros(2, 20000, dtype=torch.float64)

    def drawn(**changed: object) -> Tensor:
        given: dict[str, object] = {"seed": 0, "fields": (0, 0), "rows": ((1,), (2,))}
        return KeyedDraws(**(given | changed)).normal("w", like)  # type: ignore[arg-type]

    base = drawn()
    # 40 000 draws: five standard errors of mean and variance
    assert abs(float(base.mean())) < 5 / 200
    assert abs(float(base.var()) - 1) < 5 * (2 / 40000) ** 0.5
    assert not torch.equal(base[0], base[1])
    assert torch.equal(drawn(rows=((2,), (1,))), base.flip(0))
    for other in (drawn(seed=1), drawn(fields=(1, 0)), drawn(fields=(0, 1))):
        assert abs(float(torch.corrcoef(torch.stack([base.flatten(), other.flatten()]))[0, 1])) < 5 / 200


@dataclass(frozen=True, kw_only=True)
class Count(Transform):
    """Adds the number of earlier rounds of the client."""

    owner = "client"

    def initial(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        del shapes
        return {"seen": torch.zeros((), dtype=torch.float64)}

    def update(
        self, tensors: Mapping[str, Tensor], state: Mapping[str, Tensor], context: Context
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        del context
        seen = state["seen"]
        return (
            {name: value + seen.reshape(-1, *[1] * (value.dim() - 1)) for name, value in tensors.items()},
            {"seen": seen + 1},
        )


@dataclass(frozen=True, kw_only=True)
class Counting(Defense):
    reference: ClassVar[str] = "test"
    stages: ClassVar[tuple[Stage, ...]] = ("client",)

    def transforms(self, setting: Setting) -> Mapping[Stage, Sequence[Transform]]:
        del setting
        return {"client": [Count()]}


def test_memory_is_optional_and_one_signature_serves_both_kinds() -> None:
    tensors = {"w": torch.ones(3, 2)}
    draws = KeyedDraws(seed=0, fields=(), rows=((0,), (1,), (2,)))
    context = Context(lead=1, stage="client", round=0, step=0, setting=setting(), draws=draws)
    after, state = Add().update(tensors, {}, context)
    assert state == {}
    assert torch.equal(after["w"], Add().apply(tensors, context)["w"])
    first = Count().initial_of({"w": (2,)}, 3)
    after, state = Count().update(tensors, first, context)
    assert torch.equal(after["w"], Count().apply(tensors, context)["w"])
    assert state["seen"].tolist() == [1, 1, 1]


def test_a_transform_that_does_nothing_is_refused_where_it_is_defined() -> None:
    with pytest.raises(TypeError, match="Idle does nothing: define apply, or initial and update"):

        class Idle(Transform):
            random: ClassVar[bool] = True


def test_a_clients_state_is_its_own_and_outlives_the_round(model: nn.Module, weights: dict[str, Tensor]) -> None:
    shapes = {n: tuple(v.shape) for n, v in weights.items()}
    draw_key = DrawKey(seed=0, draw=0, round=0)
    federated, whole = Federated(batch=BATCH), batches(1)
    before = stages(Counting(), setting(), shapes)
    first = run_round(model, weights, whole, federated, before, draw_key, classes=CLASSES)
    some = Batches(clients=(0, 5), inputs=whole.inputs[:2], labels=whole.labels[:2])
    second = run_round(model, weights, some, federated, first.stages, draw_key, classes=CLASSES)
    seen = second.stages.states["client", 0]["seen"]
    assert seen.tolist() == [2, 0, 1, 0, 1, 1]
    assert before.states["client", 0]["seen"].tolist() == [0] * 6  # the state given is untouched
    plain = run_round(
        model, weights, some, federated, stages(NoDefense(), setting(), shapes), draw_key, classes=CLASSES
    )
    for name in weights:
        torch.testing.assert_close(second.shown["client"][name][0], plain.shown["client"][name][0] + 1)
        torch.testing.assert_close(second.shown["client"][name][1], plain.shown["client"][name][1])


@pytest.mark.parametrize("steps", [1, 3])
def test_means_of_large_batches_equal_the_means_of_example_gradients(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    federated = Federated(algorithm="fedavg", clients=4, per_round=2, steps=steps, batch=20, rate=0.1)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)
    ).double()
    weights = {name: value.detach() for name, value in model.named_parameters()}
    random = torch.Generator().manual_seed(0)
    batches = Batches(
        clients=(0, 1),
        inputs=torch.rand((2, steps, 20, 1, 2, 3), generator=random, dtype=torch.float64),
        labels=torch.randint(3, (2, steps, 20), generator=random),
    )
    setting = Setting(clients=4, per_round=2, rounds=1, steps=steps, batch=20, client_examples=60, rate=0.1)
    empty = Stages(setting=setting, transforms={}, states={})
    key = DrawKey(seed=0, draw=0, round=0)
    fast = run_round(model, weights, batches, federated, empty, key, classes=3)
    monkeypatch.setattr(pipeline, "_FEW", 20)
    slow = run_round(model, weights, batches, federated, empty, key, classes=3)
    for stage, shown in slow.shown.items():
        for name, value in shown.items():
            torch.testing.assert_close(fast.shown[stage][name], value, rtol=1e-12, atol=1e-14)
