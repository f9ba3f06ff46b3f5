"""Promise: ordinary federated code in other forms is read, or its mistake is named in a line."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from bench import api
from bench.own.check import Check
from bench.own.recorded import Recording

DIGITS = load_digits()
X, Y = torch.tensor(DIGITS.images[:12, None] / 16).float(), torch.tensor(DIGITS.target[1:13])
STEPS, BATCH, RATE = 3, 4, 0.1


def network(units: int = 8) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, units), nn.Sigmoid(), nn.Linear(units, 10))


def trained(steps: int = STEPS) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    """A model, and its states before the training and after each step."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    states = [{name: value.clone() for name, value in model.state_dict().items()}]
    for at in range(0, steps * BATCH, BATCH):
        optimizer.zero_grad()
        cross_entropy(model(X[at : at + BATCH]), Y[at : at + BATCH]).backward()
        optimizer.step()
        states.append({name: value.clone() for name, value in model.state_dict().items()})
    return model, states


def of_update(before: dict[str, Tensor], after: dict[str, Tensor], local: api.SGD, examples: int = 12) -> Check:
    reading = api.reading(before=before, after=after, local=local, model=network(), shape=(1, 8, 8), classes=10)
    return api.check(reading, X[:examples], Y[:examples])


def of_gradient(model: nn.Module, change: Callable[[dict[str, Tensor]], object], labels: Tensor = Y) -> Check:
    cross_entropy(model(X), Y).backward()
    gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
    reading = api.reading(change(gradients), model=model, shape=(1, 8, 8), classes=10, batch=12)  # type: ignore[arg-type]
    return api.check(reading, X, labels)


local = partial(api.SGD, lr=RATE, batch=BATCH)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod."])
def test_states_of_a_wrapped_model(prefix: str) -> None:
    _, states = trained()
    before, after = ({prefix + name: value for name, value in states[n].items()} for n in (0, -1))
    assert of_update(before, after, local(steps=STEPS)).explained


def test_one_hot_labels() -> None:
    assert of_gradient(network(), dict, one_hot(Y, 10).float()).explained
    with pytest.raises(Exception, match="labels are classes, or one-hot rows; mixed labels have no single class"):
        of_gradient(network(), dict, one_hot(Y, 10) * 0.9 + 0.01)


def test_weights_rounded_on_the_way_back_only() -> None:
    _, states = trained()
    found = of_update(states[0], {name: value.bfloat16() for name, value in states[-1].items()}, local(steps=STEPS))
    assert found.explained and "the weights were rounded to bfloat16 in transport" in found.line


def test_a_missing_last_batch_is_named() -> None:
    _, states = trained(steps=2)
    found = of_update(states[0], states[-1], local(epochs=1, examples=10), examples=10)
    assert found.explained is False and "as by drop_last=True: give steps=2" in found.line


def test_an_average_of_the_weights_is_named() -> None:
    _, states = trained()
    average = states[0]
    for state in states[1:]:
        average = {name: 0.9 * average[name] + 0.1 * value for name, value in state.items()}
    found = of_update(states[0], average, local(steps=STEPS))
    assert found.explained is False and "a moving average of the weights with decay 0.9 was sent (EMA)" in found.line


def test_momentum_is_no_average_of_weights() -> None:
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    for at in range(0, 12, BATCH):
        optimizer.zero_grad()
        cross_entropy(model(X[at : at + BATCH]), Y[at : at + BATCH]).backward()
        optimizer.step()
    assert "declare momentum=0.9" in of_update(before, model.state_dict(), local(steps=STEPS)).line


def test_exchanged_arrays_are_named() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 64), nn.Sigmoid(), nn.Linear(64, 10)]

    def exchanged(gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        return gradients | {"1.weight": gradients["3.weight"], "3.weight": gradients["1.weight"]}

    found = of_gradient(nn.Sequential(nn.Flatten(), *layers), exchanged)
    assert found.explained is False and "'1.weight' and '3.weight' are exchanged" in found.line


def test_labels_from_1_are_named() -> None:
    assert int(Y.max()) == 9 and "the labels count from 1: give classes from 0" in _from_one().line


def _from_one() -> Check:
    """Labels 1 to 9, given for the classes 0 to 8."""
    model, labels = network(), Y.clamp_max(8)
    cross_entropy(model(X), labels).backward()
    gradients = [value.grad for value in model.parameters()]
    reading = api.reading(gradients, model=model, shape=(1, 8, 8), classes=10, batch=12)  # type: ignore[arg-type]
    return api.check(reading, X, labels + 1)


def test_a_gradient_that_was_unscaled_twice_is_named() -> None:
    found = of_gradient(network(), lambda gradients: {name: value / 2**16 for name, value in gradients.items()})
    assert "the scale is 2^-16: a loss scaler's; the gradient was unscaled twice" in found.line


class SharedNorm(nn.Module):
    """The same BatchNorm twice, once inside another module."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.head = nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)
        self.second = nn.Sequential(nn.Linear(8, 8), self.norm)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(x.flatten(1))))
        out: Tensor = self.head(torch.relu(self.second(hidden)))
        return out


def recorded(model: nn.Module, optimizer: torch.optim.Optimizer, after: Callable[[], object] = int) -> Recording:
    with api.recording(model, optimizer) as sent:
        for at in range(0, 12, BATCH):
            optimizer.zero_grad()
            cross_entropy(model(X[at : at + BATCH]), Y[at : at + BATCH]).backward()
            optimizer.step()
            after()
    return sent


def test_a_shared_batch_norm_is_replayed() -> None:
    model = SharedNorm()
    sent = recorded(model, torch.optim.SGD(model.parameters(), lr=RATE))
    assert sent.explained, sent.line


def test_a_schedule_of_the_momentum_is_named() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    pace = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.3, total_steps=6)
    sent = recorded(model, optimizer, pace.step)
    assert not sent.explained and "changes between steps, as by OneCycleLR's cycle_momentum" in sent.line
