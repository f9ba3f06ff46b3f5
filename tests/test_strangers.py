"""Models and weights from other projects: an explanation, or a line that names the fault."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from bench import api
from bench.errors import BenchError

SHAPE = (1, 8, 8)
_DATA = load_digits()
X = torch.from_numpy(_DATA.images[:, None] / 16).float()
Y = torch.from_numpy(_DATA.target).long()
KNOWN: dict[str, Any] = {"public": X[1000:1300], "public_labels": Y[1000:1300]}


def sent(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor | None]:
    """The gradient of plain autograd, by name; None for a parameter without a gradient."""
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    return {name: value.grad for name, value in model.named_parameters()}


def read(gradients: Any, model: nn.Module, **options: Any) -> Any:
    return api.reading(gradients, model=model, shape=SHAPE, classes=10, **KNOWN, **options)


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Sigmoid(), nn.Linear(32, 10)).eval()


@pytest.mark.parametrize("name", ["1.weight", "2.running_var", "2.running_mean", "4.bias"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e38])
@pytest.mark.parametrize("way", ["model", "weights", "before", "gradient"])
def test_weights_of_a_model_that_diverged_are_refused_by_name(name: str, value: float, way: str) -> None:
    model = plain()
    gradients = sent(model, X[:1], Y[:1])
    state = copy.deepcopy(model.state_dict())
    state[name].view(-1)[0] = value
    if way in ("model", "gradient"):
        model.load_state_dict(state)
    ways: dict[str, Callable[[], Any]] = {
        "model": lambda: read(gradients, model),
        "gradient": lambda: api.gradient(model, X[:1], Y[:1]),
        "weights": lambda: read(gradients, model, weights=state),
        "before": lambda: read(None, model, before=state, after=model.state_dict(), local=api.SGD(lr=0.1)),
    }
    with pytest.raises(BenchError, match=rf"{'the model' if way in ('gradient', 'model') else way}: {name} holds"):
        ways[way]()


class Behind(nn.Module):
    """Two linear layers, and an operation behind the last."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.kind = kind
        self.a, self.b = nn.Linear(64, 32), nn.Linear(32, 10, bias=kind != "negated without a bias")
        if kind == "auxiliary head":
            self.unused = nn.Linear(32, 10)
        if kind == "normalised weight":
            self.b = nn.utils.parametrizations.weight_norm(self.b)
        if kind == "convolution":
            self.b = nn.Conv2d(32, 10, 1)  # type: ignore[assignment]
        if kind == "its own parameter":
            self.w = nn.Parameter(0.2 * torch.randn(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.sigmoid(self.a(x.flatten(1)))
        if self.kind == "convolution":
            return self.b(h[:, :, None, None]).flatten(1)
        if self.kind == "its own parameter":
            return h @ self.w
        if self.kind == "by function":
            return F.linear(h, self.b.weight, self.b.bias)
        z = self.b(h)
        turned = {"flipped": z.flip(1), "relu": z.relu(), "temperature": z / 5}
        return -z if self.kind.startswith("negated") else turned.get(self.kind, z)


LABEL_RULES = {  # kind → whether labels come from simulated gradients
    "plain": False,
    "temperature": False,
    "auxiliary head": False,
    "by function": False,
    "negated": True,
    "negated without a bias": False,
    "flipped": True,
    "normalised weight": True,
    "convolution": True,
    "its own parameter": True,
}


@pytest.mark.parametrize("kind", LABEL_RULES)
def test_labels_are_read_whatever_stands_behind_the_last_layer(kind: str) -> None:
    model = Behind(kind).eval()
    each = [sent(model, X[n : n + 1], Y[n : n + 1]) for n in range(10)]
    gradients = {
        n: torch.stack([torch.zeros_like(model.get_parameter(n)) if g[n] is None else g[n] for g in each])
        for n in each[0]
    }  # type: ignore[misc]
    reading = read(gradients, model)
    assert torch.equal(api.attack(reading, "labels-only").labels[:, 0], Y[:10])
    claim = api.attack(reading.of([3]), "idlg", evaluations=60)
    assert any(note.startswith("labels: nearest to simulated") for note in claim.notes) == LABEL_RULES[kind]
    score = api.score(claim, X[3:4], Y[3:4], **KNOWN)
    assert score.summary.asr.value == 1


@pytest.mark.parametrize("kind", ["negated", "flipped", "convolution"])
def test_labels_of_a_batch_are_counted_by_simulation(kind: str) -> None:
    model = Behind(kind).eval()
    reading = read(sent(model, X[:3], Y[:3]), model, batch=3)
    assert torch.equal(api.attack(reading, "labels-only").labels[0], Y[:3].sort().values)


def test_a_label_that_the_gradient_does_not_show_is_not_guessed() -> None:
    """Behind a ReLU, all labels with a negative output have the same gradient."""
    model = Behind("relu").eval()
    reading = read(sent(model, X[:1], Y[:1]), model)
    assert api.attack(reading, "labels-only").labels.tolist() == [[-1]]
    for attack in ("idlg", "map"):
        with pytest.raises(BenchError, match="no rule reads the labels of public examples off this model's last layer"):
            api.attack(reading, attack)
