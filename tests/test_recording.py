"""A recorded training: bitwise the same training, a replay to 1e-6, and what was seen where there is none."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, nll_loss

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


@pytest.mark.parametrize(
    ("layers", "make", "loss", "fact"),
    [
        ((nn.Dropout(0.3),), torch.optim.SGD, cross_entropy, "a stochastic layer: dropout"),
        ((nn.BatchNorm2d(4),), torch.optim.SGD, cross_entropy, "BatchNorm in training mode"),
        ((), torch.optim.Adam, cross_entropy, "the optimizer Adam"),
        ((), torch.optim.SGD, smoothed, "the loss option label_smoothing"),
        ((), torch.optim.SGD, penalised, "a loss with further terms"),
        ((), torch.optim.SGD, doubled, "gradient is 2 times the gradient of the mean loss"),
        ((), torch.optim.SGD, squared, "the loss mse_loss"),
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
    assert sent.line.startswith("does not explain what was sent: 6 local steps on 24 examples")
    with pytest.raises(BenchError, match="the recording does not explain what was sent"):
        sent.reading()


def test_clipping_and_a_schedule_are_said() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with api.recording(model, optimizer) as sent:
        train(model, optimizer, between=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.01))
    assert "clipping" in sent.line
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    with api.recording(model, optimizer) as sent:
        for _ in range(2):
            train(model, optimizer, epochs=1)
            schedule.step()
    assert "learning rates from 0.025 to 0.05" in sent.line


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
