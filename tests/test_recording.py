"""A recorded training: bitwise the same training, a replay to 1e-6, and what was seen where there is none."""

import copy
import functools
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, nll_loss
from torch.utils.checkpoint import checkpoint

from bench import api
from bench.errors import BenchError

Loss = Callable[[Tensor, Tensor], Tensor]


def examples(count: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return torch.rand(count, 1, 6, 6, generator=source), torch.randint(4, (count,), generator=source)


def network(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), *layers, nn.Tanh(), nn.Flatten(), nn.Linear(64, 4))


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    batch: int = 4,
    epochs: int = 2,
    loss: Loss = cross_entropy,
    between: Callable[[], object] = lambda: None,
) -> None:
    """A shuffled loop with a validation, as public examples of federated clients have."""
    x, y = examples()
    source = torch.Generator().manual_seed(3)
    model.train()
    for _ in range(epochs):
        for at in torch.randperm(len(x), generator=source).split(batch):
            optimizer.zero_grad()
            loss(model(x[at]), y[at]).backward()
            between()
            optimizer.step()
    with torch.no_grad():
        model(examples(5, seed=9)[0])


@pytest.mark.parametrize(
    ("batch", "epochs", "loss"),
    [
        (4, 2, cross_entropy),
        (5, 2, nn.CrossEntropyLoss()),
        (12, 1, lambda z, y: nll_loss(log_softmax(z, 1), y)),
        (4, 1, cross_entropy),
    ],
)
def test_a_plain_training_is_unchanged_and_explained(batch: int, epochs: int, loss: Loss) -> None:
    model = network()
    twin = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.05, momentum=0.9) for each in (model, twin)]
    train(twin, optimizers[1], batch=batch, epochs=epochs, loss=loss)
    with api.recording(model, optimizers[0]) as sent:
        train(model, optimizers[0], batch=batch, epochs=epochs, loss=loss)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in twin.state_dict().items())
    assert sent.error is not None and sent.error <= 1e-6
    assert sent.seen == ()
    assert sent.line.startswith("explains what was sent: ")
    x, y = sent.truth
    known, labels = examples()
    assert sorted(map(float, x.sum((1, 2, 3)))) == sorted(map(float, known.sum((1, 2, 3))))
    assert sorted(y.tolist()) == sorted(labels.tolist())
    held, held_labels = sent.held_out
    assert held is not None and torch.equal(held, examples(5, seed=9)[0]) and held_labels is None
    reading = sent.reading()
    assert (reading.steps, reading.client_examples) == (epochs * -(-12 // batch), 12)
    assert reading.momentum == 0.9
    if epochs == 1:  # the order of a later epoch is not declared
        assert api.check(reading, x, y).explained
    hooks = [model._forward_hooks, model._forward_pre_hooks, optimizers[0]._optimizer_step_pre_hooks]
    assert not any(hooks)


def test_an_attack_of_a_recorded_step_finds_the_example() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = examples(1)
    with api.recording(model, optimizer) as sent:
        cross_entropy(model(x), y).backward()
        optimizer.step()
    public = examples(20, seed=5)[0]
    found = api.attack(sent.reading(public=public), "map", evaluations=200)
    assert float((found.inputs[0] - x).square().mean()) < 1e-3


def smoothed(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits, labels, label_smoothing=0.1)


def penalised(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits, labels) + logits.square().mean()


def doubled(logits: Tensor, labels: Tensor) -> Tensor:
    return 2 * cross_entropy(logits, labels)


def squared(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.mse_loss(logits, nn.functional.one_hot(labels, 4).float())


def focal(logits: Tensor, labels: Tensor) -> Tensor:
    each = cross_entropy(logits, labels, reduction="none")
    return ((1 - (-each).exp()) ** 2 * each).mean()


def written_by_hand(logits: Tensor, labels: Tensor) -> Tensor:
    return -logits.log_softmax(1)[torch.arange(len(labels)), labels].mean()


class Shared(nn.Module):
    """A normalisation with `F.batch_norm` and own buffers, as in code without BatchNorm layers."""

    mean: Tensor
    var: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.batch_norm(x, self.mean, self.var, training=self.training)


class Stronger(nn.Module):
    """A layer whose training mode is another computation."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x if self.training else x


class Recurrent(nn.Module):
    """Two layers of an LSTM with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(4, 4, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x.flatten(2).transpose(1, 2))[0].transpose(1, 2).unflatten(2, (4, 4))


def adam(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=lr, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)


def probabilities(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.mse_loss(logits.softmax(1), nn.functional.one_hot(labels, 4).float())


def without_the_last(logits: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(logits, labels.where(labels < 3, -1), ignore_index=-1)


@pytest.mark.parametrize(
    ("layers", "make", "loss", "batch"),
    [
        ((), adam, cross_entropy, 4),
        ((), torch.optim.AdamW, cross_entropy, 4),
        ((), torch.optim.SGD, smoothed, 4),
        ((), torch.optim.SGD, lambda z, y: cross_entropy(z, 0.8 * nn.functional.one_hot(y, 4) + 0.05), 4),
        ((), torch.optim.SGD, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0, 4.0])), 4),
        ((), torch.optim.SGD, nn.CrossEntropyLoss(reduction="sum"), 4),
        ((), torch.optim.SGD, doubled, 4),
        ((), torch.optim.SGD, squared, 4),
        ((), torch.optim.SGD, probabilities, 4),
        ((), torch.optim.SGD, without_the_last, 12),
        ((nn.BatchNorm2d(4),), torch.optim.SGD, cross_entropy, 4),
        ((Shared(),), torch.optim.SGD, cross_entropy, 4),
        ((Stronger(),), torch.optim.SGD, cross_entropy, 4),
        ((nn.InstanceNorm2d(4, track_running_stats=True),), torch.optim.SGD, cross_entropy, 4),
    ],
)
def test_losses_optimizers_and_modes_are_recorded(
    layers: tuple[nn.Module, ...], make: Callable[..., torch.optim.Optimizer], loss: Loss, batch: int
) -> None:
    model = network(*(copy.deepcopy(layer) for layer in layers))
    optimizer = make(model.parameters(), lr=0.05)
    with api.recording(model, optimizer) as sent:
        train(model, optimizer, loss=loss, batch=batch, epochs=1)
    assert sent.line.startswith("explains what was sent: ")
    checked = api.check(sent.reading(), *sent.truth)
    assert checked.line == "explains what was sent: cosine 1.0000, scale 1.000"


def test_a_single_logit_is_recorded() -> None:
    model = nn.Sequential(*list(network())[:-1], nn.Linear(64, 1), nn.Flatten(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = examples()
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0))
    with api.recording(model, optimizer) as sent:
        loss(model(x), (y > 1).float()).backward()
        optimizer.step()
        with torch.no_grad():
            loss(model(examples(5, seed=9)[0]), torch.ones(5))
    assert (sent.classes, sent.truth[1].tolist()) == (2, (y > 1).long().tolist())
    assert sent.held_out[1] is not None and sent.held_out[1].tolist() == [1] * 5
    assert api.check(sent.reading(), *sent.truth).line == "explains what was sent: cosine 1.0000, scale 1.000"


def test_only_what_was_trained_is_attacked() -> None:
    model = network()
    optimizer = torch.optim.SGD(model[-1].parameters(), lr=0.05, weight_decay=0.1)
    with api.recording(model, optimizer) as sent:
        train(model, optimizer, epochs=1)
    assert set(sent.reading().values) == {"4.weight", "4.bias"}
    assert api.check(sent.reading(), *sent.truth).explained


def test_a_training_in_16_bits_is_explained_up_to_rounding() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = examples()
    scaler = torch.amp.grad_scaler.GradScaler("cpu", init_scale=1024.0)
    with api.recording(model, optimizer) as sent:
        with torch.autocast("cpu", torch.bfloat16):
            loss = cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
    assert sent.line.startswith("explains what was sent: 1 local steps on 12 examples, replayed, in 16-bit numbers")
    assert api.check(sent.reading(), *sent.truth).explained


def test_a_step_with_a_closure_is_recorded() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = examples()
    with api.recording(model, optimizer) as sent:
        for at in torch.arange(12).split(4):

            def closure(at: Tensor = at) -> float:
                optimizer.zero_grad()
                loss = cross_entropy(model(x[at]), y[at])
                loss.backward()
                return loss.item()

            optimizer.step(closure)
    assert sent.line.startswith("explains what was sent: 3 local steps on 12 examples")
    assert torch.equal(sent.truth[0], x)


@pytest.mark.parametrize(
    ("layers", "make", "loss", "fact"),
    [
        ((nn.Dropout(0.3),), torch.optim.SGD, cross_entropy, "a stochastic layer: dropout"),
        ((Recurrent(),), torch.optim.SGD, cross_entropy, "random draws in the model, such as dropout inside a layer"),
        ((), torch.optim.RMSprop, cross_entropy, "the optimizer RMSprop"),
        ((), functools.partial(torch.optim.SGD, momentum=0.9, dampening=0.5), cross_entropy, "SGD with dampening"),
        ((), torch.optim.SGD, penalised, "a loss with further terms"),
        ((), torch.optim.SGD, focal, "a loss with further terms"),
        ((), torch.optim.SGD, written_by_hand, "a loss that is no function of torch.nn.functional"),
        ((), torch.optim.SGD, lambda z, y: cross_entropy(z / 2, y), "a loss on another tensor than the model's output"),
        ((), torch.optim.SGD, lambda z, y: nn.functional.mse_loss(z, y[:, None] / torch.ones(4)), "on real numbers"),
    ],
)
def test_what_no_attack_simulates_is_said(
    layers: tuple[nn.Module, ...], make: Callable[..., torch.optim.Optimizer], loss: Loss, fact: str
) -> None:
    model = network(*layers)
    optimizer = make(model.parameters(), lr=0.05)
    with api.recording(model, optimizer) as sent:
        train(model, optimizer, loss=loss)
    assert not sent.explained
    assert any(fact in each for each in sent.seen)
    inside = {"a stochastic layer": "attacked without this: a stochastic", "a loss with": "only the recorded term"}
    words = next((words for begin, words in inside.items() if fact.startswith(begin)), None)
    assert words is None or (sent.inside is not None and words in sent.inside)
    assert sent.line.startswith("does not explain what was sent: 6 local steps on 24 examples")
    with pytest.raises(BenchError, match="the recording does not explain what was sent"):
        sent.reading()


@pytest.mark.parametrize(
    ("output", "fact"),
    [
        (lambda z: {"logits": z}, "a model whose output is a dict: wrap it"),
        (lambda z: (z, z), "a model whose output is a tuple: wrap it"),
        (lambda z: z[:, :, None, None], r"a model whose output has shape \(12, 4, 1, 1\)"),
    ],
)
def test_another_output_than_logits_is_a_line(output: Callable[[Tensor], Any], fact: str) -> None:
    inner = network()

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Any:
            return output(self.inner(x))

    model = Wrapped()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = examples()
    with api.recording(model, optimizer) as sent:
        given = model(x)
        logits = given["logits"] if isinstance(given, dict) else given[0] if isinstance(given, tuple) else given
        cross_entropy(logits.reshape(12, 4), y).backward()
        optimizer.step()
    with pytest.raises(BenchError, match=f"no local step can be attacked; seen: {fact}"):
        sent.reading()


def _clipped(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    train(model, optimizer, between=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.3))


def _scheduled(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    optimizer.register_step_post_hook(lambda *_: schedule.step())
    train(model, optimizer)


def _near_the_start(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    start = [value.detach().clone() for value in model.parameters()]

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        far = sum((own - old).square().sum() for own, old in zip(model.parameters(), start, strict=True))
        return cross_entropy(logits, labels) + 0.35 * far

    train(model, optimizer, loss=loss)


def _regularised(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels) + 0.01 * sum(value.square().sum() for value in model.parameters())

    train(model, optimizer, loss=loss)


def _never_zeroed(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    x, y = examples()
    for at in torch.arange(12).split(4):
        cross_entropy(model(x[at]), y[at]).backward()
        optimizer.step()


def groups(kind: Callable[..., torch.optim.Optimizer], model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    values = list(model.parameters())
    weights = [value for value in values if value.dim() > 1]
    others = [value for value in values if value.dim() <= 1]
    return kind([{"params": weights, "weight_decay": 0.1}, {"params": others, "lr": 0.01}], lr=0.05, **options)


@pytest.mark.parametrize(
    ("loop", "kind", "options"),
    [
        (_clipped, torch.optim.SGD, {"momentum": 0.9}),
        (_scheduled, torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (_near_the_start, torch.optim.SGD, {}),
        (_regularised, torch.optim.SGD, {}),
        (_never_zeroed, torch.optim.SGD, {"momentum": 0.5}),
        (_never_zeroed, torch.optim.Adam, {}),
        (_scheduled, torch.optim.AdamW, {}),
        (_clipped, torch.optim.Adam, {}),
    ],
)
@pytest.mark.parametrize("grouped", [False, True])
def test_ordinary_loops_are_simulated(
    loop: Callable[..., None], kind: Callable[..., torch.optim.Optimizer], options: dict[str, Any], grouped: bool
) -> None:
    model = network()
    optimizer = groups(kind, model, **options) if grouped else kind(model.parameters(), lr=0.05, **options)
    with api.recording(model, optimizer) as sent:
        loop(model, optimizer)
    assert sent.line.startswith("explains what was sent: ")
    x, y = sent.truth
    order = [int((x == each).flatten(1).all(1).int().argmax()) for step in sent._recorded.steps for each in step.inputs]
    checked = api.check(sent.reading(), x, y, order=order)
    assert checked.line == "explains what was sent: cosine 1.0000, scale 1.000"


class Checkpointed(nn.Module):
    """A model that computes its first layers again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner[3:](checkpoint(self.inner[:3], x, use_reentrant=False))


def test_local_steps_of_a_checkpointed_model_are_refused() -> None:
    """The second pass would use the weights before the first step."""
    model = Checkpointed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with api.recording(model, optimizer) as sent:
        train(model, optimizer, epochs=1)
    line = api.check(sent.reading(), *sent.truth).line
    assert line.startswith("cannot be replayed: the model computes layers again in the backward pass")


def test_a_clip_that_only_later_steps_have_is_no_common_clip() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with api.recording(model, optimizer) as sent:
        _clipped_later(model, optimizer)
    assert sent.seen[0] == "gradients changed between backward() and step(): clipping, noise or a scaler"


def _averaged(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    average = torch.optim.swa_utils.AveragedModel(model)
    train(model, optimizer, epochs=1, between=lambda: average.update_parameters(model))
    model.load_state_dict(average.module.state_dict())


def _corrected(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    def correct() -> None:
        with torch.no_grad():
            for value in model.parameters():
                value.mul_(0.99)

    train(model, optimizer, epochs=1, between=correct)


def _by_two_optimizers(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    second = torch.optim.SGD(model.parameters(), lr=0.01)
    train(model, optimizer, epochs=1, between=second.step)


def _clipped_later(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    train(model, optimizer, batch=12, epochs=1)
    train(model, optimizer, epochs=1, between=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.01))


def _zeroed_late(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    x, y = examples()
    for number, at in enumerate(torch.arange(12).split(4)):
        cross_entropy(model(x[at]), y[at]).backward()
        optimizer.step()
        if number:
            optimizer.zero_grad()


def _frozen_later(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    train(model, optimizer, epochs=1)
    for value in list(model.parameters())[:2]:
        value.requires_grad_(False)
    train(model, optimizer, epochs=1)


def _accumulated_unevenly(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    x, y = examples()
    for number, at in enumerate(torch.arange(10).split(2)):
        (cross_entropy(model(x[at]), y[at]) / 3).backward()
        if number in (2, 4):
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(
    ("loop", "fact"),
    [
        (_averaged, "weights changed outside optimizer.step()"),
        (_corrected, "weights changed outside optimizer.step()"),
        (_by_two_optimizers, "weights changed outside optimizer.step()"),
        (_clipped_later, "gradients changed between backward() and step()"),
        (_zeroed_late, "gradients of earlier steps were kept: no zero_grad() before backward()"),
        (_frozen_later, "other parameters were trained in later steps"),
        (_accumulated_unevenly, "gradients accumulated over different numbers of passes"),
    ],
)
def test_what_a_loop_does_beside_its_steps_is_said_first(loop: Callable[..., None], fact: str) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with api.recording(model, optimizer) as sent:
        loop(model, optimizer)
    assert not sent.explained and sent.seen[0].startswith(fact)


def test_optimizers_are_named_before_their_states() -> None:
    model = network()
    adagrad = torch.optim.Adagrad(model.parameters(), lr=0.05)
    with api.recording(model, adagrad) as sent:
        train(model, adagrad, epochs=1)
    assert sent.seen[0] == "the optimizer Adagrad"
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train(model, optimizer, epochs=1)
    with api.recording(model, optimizer) as sent:
        train(model, optimizer, epochs=1)
    assert sent.seen[0] == "an optimizer with a state from before, such as momentum"


def test_weights_that_the_loop_loads_first_are_the_start() -> None:
    model, other = network(), network()
    with torch.no_grad():
        next(other.parameters()).add_(0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with api.recording(model, optimizer) as sent:
        model.load_state_dict(other.state_dict())
        train(model, optimizer, epochs=1)
    assert sent.explained and api.check(sent.reading(), *sent.truth).explained


@pytest.mark.slow
@pytest.mark.parametrize("inner", [False, True])
def test_a_compiled_model_is_recorded(inner: bool) -> None:
    model = network()
    compiled = cast(nn.Module, torch.compile(model, backend="eager"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with api.recording(model if inner else compiled, optimizer) as sent:
        train(compiled, optimizer)
    assert sent.explained and api.check(sent.reading(), *sent.truth).explained


def test_a_further_argument_of_the_model_is_a_line() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
            return scale * self.inner(x)

    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = examples()
    with api.recording(model, optimizer) as sent:
        cross_entropy(model(x, scale=0.5), y).backward()
        optimizer.step()
    with pytest.raises(BenchError, match="a model whose input is not a single tensor by position"):
        sent.reading()


def test_nothing_recorded_is_a_line() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with api.recording(model, optimizer) as sent:
        pass
    with pytest.raises(BenchError, match="no local step was recorded"):
        sent.reading()
    other = torch.optim.SGD(network().parameters(), lr=0.05)
    with pytest.raises(BenchError, match="no parameter of the model"), api.recording(model, other):
        pass
